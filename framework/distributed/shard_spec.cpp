// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/shard_spec.h"

#include <algorithm>
#include <iterator>
#include <sstream>
#include <string>
#include <utility>

#include "framework/runtime/error.h"
#include "framework/tensor/tensor.h"

namespace moegrad {
namespace {

// Ranks that have different parts, or the same one, cannot share a part of these once more. So two
// groups that divide a tensor have this rank in common and no other.
void check_new_group(const ShardSpec& spec, const std::shared_ptr<ProcessGroup>& group) {
  if (group == nullptr) return;
  for (const auto& placement : spec.placements) {
    if (placement.group == nullptr) continue;
    std::vector<int> common;
    std::ranges::set_intersection(group->ranks(), placement.group->ranks(),
                                  std::back_inserter(common));
    const auto before = placement.dim ? "divides dimension " + std::to_string(*placement.dim)
                                      : std::string("has copies");
    check<ValueError>(common.size() <= 1, "shard: ", part_text(spec),
                      " must be divided over other ranks than before, got group '", group->name(),
                      "', which has ", common.size(), " ranks of group '", placement.group->name(),
                      "', which ", before);
  }
}

}  // namespace

ShardRange shard_range(std::int64_t extent, int ranks, int rank) {
  const auto chunk = (extent + ranks - 1) / ranks;
  return {std::min(extent, chunk * rank), std::min(extent, chunk * (rank + 1))};
}

ShardSpec whole_spec(const Shape& shape) {
  return {.global_shape = shape, .box = whole_box(shape)};
}

ShardSpec divided(ShardSpec spec, std::shared_ptr<ProcessGroup> group, std::int64_t dim) {
  check<ShapeError>(0 <= dim && dim < spec.global_shape.ndim(), "shard: ", spec.global_shape,
                    " must have the dimension to cut, got ", dim);
  check_new_group(spec, group);
  const Placement placement = {.group = std::move(group), .dim = dim};
  const auto range = shard_range(spec.box.shape[dim], placement.ranks(), placement.rank());
  spec.box.begin[dim] += range.begin;
  spec.box.shape[dim] = range.size();
  spec.placements.push_back(placement);
  return spec;
}

ShardSpec replicated(ShardSpec spec, std::shared_ptr<ProcessGroup> group) {
  check_new_group(spec, group);
  spec.placements.push_back({.group = std::move(group)});
  return spec;
}

int num_parts(const ShardSpec& spec) {
  int parts = 1;
  for (const auto& placement : spec.placements) parts *= placement.dim ? placement.ranks() : 1;
  return parts;
}

bool is_spread(const ShardSpec& spec) {
  return std::ranges::any_of(spec.placements,
                             [](const Placement& placement) { return placement.ranks() > 1; });
}

ShardSpec whole_on_ranks_of(const ShardSpec& spec, const Shape& shape) {
  ShardSpec whole = whole_spec(shape);
  for (const auto& placement : spec.placements) whole.placements.push_back({placement.group});
  return whole;
}

bool is_first_replica(const ShardSpec& spec) {
  return std::ranges::all_of(spec.placements, [](const Placement& placement) {
    return placement.dim.has_value() || placement.rank() == 0;
  });
}

bool has_replicas(const ShardSpec& spec) {
  return std::ranges::any_of(spec.placements, [](const Placement& placement) {
    return !placement.dim.has_value() && placement.ranks() > 1;
  });
}

std::string part_text(const ShardSpec& spec) {
  std::ostringstream text;
  const auto& [begin, shape] = spec.box;
  for (std::int64_t dim = 0; dim < spec.global_shape.ndim(); ++dim) {
    if (shape[dim] == spec.global_shape[dim]) continue;
    text << (text.tellp() > 0 ? " and [" : "[") << begin[dim] << ", " << begin[dim] + shape[dim]
         << ") of dimension " << dim;
  }
  if (text.tellp() == 0) text << "all";
  text << " of " << spec.global_shape;
  return text.str();
}

bool is_part(const Tensor& tensor) {
  const auto& spec = tensor.shard_spec();
  return spec != nullptr && !has_mark(tensor, kReplaced) && tensor.shape() != spec->global_shape;
}

void check_same_part(std::string_view subject, const std::string& name, const Tensor& given,
                     const Tensor& own) {
  const auto part_of = [](const Tensor& tensor) {
    return is_part(tensor) ? *tensor.shard_spec() : whole_spec(tensor.shape());
  };
  const ShardSpec theirs = part_of(given), ours = part_of(own);
  check<ValueError>(theirs.global_shape == ours.global_shape && theirs.box == ours.box, subject,
                    ": '", name, "' must be ", part_text(ours), ", got ", part_text(theirs));
}

void check_whole(std::string_view op, const Tensor& input, std::size_t position) {
  const auto& spec = input.shard_spec();
  if (spec == nullptr) [[likely]]
    return;
  if (!spec->gathered_for_use || num_parts(*spec) == 1) return;
  if (input.shape() == spec->global_shape) return;  // this rank holds the whole small parameter
  check(false, op, ": input ", position, " must be a whole parameter, got a shard ", input.shape(),
        " of ", spec->global_shape, " on ", num_parts(*spec),
        " ranks; call the module, module(x), which gathers it: forward(x) alone does not; "
        "to_local(shard) gives this rank's elements alone");
}

}  // namespace moegrad
