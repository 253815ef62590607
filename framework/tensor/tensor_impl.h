// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "framework/runtime/error.h"
#include "framework/tensor/gradient_accumulator.h"
#include "framework/tensor/hook_list.h"
#include "framework/tensor/tensor_mark.h"

namespace moegrad {

struct GradientUses;

/// Gradient and hooks of a leaf.
struct LeafState {
  Tensor grad;
  std::shared_ptr<GradientUses> uses;  // the terms of grad; null: there is one, use 0
  HookList<Tensor(const Tensor&)> hooks;
  HookList<void(const Tensor&)> post_accumulate_hooks;
  HookList<void()> drop_hooks;  // set_grad() has left none: what waits to be added goes as well
  GradientAccumulator* accumulator = nullptr;  // null: gradients are added to grad
};

/// What Tensor handles share. Only the framework looks inside.
struct TensorImpl {
  std::shared_ptr<Storage> storage;
  Shape shape;
  Shape strides;
  std::int64_t offset = 0;  // elements
  Dtype dtype = Dtype::kFloat32;
  Layout layout = Layout::kND;
  NzBlocks nz;

  bool requires_grad = false;
  std::shared_ptr<Function> grad_fn;  // null for leaves
  std::size_t output_index = 0;       // which output of grad_fn this is
  std::unique_ptr<LeafState> leaf;
  std::shared_ptr<const ShardSpec> shard;
  std::vector<const TensorMark*> marks;
  bool detached = false;  // made by detach(): the values of a parameter, not the parameter

  LeafState& leaf_state() {
    if (!leaf) leaf = std::make_unique<LeafState>();
    return *leaf;
  }
};

inline TensorImpl& checked_impl(const std::shared_ptr<TensorImpl>& impl) {
  check<UndefinedTensorError>(impl != nullptr, "tensor: undefined tensor used");
  return *impl;
}

/// The gradient of a shard is a shard, too.
inline void mark_gradient(TensorImpl& leaf) {
  if (leaf.shard != nullptr && leaf.leaf->grad.defined()) {
    leaf.leaf->grad.impl()->shard = leaf.shard;
    leaf.leaf->grad.impl()->marks = leaf.marks;
  }
}

/// True if `tensor` is the only handle on its bytes and fills them. Then sums may be formed in it,
/// and keeping it keeps no more memory than its elements.
inline bool owns_its_bytes(const Tensor& tensor) {
  return tensor.impl().use_count() == 1 && tensor.impl()->storage.use_count() == 1 &&
         tensor.is_contiguous() &&
         tensor.storage().bytes() == tensor.numel() * size_of(tensor.dtype());
}

}  // namespace moegrad
