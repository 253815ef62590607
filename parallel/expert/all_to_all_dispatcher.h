// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "framework/distributed/process_group.h"
#include "nn/token_dispatcher.h"
#include "parallel/expert/row_exchange.h"

namespace moegrad::parallel {

/// Takes tokens to experts that are on S ranks, E / S on each: rank r of `group` has experts
/// [r E / S, (r + 1) E / S). Each rank has tokens of its own, and none is dropped.
///
/// Note [Tokens that travel]
/// dispatch() is three exchanges (RowExchange), of which the first must end before the others
/// begin:
///
///     counts     how many rows each rank sends for each expert
///     rows       [T, H], each token's to the K experts of its choice
///     weights    [T, K], what the router gives these rows
///
/// What arrives is put in the order of expert, then source rank, then slot. With one process that
/// has all the tokens, the rows of an expert would lie in the same order. combine() goes the same
/// way back. In backward the gradients of rows and weights travel the opposite way
/// (ops/dispatch_rows.h).
///
/// A row's result does not depend on the rows beside it (Note [Matmul order]), and a token adds its
/// rows in the order of its choices. So the results have the bits that they have when all experts
/// are here. So do the gradients of the experts' weights: Note [The sum of a gradient].
///
/// All ranks of the group call dispatch(), combine() and backward alike, also with no tokens.
class AllToAllDispatcher final : public nn::TokenDispatcher {
 public:
  /// `one_micro_batch`: the ranks have parts of the same one (ops::RowGroups). ValueError for a
  /// null group, and unless the ranks divide num_experts.
  AllToAllDispatcher(std::shared_ptr<ProcessGroup> group, std::int64_t num_experts)
      : AllToAllDispatcher(RowExchange(std::move(group)), num_experts) {}
  AllToAllDispatcher(RowExchange exchange, std::int64_t num_experts, bool one_micro_batch = false);

  nn::DispatchedRows dispatch(const Tensor& x, const nn::Router::Output& routed) override;
  Tensor combine(const Tensor& rows, const nn::DispatchedRows& dispatched) override;

 private:
  RowExchange exchange_;
  std::int64_t num_experts_;
  bool one_micro_batch_;
};

}  // namespace moegrad::parallel
