// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace moegrad {

/// The calls of a thread at one moment. Capturing stores return addresses only; describe() looks up
/// the names.
class CallStack {
 public:
  /// The calls that are running in this thread, innermost first.
  static CallStack capture();

  /// One line per call, innermost first, up to main or the thread's start: `function (file:line)`.
  /// File and line are missing if the program has no line tables (compile with -g1 or more). Calls
  /// from source files whose path ends in one of `hidden_files` are left out, and so are calls from
  /// the C++ library's own headers, such as a std::function that passes a call on. Template
  /// arguments are shown as <...>.
  std::vector<std::string> describe(const std::vector<std::string>& hidden_files = {}) const;

 private:
  std::vector<std::uintptr_t> addresses_;
};

}  // namespace moegrad
