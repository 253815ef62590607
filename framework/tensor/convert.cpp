// SPDX-License-Identifier: Apache-2.0
#include "framework/tensor/convert.h"

#include "framework/runtime/error.h"
#include "framework/tensor/fill.h"
#include "framework/tensor/meta.h"
#include "framework/tensor/tensor_impl.h"

namespace moegrad {

void convert_(Tensor& leaf, Dtype dtype) {
  check(leaf.is_leaf(), "convert_: only a leaf can be converted; detach() the result first");
  check<LayoutError>(leaf.layout() == Layout::kND,
                     "convert_: tensor must be row-major ND, got FRACTAL_NZ");
  if (leaf.dtype() == dtype) return;
  const Tensor converted = [&] {
    const MemoryTagGuard tag(leaf.storage().tag());
    const MetaGuard guard(leaf.is_meta());
    return leaf.is_meta() ? Tensor::empty(leaf.shape(), dtype) : to_dtype(leaf, dtype);
  }();
  Tensor grad = leaf.grad();
  if (grad.defined()) {
    const MemoryTagGuard tag(grad.storage().tag());
    grad = to_dtype(grad, dtype);
  }
  converted.storage().set_name(leaf.storage().name());
  leaf.storage().bump_version();
  auto& impl = *leaf.impl();
  impl.storage = converted.impl()->storage;
  impl.strides = converted.strides();
  impl.offset = 0;
  impl.dtype = dtype;
  if (grad.defined()) leaf.set_grad(grad);
}

}  // namespace moegrad
