// SPDX-License-Identifier: Apache-2.0
#include "nn/path_matches.h"

#include <fnmatch.h>

#include <algorithm>
#include <sstream>
#include <vector>

namespace moegrad::nn {
namespace {

std::vector<std::string> names_in(const std::string& path) {
  std::vector<std::string> names;
  std::istringstream text(path);
  for (std::string name; std::getline(text, name, '.');) names.push_back(name);
  return names;
}

}  // namespace

bool path_matches(const std::string& pattern, const std::string& path) {
  return std::ranges::equal(names_in(pattern), names_in(path), [](const auto& a, const auto& b) {
    return ::fnmatch(a.c_str(), b.c_str(), 0) == 0;
  });
}

}  // namespace moegrad::nn
