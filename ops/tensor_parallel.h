// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "framework/distributed/process_group.h"
#include "framework/tensor/tensor.h"

namespace moegrad::ops {

// Note [One objective on all ranks]
// The ranks of a tensor-parallel group share the work on the same tokens, and all of them come to
// the same objective, which counts once. On such a group a tensor is in one of three states:
//
//     alike      the same on all ranks; so is its gradient
//     a part     each rank has its part along one dimension, and that part of the gradient
//     a summand  each rank has a term of a sum; the gradient of each term is that of the sum
//
// and what a rank computes from an alike tensor with its own part of a weight brings it a summand
// of the gradient. The ops below go from one state to another, and their backward from the state of
// one gradient to that of the other. To forget copy_to_ranks changes no loss, only gradients.
//
//     copy_to_ranks       alike -> alike, as it is     backward: summands -> alike (all_reduce)
//     reduce_from_ranks   summands -> alike            backward: as it is
//     scatter_to_ranks    alike -> parts               backward: parts -> alike (all_gather)
//     gather_from_ranks   parts -> alike               backward: alike -> parts
//     all_gather          parts -> alike, each rank's use of which brings a summand
//                                                      backward: summands -> parts (reduce_scatter)
//     reduce_scatter      summands -> parts            backward: parts -> alike (all_gather)
//
// The last two are ops/collectives.h's, which cut along dimension 0. Its all_reduce is for
// objectives that are added over the ranks: here it would count a gradient once for each rank.
//
// Method: M. Shoeybi et al., "Megatron-LM", 2019, https://arxiv.org/abs/1909.08053, whose f is
// copy_to_ranks and whose g is reduce_from_ranks.
//
// Ops return at once, as those of ops/collectives.h, take the same dtypes, and throw the same
// errors. x: of any shape. ShapeError for a dimension that x does not have, or that the ranks do
// not divide.

/// y = x. Backward: the sum over the ranks.
Tensor copy_to_ranks(const std::shared_ptr<ProcessGroup>& group, const Tensor& x,
                     const CollectiveOptions& options = {});
/// y = the sum over the ranks of their x. Backward: the gradient as it is.
Tensor reduce_from_ranks(const std::shared_ptr<ProcessGroup>& group, const Tensor& x,
                         const CollectiveOptions& options = {});
/// y = this rank's part of x along dimension `dim`. Backward: the parts of all ranks.
Tensor scatter_to_ranks(const std::shared_ptr<ProcessGroup>& group, const Tensor& x,
                        std::int64_t dim, const CollectiveOptions& options = {});
/// y = the x of all ranks, side by side along dimension `dim`. Backward: this rank's part.
Tensor gather_from_ranks(const std::shared_ptr<ProcessGroup>& group, const Tensor& x,
                         std::int64_t dim, const CollectiveOptions& options = {});

}  // namespace moegrad::ops
