// SPDX-License-Identifier: Apache-2.0
#pragma once

// Reads tests/golden, whose README.md says where its values come from. A test fails where a file of
// it is missing.

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <vector>

#include "framework/tensor/documents.h"
#include "framework/tensor/tensor.h"
#include "tests/source_dir.h"

namespace moegrad::test {

inline std::filesystem::path golden_folder() { return source_dir() / "tests" / "golden"; }

inline nlohmann::json read_json(const std::filesystem::path& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot read " + path.string());
  return nlohmann::json::parse(file);
}

/// Sequences packed one after the other.
struct GoldenRow {
  std::vector<std::int64_t> tokens, targets, lengths;

  Documents documents() const { return Documents::of_lengths(lengths); }

  /// Hugging Face's labels are unshifted: position t is scored against labels[t + 1].
  void append(const std::vector<std::int64_t>& ids, const std::vector<std::int64_t>& labels) {
    constexpr std::int64_t kIgnored = -100;
    tokens.insert(tokens.end(), ids.begin(), ids.end());
    targets.insert(targets.end(), labels.begin() + 1, labels.end());
    targets.push_back(kIgnored);
    lengths.push_back(std::ssize(ids));
  }
};

/// The rows of a batch [B][S] as B documents.
inline GoldenRow pack_batch(const nlohmann::json& ids, const nlohmann::json& labels) {
  GoldenRow row;
  for (std::size_t b = 0; b < ids.size(); ++b) row.append(ids[b], labels[b]);
  return row;
}

inline Tensor index_vector(const std::vector<std::int64_t>& values) {
  return Tensor::from(values, {std::ssize(values)});
}

}  // namespace moegrad::test
