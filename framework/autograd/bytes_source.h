// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "framework/tensor/tensor.h"

namespace moegrad::detail {

/// What gives bytes back that a SavedTensor does not hold.
class BytesSource {
 public:
  virtual ~BytesSource() = default;
  /// A tensor over the bytes of result `i`, those of the whole storage.
  virtual Tensor output(std::size_t i) = 0;
};

}  // namespace moegrad::detail
