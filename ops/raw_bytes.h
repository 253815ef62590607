// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "framework/tensor/tensor.h"

namespace moegrad::ops {

/// The first byte of an ND tensor, for ops that move elements of any type.
inline std::byte* raw_bytes(const Tensor& x) {
  return x.storage().data() + x.offset() * size_of(x.dtype());
}

}  // namespace moegrad::ops
