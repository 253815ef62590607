// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace moegrad {

/// Where a thread stood. Capturing keeps return addresses only; names are looked up when asked for.
class CallStack {
 public:
  /// The calls that are open in this thread, innermost first.
  static CallStack capture();

  /// One line per call, innermost first, up to main or the thread's start: `function (file:line)`,
  /// without file and line where the program has no line tables (compile with -g1 or more). Calls
  /// from source files whose path ends in one of `hidden_files` are left out, and those from the
  /// C++ library's own headers, such as a std::function that passes a call on. Template arguments
  /// are shown as <...>.
  std::vector<std::string> describe(const std::vector<std::string>& hidden_files = {}) const;

 private:
  std::vector<std::uintptr_t> addresses_;
};

}  // namespace moegrad
