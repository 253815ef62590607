// SPDX-License-Identifier: Apache-2.0
#include "fsdp/step_plan.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "framework/autograd/engine.h"
#include "framework/autograd/function.h"
#include "framework/distributed/collectives.h"
#include "framework/runtime/error.h"
#include "ops/elementwise.h"

namespace moegrad::fsdp {
namespace {

template <class T>
void sum_over_both(const GroupRanks& ranks, std::span<T> values) {
  for (const auto& group : {ranks.shard, ranks.replicas}) {
    if (group && group->size() > 1) all_reduce(*group, values);
  }
}

}  // namespace

void sum_over(const GroupRanks& ranks, std::span<std::int64_t> values) {
  sum_over_both(ranks, values);
}

double sum_in_order(std::vector<double> terms, const GroupRanks& ranks) {
  // Exact: of the ranks' values of a term all but one are zero.
  sum_over_both(ranks, std::span(terms));
  return std::accumulate(terms.begin(), terms.end(), 0.0);
}

Accumulation accumulation_on(const ParallelDims& dims) {
  return dims.ep > 1 && dims.tp == 1 ? Accumulation::kReduceEach : Accumulation::kKeepUntilLast;
}

bool ranks_compute_equally(const ParallelDims& dims, std::int64_t micro_batches) {
  return dims.ep == 1 && micro_batches % dims.token_ranks() == 0;
}

GridPosition GridPosition::of(const GroupRanks& ranks) {
  GridPosition position = {.replicas = ranks.num_replicas(), .shards = ranks.num_shards()};
  if (ranks.replicas) position.replica = ranks.replicas->rank();
  if (ranks.shard) position.shard = ranks.shard->rank();
  return position;
}

std::vector<Turn> turns_of(std::int64_t micro_batches, const GridPosition& position,
                           Accumulation accumulation) {
  const bool pairs = accumulation == Accumulation::kReducePairs;
  const auto per_round = position.ranks() * (pairs ? 2 : 1);
  const auto each = (micro_batches + per_round - 1) / per_round * (pairs ? 2 : 1);
  const auto p = position.replica, replicas = position.replicas;
  const auto s = position.shard, shards = position.shards;
  const auto index_of = [&](std::int64_t i) {
    if (pairs) return ((i / 2 * replicas + p) * shards + s) * 2 + i % 2;
    if (accumulation == Accumulation::kReduceEach) return (i * replicas + p) * shards + s;
    if (accumulation == Accumulation::kScatterEach) return (p * each + i) * shards + s;
    return (p * shards + s) * each + i;
  };
  std::vector<Turn> turns;
  for (std::int64_t i = 0; i < each; ++i) {
    const auto index = index_of(i);
    const bool idle = index >= micro_batches;
    turns.push_back({.index = idle ? 0 : index,
                     .idle = idle,
                     .number = static_cast<int>(i),
                     .last = i + 1 == each});
  }
  return turns;
}

std::int64_t idle_ranks(std::int64_t micro_batches, GridPosition grid, Accumulation accumulation) {
  std::int64_t idle = 0;
  for (grid.replica = 0; grid.replica < grid.replicas; ++grid.replica) {
    for (grid.shard = 0; grid.shard < grid.shards; ++grid.shard) {
      const auto turns = turns_of(micro_batches, grid, accumulation);
      idle += std::ranges::all_of(turns, &Turn::idle) ? 1 : 0;
    }
  }
  return idle;
}

StepPlan::StepPlan(State& state, std::int64_t micro_batches, Accumulation accumulation)
    : state_(&state), micro_batches_(micro_batches), accumulation_(accumulation) {
  check<ValueError>(micro_batches >= 1, "step plan: micro_batches must be at least 1, got ",
                    micro_batches);
  turns_ = turns_of(micro_batches, GridPosition::of(state.ranks()), accumulation);
}

std::vector<std::int64_t> StepPlan::indices() const {
  std::vector<std::int64_t> indices;
  for (const auto& turn : turns_) indices.push_back(turn.index);
  return indices;
}

void StepPlan::check_all(std::size_t micro_batches) const {
  check<ValueError>(static_cast<std::int64_t>(micro_batches) == micro_batches_,
                    "step plan: a step must have ", micro_batches_, " micro-batches, got ",
                    micro_batches);
}

void StepPlan::check_order(const Turn& turn) {
  if (done_ == turns_.size() || turns_[done_] != turn) {
    check(turns_.front() == turn, "step plan: backward must be called for the turns in order, got ",
          "the turn of micro-batch ", turn.index, " after ", done_, " of ", turns_.size(),
          " turns");
    done_ = 0;  // the step before was given up, or this is the next one
  }
  ++done_;
}

void StepPlan::backward(const Turn& turn, const Tensor& objective) {
  backward(std::span(&turn, 1), {objective});
}

void StepPlan::backward(std::span<const Turn> turns, const TensorList& objectives) {
  check(state_->is_root(), "step plan: must have the state of the root, got that of '",
        state_->path(), "'");
  check_objectives(turns, objectives);
  const auto before = done_;
  for (const auto& turn : turns) check_order(turn);
  const auto& last = turns.back();
  const bool ends_pair = done_ % 2 == 0;
  state_->set_requires_gradient_sync(last.last || accumulation_ == Accumulation::kReduceEach ||
                                     accumulation_ == Accumulation::kScatterEach ||
                                     (accumulation_ == Accumulation::kReducePairs && ends_pair));
  if (accumulation_ == Accumulation::kScatterEach) state_->set_requires_all_reduce(last.last);
  TensorList roots;
  for (std::size_t j = 0; j < turns.size(); ++j) {
    roots.push_back(turns[j].idle ? objectives[j] * 0.0 : objectives[j]);
  }
  const auto after = std::exchange(done_, before);  // unless it fails
  run_backward(roots, TensorList(roots.size()), /*retain_graph=*/false);
  done_ = after;
}

void StepPlan::check_objectives(std::span<const Turn> turns, const TensorList& objectives) const {
  check<ValueError>(!turns.empty() && objectives.size() == turns.size(),
                    "step plan: backward must have an objective for each turn, got ",
                    objectives.size(), " for ", turns.size(), " turns");
  const bool pairs = accumulation_ == Accumulation::kReducePairs;
  check(turns.size() == 1 || pairs || accumulation_ == Accumulation::kKeepUntilLast,
        "step plan: a backward for several turns must be under kKeepUntilLast or kReducePairs; "
        "otherwise the gradients of each turn are reduced by themselves");
  const bool begins_pair = turns.front() == turns_.front() || done_ % 2 == 0;
  check(turns.size() == 1 || !pairs || (turns.size() == 2 && begins_pair),
        "step plan: under kReducePairs a backward for several turns must be for one pair, got ",
        turns.size(), " turns after ", done_);
  for (std::size_t j = 0; j < turns.size(); ++j) {
    const auto& function = objectives[j].grad_fn();
    const int number = function ? function->micro_batch().number : 0;
    check<ValueError>(number == static_cast<int>(j), "step plan: objective ", j,
                      " must be computed under MicroBatchGuard(", j,
                      "), got one of MicroBatchGuard(", number, ")");
  }
}

double StepPlan::sum(std::span<const double> own) const {
  check_one_per_turn(own.size());
  std::vector<double> terms(static_cast<std::size_t>(micro_batches_));
  for (std::size_t i = 0; i < own.size(); ++i) {
    if (!turns_[i].idle) terms[static_cast<std::size_t>(turns_[i].index)] = own[i];
  }
  return sum_in_order(std::move(terms), ranks());
}

std::int64_t StepPlan::sum(std::span<const std::int64_t> own) const {
  check_one_per_turn(own.size());
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < own.size(); ++i) sum += turns_[i].idle ? 0 : own[i];
  sum_over(ranks(), std::span(&sum, 1));
  return sum;
}

void StepPlan::check_one_per_turn(std::size_t count) const {
  check<ValueError>(count == turns_.size(), "step plan: a sum must have a value for each of ",
                    turns_.size(), " turns, got ", count);
}

}  // namespace moegrad::fsdp
