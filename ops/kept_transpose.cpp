// SPDX-License-Identifier: Apache-2.0
#include "ops/kept_transpose.h"

#include <cstdint>

#include "framework/runtime/parallel_for.h"
#include "framework/runtime/rank_context.h"
#include "ops/kernels/nz.h"
#include "ops/kernels/pack.h"

namespace moegrad::ops {
namespace {

// The panels of the transposes are what packing the weight transposed writes.
template <class T>
void write_transposes(const T* weight, const NzBlocks& blocks, T* transposes) {
  const auto [experts, k, n] = blocks;
  const auto panels = round_up(k, kNzBlock) / kNzBlock, height = round_up(n, kNzBlock);
  parallel_for(experts * panels, 1, [&](std::int64_t begin, std::int64_t end) {
    for (auto i = begin; i < end; ++i) {
      const kernels::RightOperand<T> matrix = {.data = weight + i / panels * nz_numel(k, n),
                                               .form = kernels::RightForm::kNzTransposed,
                                               .stride = round_up(k, kNzBlock)};
      const auto j0 = i % panels * kNzBlock;
      kernels::pack_right_panels(matrix, 0, n, j0, j0 + kNzBlock, k,
                                 transposes + i * kNzBlock * height);
    }
  });
  kernels::nz_zero_padding({experts, n, k}, transposes);
}

Tensor transposed_copy(const Tensor& weight) {
  const auto& blocks = weight.nz_blocks();
  const MemoryTagGuard tag(weight.storage().tag());
  Tensor copy = Tensor::empty_nz({blocks.batch, blocks.n, blocks.k},
                                 {blocks.batch, blocks.n, blocks.k}, weight.dtype());
  dispatch_floating(weight.dtype(), [&]<class T>() {
    write_transposes(weight.nz_data<T>().data(), blocks, copy.mutable_nz_data<T>().data());
  });
  auto& counters = RankContext::current().counters();
  ++counters.materialized_transposes;
  counters.converted_bytes += copy.storage().bytes();
  return copy;
}

}  // namespace

Tensor kept_transpose(const Tensor& weight) {
  auto& storage = weight.storage();
  if (!storage.kept_copy() && storage.serves_again()) {
    storage.keep_copy(transposed_copy(weight).impl());
  }
  return Tensor(storage.kept_copy());
}

}  // namespace moegrad::ops
