// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace moegrad::test {

/// What this program's operator new, of all threads, has been asked for since the start or since
/// reset_largest_new().
struct NewCalls {
  std::int64_t calls = 0;
  std::int64_t bytes = 0;
  std::int64_t largest = 0;  // bytes
};

NewCalls new_calls();
void reset_largest_new();

}  // namespace moegrad::test
