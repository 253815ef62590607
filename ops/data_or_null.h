// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "framework/tensor/tensor.h"

namespace moegrad::ops {

/// The elements of an optional tensor as a kernel takes them: null for an undefined one.
template <class T>
const T* data_or_null(const Tensor& tensor) {
  return tensor.defined() ? tensor.data<T>().data() : nullptr;
}

/// The same to write to.
template <class T>
T* mutable_data_or_null(Tensor& tensor) {
  return tensor.defined() ? tensor.mutable_data<T>().data() : nullptr;
}

}  // namespace moegrad::ops
