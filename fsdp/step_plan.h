// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "framework/distributed/parallel_dims.h"
#include "framework/runtime/error.h"
#include "fsdp/state.h"

namespace moegrad::fsdp {

/// When the gradients of the micro-batches that a rank runs in one step are communicated.
enum class Accumulation : std::uint8_t {
  kKeepUntilLast,  // they stay whole; after the last one their sum is reduced
  kReduceEach,     // after each micro-batch
  kScatterEach,    // each is reduce-scattered; after the last one the sum is all-reduced over the
                   // replicas (without replicas the same as kReduceEach)
  kReducePairs,    // after every second micro-batch the sum of two is reduced
};

/// What a model needs whose ranks divide it so: the experts of expert parallelism have gradients
/// that are reduced after each micro-batch (Note [Expert parallelism and the canonical sum]);
/// without it, or where its ranks are those of tensor parallelism, one reduction per step is
/// enough.
Accumulation accumulation_on(const ParallelDims& dims);

/// Whether all ranks compute equally much in a step, so that their times can be compared: not where
/// some run a micro-batch more, or have experts that more tokens choose.
bool ranks_compute_equally(const ParallelDims& dims, std::int64_t micro_batches);

/// The position of a rank in a grid of replicas and shards.
struct GridPosition {
  int replica = 0;
  int replicas = 1;
  int shard = 0;
  int shards = 1;

  static GridPosition of(const GroupRanks& ranks);
  int ranks() const { return replicas * shards; }
};

/// One micro-batch that a rank runs in a step.
struct Turn {
  std::int64_t index = 0;  // of the micro-batch, in 0 .. M - 1
  bool idle = false;  // it is run because every rank joins every collective, and counts as zero
  int number = 0;     // among the turns of this rank in the step
  bool last = false;  // of these

  bool operator==(const Turn&) const = default;
};

/// Note [Who runs which micro-batch]
/// The gradient of a step is a sum over the micro-batches 0 .. M - 1 of all ranks, M a power of
/// two, along one tree (Note [Tree of successive terms]). The sums of fully_shard have that shape
/// too (Note [Where a gradient is summed]), but which rank's which micro-batch becomes which leaf
/// depends on when gradients are communicated. So each rank takes the micro-batches whose gradients
/// arrive where the one tree has them. Any number of ranks that divides M then gives the same bits.
/// Micro-batch i of m = M / R on a rank in replica p of P, shard s of S, R = P S, is
///
///     kKeepUntilLast  (p S + s) m + i              order (replica, shard, micro-batch)
///     kReduceEach     (i P + p) S + s              order (micro-batch, replica, shard)
///     kScatterEach    (p m + i) S + s              order (replica, micro-batch, shard)
///     kReducePairs    ((i P + p) S + s) 2 + j      order (pair, replica, shard, member)
///
/// Under kReducePairs i numbers pairs and j the members of one, 0 and 1: micro-batch 2 i + j of the
/// rank. The members of a pair are siblings in the tree, so they may run in turns, with one
/// backward through both (Note [Micro-batches in one backward]), and still give the bits of one
/// after the other. Under kKeepUntilLast micro-batches 2 i and 2 i + 1 of a rank are siblings, too,
/// if m is even, and so are any that follow each other as far as their sums go: a backward through
/// several brings each as a leaf of its own. Under kReduceEach and kScatterEach what a rank runs
/// next is a leaf of another subtree, so each has a backward of its own.
///
/// Which one to take: kKeepUntilLast communicates once, but whole gradients stay in memory;
/// kReduceEach and, with replicas, kScatterEach keep shards of them only; kReducePairs is
/// kReduceEach for schedules that interleave two micro-batches.
///
/// Experts on a mesh of another shape agree with that if p S + s is the same for both; under
/// kScatterEach only if P is, too.
///
/// Where R does not divide M (2 R for pairs), m is rounded up, for pairs to an even number: every
/// rank has as many turns. Those whose index is M or more count as nothing (Turn::idle). A loop of
/// your own runs micro-batch 0 there; train_step() runs the model without tokens. The step's
/// gradient is the same sum then, in another order.

/// Who runs what in a step of M micro-batches. With it a training loop has the same losses and
/// parameters, bit for bit, on every number of ranks that divides M, if M is a power of two:
///
///     for (const auto& turn : plan.turns()) {
///       const auto output = model(batch(step, turn.index).tokens);
///       plan.backward(turn, loss_of(output) / global_targets);
///       losses.push_back(...);
///     }
///     const double loss = plan.sum(losses);
///
/// sum() is collective and gives the same number on every rank. It adds over the ranks of the
/// state's mesh, which have tokens of their own; others, such as those of a tensor-parallel group,
/// repeat their work.
class StepPlan {
 public:
  /// For a rank of a sharded model whose root has `state`, which must outlive the plan. ValueError
  /// unless micro_batches >= 1.
  StepPlan(State& state, std::int64_t micro_batches,
           Accumulation accumulation = Accumulation::kKeepUntilLast);

