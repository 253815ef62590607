// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "framework/distributed/process_group.h"
#include "framework/tensor/box.h"
#include "framework/tensor/shape.h"
#include "framework/tensor/tensor_mark.h"

namespace moegrad {

class Tensor;

/// One division of a tensor: along dimension `dim` over the ranks of `group`, in their order.
/// Without a dimension every rank of the group has the same part.
struct Placement {
  std::shared_ptr<ProcessGroup> group;  // null: one rank
  std::optional<std::int64_t> dim = std::nullopt;

  int ranks() const { return group != nullptr ? group->size() : 1; }
  int rank() const { return group != nullptr ? group->rank() : 0; }
};

/// Note [Placements]
/// A parameter may be divided more than once: tensor or expert parallelism cuts it along one
/// dimension, and fully_shard cuts each part again. `placements` lists the divisions, the outermost
/// first; each divides what those before it have left. `box` is the result: this rank's part of the
/// global tensor. The group of a placement contains the ranks that differ in this division alone.
///
/// Code that needs elements reads the box; code that needs ranks reads the groups. No code may
/// assume one dimension.
///
/// Which part of a global tensor a parameter is. Gathering, checkpoints, initial values, gradient
/// clipping, optimizers and state dicts read it. A tensor without a ShardSpec is whole.
struct ShardSpec {
  Shape global_shape;
  Box box;
  std::vector<Placement> placements = {};
  /// The module gathers the tensor before it computes (fully_shard). Ops refuse the shard itself.
  bool gathered_for_use = false;
};

/// fully_shard was told to ignore the parameter: the user sums its gradients.
inline constexpr TensorMark kLeftWhole{};

/// Indices [begin, end) of a dimension.
struct ShardRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t size() const { return end - begin; }
};

/// The indices that `rank` of `ranks` holds of a dimension of size `extent`. As with torch.chunk,
/// chunks have the size rounded up, and the last ones are shorter or empty.
ShardRange shard_range(std::int64_t extent, int ranks, int rank);

/// The spec of a whole tensor, which every rank has.
ShardSpec whole_spec(const Shape& shape);
/// `spec` divided once more, inside its divisions: dimension `dim` over the ranks of `group`, as
/// shard_range() cuts. ShapeError unless the tensor has that dimension; ValueError if the ranks
/// divide it already.
ShardSpec divided(ShardSpec spec, std::shared_ptr<ProcessGroup> group, std::int64_t dim);
/// `spec` with the same part on all ranks of `group`. ValueError if they divide it already.
ShardSpec replicated(ShardSpec spec, std::shared_ptr<ProcessGroup> group);
/// The spec of a tensor of another shape that is whole on each of the ranks over which `spec` is
/// spread, such as the count of steps of a parameter.
ShardSpec whole_on_ranks_of(const ShardSpec& spec, const Shape& shape);

/// Into how many parts the tensor is divided.
int num_parts(const ShardSpec& spec);
/// Whether several ranks hold parts or copies.
bool is_spread(const ShardSpec& spec);
/// Whether this rank is the first of those that hold the same part.
bool is_first_replica(const ShardSpec& spec);
/// Whether other ranks hold the same part.
bool has_replicas(const ShardSpec& spec);

/// The part as messages show it: "[2, 4) of dimension 0 of [4, 3]"; "all of [4, 3]".
std::string part_text(const ShardSpec& spec);

/// Whether `tensor` has other elements of a global tensor beside it: it is neither whole nor the
/// whole that a shard has replaced.
bool is_part(const Tensor& tensor);
/// ValueError, with `subject` and the tensor's name, unless `given` is the part of a global tensor
/// that `own` is, or both are whole.
void check_same_part(std::string_view subject, const std::string& name, const Tensor& given,
                     const Tensor& own);

/// Error if `input`, which is input number `position` of operation `op`, is a shard of a parameter.
///
/// Note [Shards are no operands]
/// fully_shard replaces each parameter by a shard, and model(x) gathers the whole ones first. Its
/// forward(x) alone does not: shapes would be wrong, or fit by chance, and so the results be. So no
/// operation takes a shard that is split over more ranks, nor its grad(), its detach(), a clone()
/// of these, or a tensor of a state_dict(). To compute with this rank's elements alone, for example
/// their share of a norm, take to_local(shard), as DTensor's. The part of a parameter that another
/// kind of parallelism has cut is an operand: its module computes with that part.
void check_whole(std::string_view op, const Tensor& input, std::size_t position);

}  // namespace moegrad
