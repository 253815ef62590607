// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/gather_shards.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "framework/distributed/collectives.h"
#include "framework/distributed/shard_runs.h"
#include "framework/runtime/error.h"
#include "framework/tensor/fill.h"

namespace moegrad {
namespace {

void check_shard(std::string_view op, const Tensor& shard, const ShardSpec& spec) {
  const Shape expected = shard_shape(spec);
  check<ShapeError>(shard.shape() == expected, op, ": [", spec.begin, ", ", spec.end,
                    ") of dimension ", spec.dim, " of ", spec.global_shape, " must be ", expected,
                    ", got ", shard.shape());
  check<LayoutError>(shard.is_contiguous(), op, ": the shard must be contiguous");
}

/// The specs of all ranks of spec.group. Every rank checks the same numbers, so all fail or none.
std::vector<ShardSpec> specs_of_ranks(std::string_view op, const ShardSpec& spec) {
  std::vector<std::int64_t> ranges = {spec.begin, spec.end};
  if (spec.group != nullptr && spec.group->size() > 1) {
    const auto own = ranges;
    ranges.resize(2 * static_cast<std::size_t>(spec.group->size()));
    all_gather(*spec.group, own, std::span(ranges), {.label = std::string(op)});
  }
  std::vector<ShardSpec> specs(ranges.size() / 2, spec);
  std::int64_t next = 0;
  for (std::size_t r = 0; r < specs.size(); ++r) {
    specs[r].begin = ranges[2 * r];
    specs[r].end = ranges[2 * r + 1];
    check(specs[r].begin == next, op, ": rank ", r, " must begin at ", next, " of dimension ",
          spec.dim, " of ", spec.global_shape, ", got ", specs[r].begin);
    next = specs[r].end;
  }
  check(next == spec.global_shape[spec.dim], op, ": the shards must end at ",
        spec.global_shape[spec.dim], ", got ", next);
  return specs;
}

bool in_first_replica(const ShardSpec& spec) {
  return spec.replicas == nullptr || spec.replicas->rank() == 0;
}

std::vector<std::int64_t> counts_of(const std::vector<ShardSpec>& specs) {
  std::vector<std::int64_t> counts;
  for (const auto& spec : specs) counts.push_back(shard_shape(spec).numel());
  return counts;
}

/// From the shards one after the other, as ranks send and receive them, to the whole tensor.
void place_shards(const std::vector<ShardSpec>& specs, const Tensor& shards, Tensor& whole) {
  const auto size = size_of(whole.dtype());
  const auto* from = shards.bytes().data();
  auto* const to = whole.mutable_bytes().data();
  for (const auto& spec : specs) {
    const ShardRuns runs(spec);
    const auto bytes = runs.length * size;
    for (std::int64_t k = 0; k < runs.count; ++k, from += bytes) {
      std::copy_n(from, bytes, to + (runs.first + k * runs.stride) * size);
    }
  }
}

/// From the whole tensor to the shards one after the other.
Tensor line_up_shards(const std::vector<ShardSpec>& specs, const Tensor& whole, Dtype dtype) {
  Tensor shards = Tensor::empty({whole.numel()}, dtype);
  std::int64_t offset = 0;
  for (const auto& spec : specs) {
    const Shape shape = shard_shape(spec);
    Tensor shard = Tensor::as_strided(shards, shape, row_major_strides(shape), offset);
    copy_(shard, shard_view(whole, spec));
    offset += shape.numel();
  }
  return shards;
}

void send_shards(const std::vector<ShardSpec>& specs, const Tensor& whole, Tensor& shard) {
  auto& group = *specs[0].group;
  std::vector<std::int64_t> send(specs.size()), receive(specs.size());
  receive[0] = shard.numel();
  Tensor shards;
  if (group.rank() == 0) {
    shards = line_up_shards(specs, whole, shard.dtype());
    send = counts_of(specs);
  }
  const auto input = shards.defined() ? shards.bytes() : std::span<const std::byte>();
  group
      .all_to_all(input, send, shard.mutable_bytes(), receive, shard.dtype(),
                  {.label = "scatter_shards"})
      ->wait();
}

}  // namespace

Tensor gather_shards(const Tensor& shard, const ShardSpec& spec) {
  check_shard("gather_shards", shard, spec);
  if (!in_first_replica(spec)) return {};
  const auto specs = specs_of_ranks("gather_shards", spec);
  if (specs.size() == 1) {
    Tensor whole = shard.detach();
    whole.set_shard_spec(nullptr);
    return whole;
  }

  auto& group = *spec.group;
  std::vector<std::int64_t> send(specs.size()), receive(specs.size());
  send[0] = shard.numel();
  Tensor shards;
  const MemoryTagGuard tag(MemoryTag::kCommunication);
  if (group.rank() == 0) {
    shards = Tensor::empty(spec.global_shape, shard.dtype());
    receive = counts_of(specs);
  }
  const auto output = shards.defined() ? shards.mutable_bytes() : std::span<std::byte>();
  group.all_to_all(shard.bytes(), send, output, receive, shard.dtype(), {.label = "gather_shards"})
      ->wait();
  if (group.rank() != 0 || spec.dim == 0) return shards;
  Tensor whole = empty_like(shards);
  place_shards(specs, shards, whole);
  return whole;
}

void scatter_shards(const Tensor& whole, Tensor& shard, const ShardSpec& spec) {
  check_shard("scatter_shards", shard, spec);
  if (in_first_replica(spec)) {
    const auto specs = specs_of_ranks("scatter_shards", spec);
    if (spec.group == nullptr || spec.group->rank() == 0) {
      check<ShapeError>(whole.shape() == spec.global_shape, "scatter_shards: whole must be ",
                        spec.global_shape, ", got ", whole.shape());
    }
    const MemoryTagGuard tag(MemoryTag::kCommunication);
    if (specs.size() == 1) {
      copy_(shard, whole);
    } else {
      send_shards(specs, whole, shard);
    }
  }
  if (spec.replicas == nullptr || spec.replicas->size() == 1) return;
  spec.replicas->broadcast(shard.mutable_bytes(), 0, shard.dtype(), {.label = "scatter_shards"})
      ->wait();
}

}  // namespace moegrad
