// SPDX-License-Identifier: Apache-2.0
#pragma once

// Modules whose shards are made by hand, along any dimension and over any mesh.

#include <algorithm>
#include <vector>

#include "nn/module.h"
#include "tests/framework/distributed/hand_shards.h"

namespace moegrad::test {

/// The dimension to cut: `dim` where the parameter has one that divides evenly, else 0.
inline std::int64_t dim_to_cut(const Shape& shape, std::int64_t dim, int ranks) {
  return dim < shape.ndim() && shape[dim] % ranks == 0 ? dim : 0;
}

/// Puts this rank's shard in place of each parameter: experts over a mesh of their own.
inline void shard_by_hand(nn::Module& module, const DeviceMesh& dense, const DeviceMesh& experts,
                          std::int64_t dim) {
  struct Done {
    Tensor whole, shard;
  };
  std::vector<Done> done;
  for (const auto& slot : module.parameter_slots()) {
    auto seen =
        std::ranges::find_if(done, [&](const Done& each) { return each.whole.is(*slot.tensor); });
    if (seen == done.end()) {
      const auto& mesh = slot.layout.stacked.ndim() > 0 ? experts : dense;
      const auto& shape = slot.tensor->shape();
      const auto spec = spec_of(shape, dim_to_cut(shape, dim, mesh.size("shard")), mesh);
      Tensor shard = shard_of(*slot.tensor, spec);
      shard.set_requires_grad(true);
      seen = done.insert(done.end(), {*slot.tensor, shard});
    }
    *slot.tensor = seen->shard;
  }
}

}  // namespace moegrad::test
