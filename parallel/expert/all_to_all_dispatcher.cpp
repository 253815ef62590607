// SPDX-License-Identifier: Apache-2.0
// Shapes: T tokens, H hidden size, K experts per token, R = T * K rows by expert; E experts on S
// ranks; M rows that have come to the experts of this rank.
#include "parallel/expert/all_to_all_dispatcher.h"

#include <any>
#include <chrono>
#include <cstddef>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "framework/runtime/error.h"
#include "framework/runtime/rank_context.h"
#include "ops/collectives.h"
#include "ops/copies.h"
#include "ops/indexing.h"
#include "ops/views.h"

namespace moegrad::parallel {
namespace {

using RowCounts = std::vector<std::int64_t>;

/// What combine() needs of a dispatch().
struct WayBack {
  ops::Permutation by_choice;  // this rank's rows, by expert
  RowCounts sent, received;    // rows, by rank
  ops::Permutation by_source;  // the rows that have come, by expert
};

// Of each rank's part of the experts.
RowCounts rows_by_rank(const RowCounts& tokens_per_expert, std::int64_t experts_of_a_rank) {
  RowCounts rows;
  for (auto first = tokens_per_expert.begin(); first != tokens_per_expert.end();) {
    const auto last = first + experts_of_a_rank;
    rows.push_back(std::accumulate(first, last, std::int64_t{0}));
    first = last;
  }
  return rows;
}

RowCounts rows_by_source(const ops::SourceCounts& sources) {
  RowCounts rows;
  for (const auto& counts : sources) {
    rows.push_back(std::accumulate(counts.begin(), counts.end(), std::int64_t{0}));
  }
  return rows;
}

// From (source, expert, slot) to (expert, source, slot).
ops::Permutation sort_by_expert(const ops::RowGroups& groups) {
  const auto rows = groups.offsets.back();
  ops::Permutation permutation{.row_of_slot = Tensor::empty({rows}, Dtype::kInt64),
                               .slot_of_row = Tensor::empty({rows}, Dtype::kInt64),
                               .tokens = rows,
                               .top_k = 1};
  const auto row_of_slot = permutation.row_of_slot.mutable_data<std::int64_t>();
  const auto slot_of_row = permutation.slot_of_row.mutable_data<std::int64_t>();
  auto next = groups.offsets;
  std::int64_t slot = 0;
  for (const auto& counts : groups.sources) {
    for (std::size_t e = 0; e < counts.size(); ++e) {
      for (std::int64_t i = 0; i < counts[e]; ++i, ++slot) {
        const auto row = next[e]++;
        row_of_slot[static_cast<std::size_t>(slot)] = row;
        slot_of_row[static_cast<std::size_t>(row)] = slot;
      }
    }
  }
  return permutation;
}

}  // namespace

AllToAllDispatcher::AllToAllDispatcher(std::shared_ptr<ProcessGroup> group,
                                       std::int64_t num_experts)
    : group_(std::move(group)), num_experts_(num_experts) {
  check<ValueError>(group_ != nullptr, "AllToAllDispatcher: needs a process group, got null");
  check<ValueError>(num_experts >= 1 && num_experts % group_->size() == 0,
                    "AllToAllDispatcher: the ", group_->size(), " ranks of group '", group_->name(),
                    "' must divide the experts, got ", num_experts);
}

// [S][E / S]: the rows that each rank sends to the experts of this one.
ops::SourceCounts AllToAllDispatcher::exchange_counts(const RowCounts& tokens_per_expert) const {
  const auto ranks = static_cast<std::size_t>(group_->size());
  const auto each = static_cast<std::size_t>(num_experts_) / ranks;
  const RowCounts of_each(ranks, static_cast<std::int64_t>(each));
  RowCounts received(tokens_per_expert.size());
  const auto begin = std::chrono::steady_clock::now();
  group_
      ->all_to_all(std::as_bytes(std::span(tokens_per_expert)), of_each,
                   std::as_writable_bytes(std::span(received)), of_each, Dtype::kInt64,
                   {.label = "rows of each expert"})
      ->wait();
  const std::chrono::nanoseconds waited = std::chrono::steady_clock::now() - begin;
  RankContext::current().counters().exchange_wait += waited.count();
  ops::SourceCounts sources;
  for (std::size_t s = 0; s < ranks; ++s) {
    const auto first = received.begin() + static_cast<std::ptrdiff_t>(s * each);
    sources.emplace_back(first, first + static_cast<std::ptrdiff_t>(each));
  }
  return sources;
}

nn::DispatchedRows AllToAllDispatcher::dispatch(const Tensor& x,  // [T, H]
                                                const nn::Router::Output& routed) {
  auto plan = ops::plan_routing(routed.indices, num_experts_);
  auto groups = ops::group_rows(exchange_counts(plan.groups.counts));
  WayBack way_back{.by_choice = std::move(plan.permutation),
                   .sent = rows_by_rank(plan.groups.counts, num_experts_ / group_->size()),
                   .received = rows_by_source(groups.sources),
                   .by_source = sort_by_expert(groups)};
  const auto& [by_choice, sent, received, by_source] = way_back;
  auto& counters = RankContext::current().counters();
  const auto own = static_cast<std::size_t>(group_->rank());
  counters.rows_sent += by_choice.slot_of_row.numel() - sent[own];
  counters.rows_received += groups.offsets.back() - received[own];
  const Tensor by_slot = ops::reshape(routed.weights, {routed.weights.numel()});    // [T * K]
  const Tensor own_rows = ops::permute_rows(x, by_choice);                          // [R, H]
  const Tensor own_weights = ops::index_select(by_slot, 0, by_choice.slot_of_row);  // [R]
  const Tensor rows =
      ops::all_to_all(group_, own_rows, sent, received, {.label = "rows for the experts"});
  const Tensor weights =
      ops::all_to_all(group_, own_weights, sent, received, {.label = "weights of the rows"});
  return {.rows = ops::permute_rows(rows, by_source),                       // [M, H]
          .weights = ops::index_select(weights, 0, by_source.slot_of_row),  // [M]
          .groups = std::move(groups),
          .tokens_per_expert = std::move(plan.groups.counts),
          .way_back = std::move(way_back)};
}

Tensor AllToAllDispatcher::combine(const Tensor& rows,  // [M, H]
                                   const nn::DispatchedRows& dispatched) {
  const auto* const way_back = std::any_cast<WayBack>(&dispatched.way_back);
  check(way_back != nullptr,
        "AllToAllDispatcher: must combine rows that it has dispatched, got those of another");
  const auto& [by_choice, sent, received, by_source] = *way_back;
  const Tensor by_rank = ops::unpermute_rows(rows, by_source);  // [M, H]
  const Tensor own =
      ops::all_to_all(group_, by_rank, received, sent, {.label = "results of the experts"});
  return ops::unpermute_rows(own, by_choice);  // [R, H] -> [T, H]
}

}  // namespace moegrad::parallel
