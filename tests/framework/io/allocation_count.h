// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace moegrad::test {

/// The most bytes that this program's new has had allocated at once while `body` ran, beyond those
/// before: blocks as the allocator rounds them, with its 8 bytes of overhead.
std::size_t allocation_peak();
void reset_allocation_peak();

template <class Body>
std::size_t peak_of(const Body& body) {
  reset_allocation_peak();
  body();
  return allocation_peak();
}

}  // namespace moegrad::test
