// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/gather_shards.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "framework/distributed/collectives.h"
#include "framework/distributed/shard_runs.h"
#include "framework/distributed/to_local.h"
#include "framework/runtime/error.h"
#include "framework/tensor/fill.h"

namespace moegrad {
namespace {

/// One division of a tensor as all ranks of its group see it.
struct Division {
  Placement placement;
  Box whole;               // what the ranks share
  std::vector<Box> parts;  // of each rank
};

void check_shard(std::string_view op, const Tensor& shard, const ShardSpec& spec) {
  check<ShapeError>(shard.shape() == spec.box.shape, op, ": ", part_text(spec), " must be ",
                    spec.box.shape, ", got ", shard.shape());
  check<LayoutError>(shard.is_contiguous(), op, ": the shard must be contiguous");
}

/// The boxes of all ranks of the placement's group.
std::vector<Box> boxes_of_ranks(std::string_view op, const Placement& placement, const Box& own) {
  if (placement.ranks() == 1) return {own};
  std::vector<std::int64_t> numbers(own.begin.begin(), own.begin.end());
  numbers.insert(numbers.end(), own.shape.begin(), own.shape.end());
  const auto mine = numbers;
  numbers.resize(mine.size() * static_cast<std::size_t>(placement.ranks()));
  all_gather(*placement.group, mine, std::span(numbers), {.label = std::string(op)});
  std::vector<Box> boxes;
  const auto ndim = mine.size() / 2;
  for (std::span<const std::int64_t> rest(numbers); !rest.empty(); rest = rest.subspan(2 * ndim)) {
    boxes.push_back({.begin = Shape(rest.first(ndim)), .shape = Shape(rest.subspan(ndim, ndim))});
  }
  return boxes;
}

/// What the parts are together. Every rank checks the same numbers, so all fail or none.
Box joined(std::string_view op, const std::vector<Box>& parts, std::int64_t dim,
           const Shape& global_shape) {
  Box whole = parts.front();
  whole.shape[dim] = 0;
  for (std::size_t r = 0; r < parts.size(); ++r) {
    const auto next = whole.begin[dim] + whole.shape[dim];
    check(parts[r].begin[dim] == next, op, ": rank ", r, " must begin at ", next, " of dimension ",
          dim, " of ", global_shape, ", got ", parts[r].begin[dim]);
    Box alike = parts[r];
    alike.begin[dim] = whole.begin[dim];
    alike.shape[dim] = whole.shape[dim];
    check(alike == whole, op, ": rank ", r, " must have the same indices as rank 0 but for ",
          "dimension ", dim, " of ", global_shape, ", got others");
    whole.shape[dim] += parts[r].shape[dim];
  }
  return whole;
}

/// The divisions of the tensor, the innermost first. Collective.
std::vector<Division> divisions_of(std::string_view op, const ShardSpec& spec) {
  std::vector<Division> divisions;
  Box box = spec.box;
  for (auto placement = spec.placements.rbegin(); placement != spec.placements.rend();
       ++placement) {
    if (!placement->dim) continue;
    auto parts = boxes_of_ranks(op, *placement, box);
    box = joined(op, parts, *placement->dim, spec.global_shape);
    if (placement->ranks() > 1) divisions.push_back({*placement, box, std::move(parts)});
  }
  check(box == whole_box(spec.global_shape), op, ": the shards must be all of ", spec.global_shape,
        ", got ", part_text({.global_shape = spec.global_shape, .box = box}));
  return divisions;
}

std::vector<std::int64_t> counts_of(const std::vector<Box>& parts) {
  std::vector<std::int64_t> counts;
  for (const auto& part : parts) counts.push_back(part.shape.numel());
  return counts;
}

/// Whether the parts one after the other are the whole, row by row.
bool are_in_a_row(const Division& division) {
  const auto& shape = division.whole.shape;
  return std::all_of(shape.begin(), shape.begin() + *division.placement.dim,
                     [](std::int64_t size) { return size == 1; });
}

/// From the parts one after the other, as ranks send and receive them, to what they share.
Tensor put_together(const Division& division, const Tensor& parts) {
  Tensor whole = Tensor::empty(division.whole.shape, parts.dtype());
  const auto size = size_of(whole.dtype());
  const auto* from = parts.bytes().data();
  auto* const to = whole.mutable_bytes().data();
  for (const auto& part : division.parts) {
    copy_overlap(part, from, division.whole, to, size);
    from += part.shape.numel() * size;
  }
  return whole;
}

/// From what the ranks share to the parts one after the other.
Tensor line_up(const Division& division, const Tensor& whole, Dtype dtype) {
  Tensor parts = Tensor::empty({whole.numel()}, dtype);
  std::int64_t offset = 0;
  for (auto box : division.parts) {
    for (std::int64_t dim = 0; dim < box.begin.ndim(); ++dim) {
      box.begin[dim] -= division.whole.begin[dim];
    }
    Tensor part = Tensor::as_strided(parts, box.shape, row_major_strides(box.shape), offset);
    copy_(part, box_view(whole, box));
    offset += box.shape.numel();
  }
  return parts;
}

/// What the group's ranks share, on its first rank; undefined on the others.
Tensor gather(const Division& division, const Tensor& part) {
  auto& group = *division.placement.group;
  std::vector<std::int64_t> send(division.parts.size()), receive(division.parts.size());
  send[0] = part.numel();
  Tensor parts;
  if (group.rank() == 0) {
    parts = Tensor::empty(division.whole.shape, part.dtype());
    receive = counts_of(division.parts);
  }
  const auto output = parts.defined() ? parts.mutable_bytes() : std::span<std::byte>();
  group.all_to_all(part.bytes(), send, output, receive, part.dtype(), {.label = "gather_shards"})
      ->wait();
  if (!parts.defined() || are_in_a_row(division)) return parts;
  return put_together(division, parts);
}

/// Fills `part` on each rank of the group from its first rank's `whole`.
void scatter(const Division& division, const Tensor& whole, Tensor& part) {
  auto& group = *division.placement.group;
  std::vector<std::int64_t> send(division.parts.size()), receive(division.parts.size());
  receive[0] = part.numel();
  Tensor parts;
  if (group.rank() == 0) {
    parts = line_up(division, whole, part.dtype());
    send = counts_of(division.parts);
  }
  const auto input = parts.defined() ? parts.bytes() : std::span<const std::byte>();
  group
      .all_to_all(input, send, part.mutable_bytes(), receive, part.dtype(),
                  {.label = "scatter_shards"})
      ->wait();
}

void scatter_in_first_replica(const Tensor& whole, Tensor& shard, const ShardSpec& spec) {
  const auto divisions = divisions_of("scatter_shards", spec);
  const auto is_first = [](const Division& division) { return division.placement.rank() == 0; };
  if (std::ranges::all_of(divisions, is_first)) {
    check<ShapeError>(whole.shape() == spec.global_shape, "scatter_shards: whole must be ",
                      spec.global_shape, ", got ", whole.shape());
  }
  const MemoryTagGuard tag(MemoryTag::kCommunication);
  if (divisions.empty()) copy_(shard, whole);
  Tensor shared = whole;
  for (auto division = divisions.rbegin(); division != divisions.rend(); ++division) {
    // The first ranks of all groups inside this one have what the group shares.
    const std::span inner(divisions.begin(), divisions.rend() - division - 1);
    if (!std::ranges::all_of(inner, is_first)) continue;
    const auto rank = static_cast<std::size_t>(division->placement.rank());
    Tensor part = inner.empty() ? shard : Tensor::empty(division->parts[rank].shape, shard.dtype());
    scatter(*division, shared, part);
    shared = std::move(part);
  }
}

}  // namespace

Tensor gather_shards(const Tensor& shard, const ShardSpec& spec) {
  check_shard("gather_shards", shard, spec);
  if (!is_first_replica(spec)) return {};
  const auto divisions = divisions_of("gather_shards", spec);
  Tensor whole = to_local(shard);
  const MemoryTagGuard tag(MemoryTag::kCommunication);
  for (const auto& division : divisions) {
    whole = gather(division, whole);
    if (!whole.defined()) break;
  }
  return whole;
}

Tensor all_gather_shards(const Tensor& shard, const ShardSpec& spec) {
  const Tensor on_root = gather_shards(shard, spec);
  if (!is_spread(spec)) return on_root;
  const MemoryTagGuard tag(MemoryTag::kCommunication);
  Tensor whole = Tensor::empty(spec.global_shape, shard.dtype());
  scatter_shards(on_root, whole, whole_on_ranks_of(spec, spec.global_shape));
  return whole;
}

void scatter_shards(const Tensor& whole, Tensor& shard, const ShardSpec& spec) {
  check_shard("scatter_shards", shard, spec);
  if (is_first_replica(spec)) scatter_in_first_replica(whole, shard, spec);
  const auto& placements = spec.placements;
  for (auto placement = placements.begin(); placement != placements.end(); ++placement) {
    if (placement->dim || placement->ranks() == 1) continue;
    // The first ranks of the groups of replicas inside this one have it, or will have it now.
    const bool takes_part = std::all_of(
        placement + 1, placements.end(),
        [](const Placement& inner) { return inner.dim.has_value() || inner.rank() == 0; });
    if (!takes_part) continue;
    placement->group
        ->broadcast(shard.mutable_bytes(), 0, shard.dtype(), {.label = "scatter_shards"})
        ->wait();
  }
}

}  // namespace moegrad