  std::int64_t micro_batches() const { return micro_batches_; }
  /// What this rank runs, in order.
  std::span<const Turn> turns() const { return turns_; }
  /// The micro-batches that this rank runs, in order.
  std::vector<std::int64_t> indices() const;
  /// This rank's part of all M micro-batches of a step: one for each turn. ValueError for another
  /// number of them.
  template <class MicroBatch>
  std::vector<MicroBatch> own(const std::vector<MicroBatch>& all) const {
    check_all(all.size());
    std::vector<MicroBatch> own;
    for (const auto& turn : turns_) own.push_back(all[static_cast<std::size_t>(turn.index)]);
    return own;
  }
  /// The ranks that have other micro-batches.
  const GroupRanks& ranks() const { return state_->ranks(); }

  /// Differentiates the objective of a turn: this micro-batch's share in the sum over the step.
  /// Communicates gradients when their time has come. A step takes all turns in order, each once;
  /// the first turn begins a new step. Error for a turn out of order. ValueError for an objective
  /// that was computed under a MicroBatchGuard other than 0. Error if the plan's state is not that
  /// of the root.
  void backward(const Turn& turn, const Tensor& objective);
  /// The same for turns that follow each other and have run interleaved: one backward for all.
  /// `objectives` has one for each, the one at j computed under MicroBatchGuard(j). ValueError for
  /// other numbers of objectives, or if the objective of a turn comes from another guard. Error for
  /// several turns unless the plan keeps gradients until the last one, or reduces pairs and they
  /// are one.
  void backward(std::span<const Turn> turns, const TensorList& objectives);

  /// The sum over the step of a number that each micro-batch has, added in the order of the
  /// micro-batches: the same double on every rank, for every number of ranks. `own`: one for each
  /// turn; idle ones are ignored. ValueError for another number of values.
  double sum(std::span<const double> own) const;
  /// The same of an integer, such as a number of targets.
  std::int64_t sum(std::span<const std::int64_t> own) const;

 private:
  void check_all(std::size_t micro_batches) const;
  void check_one_per_turn(std::size_t count) const;
  void check_order(const Turn& turn);
  void check_objectives(std::span<const Turn> turns, const TensorList& objectives) const;

  State* state_;
  std::int64_t micro_batches_;
  Accumulation accumulation_;
  std::vector<Turn> turns_;
  std::size_t done_ = 0;  // turns that backward() has had in this step
};

/// Adds the ranks' values, element by element. For integers; the order is not that of the ranks. No
/// communication on one rank. Collective.
void sum_over(const GroupRanks& ranks, std::span<std::int64_t> values);
/// Sums over the ranks in the order of `terms` [M]: the same double on every rank. A rank gives its
/// own terms in their places, and zeros for the others'. Collective.
double sum_in_order(std::vector<double> terms, const GroupRanks& ranks);

/// The turns of a rank.
std::vector<Turn> turns_of(std::int64_t micro_batches, const GridPosition& position,
                           Accumulation accumulation);
/// How many ranks of the grid have idle turns alone.
std::int64_t idle_ranks(std::int64_t micro_batches, GridPosition grid, Accumulation accumulation);

}  // namespace moegrad::fsdp
