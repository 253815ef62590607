// SPDX-License-Identifier: Apache-2.0
#include "parallel/parts.h"

#include <memory>
#include <utility>

#include "framework/distributed/shard_runs.h"
#include "framework/runtime/arena.h"
#include "framework/runtime/error.h"
#include "framework/tensor/fill.h"
#include "framework/tensor/meta.h"
#include "framework/tensor/tensor_impl.h"

namespace moegrad::parallel {

void check_one_axis(std::string_view op, const DeviceMesh& mesh) {
  const auto axes = mesh.axes();
  check<ValueError>(axes.size() == 1, op, ": the mesh must have one axis, got ", axes.size());
}

void check_no_hooks(std::string_view op, const std::string& name, const Tensor& whole) {
  const auto& leaf = whole.impl()->leaf;
  check(!leaf || (leaf->hooks.empty() && leaf->post_accumulate_hooks.empty()), op, ": '", name,
        "' must have no hooks yet, because a part takes its place; register them on that");
}

Tensor part_of(const Tensor& whole, ShardSpec spec) {
  const MemoryTagGuard tag(MemoryTag::kParameters);
  const MetaGuard no_bytes(whole.is_meta());
  Tensor part = Tensor::empty(spec.box.shape, whole.dtype());
  if (!whole.is_meta()) copy_(part, shard_view(whole.detach(), spec));
  part.storage().set_name(whole.storage().name());
  part.set_requires_grad(whole.requires_grad());
  part.set_shard_spec(std::make_shared<const ShardSpec>(std::move(spec)));
  return part;
}

void mark_replaced(const Tensor& whole, const Tensor& part) {
  whole.set_shard_spec(part.shard_spec());
  set_mark(whole, kReplaced);
}

}  // namespace moegrad::parallel
