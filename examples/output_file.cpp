// SPDX-License-Identifier: Apache-2.0
#include "examples/output_file.h"

#include "framework/runtime/error.h"

namespace moegrad::examples {

std::ofstream open_for_writing(const std::string& path) {
  std::ofstream file(path);
  check<ValueError>(file.good(), "cannot write file '", path, "'");
  return file;
}

}  // namespace moegrad::examples
