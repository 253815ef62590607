// SPDX-License-Identifier: Apache-2.0
#include "fsdp/reduction_input.h"

#include <algorithm>
#include <utility>

#include "framework/distributed/shard_spec.h"
#include "framework/tensor/fill.h"
#include "framework/tensor/tensor_impl.h"

namespace moegrad::fsdp {
namespace {

std::int64_t padded_numel(const FlatEntry& entry) {
  return entry.outer * entry.chunk * entry.inner;
}

// The ranks' parts one after the other, each zero-padded: [world_size, padded_numel].
Tensor copy_in(const Tensor& gradient, std::int64_t dim, const FlatEntry& entry, int world_size,
               Dtype dtype) {
  const Shape shape = {world_size * padded_numel(entry)};
  const bool padded = entry.chunk * world_size != entry.extent;
  Tensor flat = padded ? Tensor::zeros(shape, dtype) : Tensor::empty(shape, dtype);
  for (int rank = 0; rank < world_size; ++rank) {
    const auto range = shard_range(gradient.dim(dim), world_size, rank);
    const Tensor part = Tensor::narrow(gradient, dim, range.begin, range.size());
    Tensor target = flat_view(flat, rank * padded_numel(entry), part.shape());
    copy_(target, part);
  }
  return flat;
}

// Elements [begin, begin + count) of a contiguous tensor.
std::span<const std::byte> elements(const Tensor& tensor, std::int64_t begin, std::int64_t count) {
  const auto size = size_of(tensor.dtype());
  return tensor.bytes().subspan(static_cast<std::size_t>(begin * size),
                                static_cast<std::size_t>(count * size));
}

}  // namespace

ReductionInput make_reduction_input(const FlatLayout& layout, const std::vector<FlatParam>& params,
                                    TensorList gradients, Dtype dtype) {
  const MemoryTagGuard tag(MemoryTag::kCommunication);
  const auto ranks = layout.world_size;
  ReductionInput input;
  std::int64_t zeros_in_a_part = 0;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const auto& entry = layout.entries[i];
    Tensor gradient = std::exchange(gradients[i], Tensor());
    const bool stays = gradient.defined() && params[i].dim == 0 && gradient.dtype() == dtype &&
                       owns_its_bytes(gradient);
    if (gradient.defined() && !stays) {
      gradient = copy_in(gradient, params[i].dim, entry, ranks, dtype);
    }
    const auto part = padded_numel(entry);
    const auto zeros = ranks * part - (gradient.defined() ? gradient.numel() : 0);
    zeros_in_a_part = std::max(zeros_in_a_part, std::min(zeros, part));
    input.memory.push_back(std::move(gradient));
  }
  const Tensor zeros = Tensor::zeros({zeros_in_a_part}, dtype);
  for (int rank = 0; rank < ranks; ++rank) {
    for (std::size_t i = 0; i < layout.entries.size(); ++i) {
      const auto& source = input.memory[i];
      const auto part = padded_numel(layout.entries[i]);
      const auto all = source.defined() ? source.numel() : 0;
      const auto begin = std::min(all, rank * part);
      const auto count = std::min(part, all - begin);
      if (count > 0) input.parts.push_back(elements(source, begin, count));
      if (count < part) input.parts.push_back(elements(zeros, 0, part - count));
    }
  }
  input.memory.push_back(zeros);
  return input;
}

}  // namespace moegrad::fsdp
