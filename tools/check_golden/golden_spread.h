// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "framework/distributed/process_group.h"
#include "models/causal_lm/model.h"
#include "tools/check_golden/golden_case.h"
#include "tools/check_golden/golden_runs.h"

namespace moegrad::tools {

// Note [A golden row over ranks]
// Each sequence of a row is a micro-batch, and sequence s runs on rank s % R. The reference's
// auxiliary loss pools all tokens of the row, so it is not a sum of losses of the sequences. But
// the load of the experts in it carries no gradient:
//
//     aux = sum_t <load, p_t> / (T L),    load_e = E / (T L) * tokens of expert e
//
// over the T tokens and L layers, where p_t is the softmax of the router's logits. So a forward of
// all sequences without tape gives the load. Then the terms of a sequence depend only on it.

/// A model under fully_shard and a row whose sequences are spread over the ranks. Collective.
class GoldenSpread {
 public:
  /// `group`: the ranks that have other sequences; `tensor_ranks`: those that share the work on
  /// one.
  GoldenSpread(models::CausalLM& model, std::shared_ptr<ProcessGroup> group,
               std::shared_ptr<ProcessGroup> tensor_ranks)
      : model_(model), group_(std::move(group)), tensor_ranks_(std::move(tensor_ranks)) {}

  /// The result of forward for the whole row, without tape. It is the same on each rank. `replay`:
  /// the experts to take, or null.
  GoldenComputed forward(const GoldenRow& row, double aux_coefficient, const GoldenRouting* replay);
  /// Adds the gradients of the row's loss, with the routing that forward gave.
  void backward(const GoldenRow& row, double aux_coefficient, const GoldenRouting& routing,
                const GoldenRouting* replay);

 private:
  std::optional<std::int64_t> sequence_of(std::int64_t slot, const GoldenRow& row) const;
  models::CausalLM::Output run(const GoldenRow& row, std::int64_t sequence,
                               const GoldenRouting* replay);

  models::CausalLM& model_;
  // What mixtures return of this rank's part of the tokens -> of `length` tokens.
  void join_parts(models::CausalLM::Output& output, std::int64_t length) const;

  std::shared_ptr<ProcessGroup> group_, tensor_ranks_;
};

}  // namespace moegrad::tools
