// SPDX-License-Identifier: Apache-2.0
// Shapes: T tokens, H hidden size, K experts per token, R = T * K rows by expert; E experts on S
// ranks; M rows that have come to the experts of this rank.
#include "parallel/expert/all_to_all_dispatcher.h"

#include <any>
#include <cstddef>
#include <numeric>
#include <span>
#include <utility>

#include "framework/runtime/error.h"
#include "framework/runtime/rank_context.h"
#include "ops/indexing.h"
#include "ops/views.h"

namespace moegrad::parallel {
namespace {

/// What combine() needs of a dispatch().
struct WayBack {
  ops::Permutation by_choice;  // this rank's rows, by expert
  RowExchange::Route route;
  ops::Permutation by_source;  // the rows that have come, by expert
};

}  // namespace

AllToAllDispatcher::AllToAllDispatcher(RowExchange exchange, std::int64_t num_experts)
    : exchange_(std::move(exchange)), num_experts_(num_experts) {
  const auto& group = exchange_.group();
  check<ValueError>(num_experts >= 1 && num_experts % group.size() == 0, "AllToAllDispatcher: the ",
                    group.size(), " ranks of group '", group.name(),
                    "' must divide the experts, got ", num_experts);
}

nn::DispatchedRows AllToAllDispatcher::dispatch(const Tensor& x,  // [T, H]
                                                const nn::Router::Output& routed) {
  auto plan = ops::plan_routing(routed.indices, num_experts_);
  WayBack way_back{.by_choice = std::move(plan.permutation),
                   .route = exchange_.plan(plan.groups.counts),
                   .by_source = {}};
  way_back.by_source = transpose_blocks(way_back.route.sources);
  const auto& [by_choice, route, by_source] = way_back;
  auto groups = ops::group_rows(route.sources);

  const auto own = static_cast<std::size_t>(exchange_.group().rank());
  const auto here = std::span(plan.groups.counts)
                        .subspan(own * route.sources[own].size(), route.sources[own].size());
  const auto stay = std::accumulate(here.begin(), here.end(), std::int64_t{0});
  auto& counters = RankContext::current().counters();
  counters.rows_sent += by_choice.slot_of_row.numel() - stay;
  counters.rows_received += groups.offsets.back() - stay;

  const Tensor by_slot = ops::reshape(routed.weights, {routed.weights.numel(), 1});  // [T * K, 1]
  const Tensor own_rows = ops::permute_rows(x, by_choice);                           // [R, H]
  const Tensor own_weights = ops::index_select(by_slot, 0, by_choice.slot_of_row);   // [R, 1]
  const Tensor rows = send_rows(route, own_rows, "rows for the experts");
  const Tensor weights = send_rows(route, own_weights, "weights of the rows");
  const Tensor by_expert = ops::index_select(weights, 0, by_source.slot_of_row);  // [M, 1]
  return {.rows = ops::permute_rows(rows, by_source),                             // [M, H]
          .weights = ops::reshape(by_expert, {by_expert.numel()}),                // [M]
          .groups = std::move(groups),
          .tokens_per_expert = std::move(plan.groups.counts),
          .way_back = std::move(way_back)};
}

Tensor AllToAllDispatcher::combine(const Tensor& rows,  // [M, H]
                                   const nn::DispatchedRows& dispatched) {
  const auto* const way_back = std::any_cast<WayBack>(&dispatched.way_back);
  check(way_back != nullptr,
        "AllToAllDispatcher: must combine rows that it has dispatched, got those of another");
  const auto& [by_choice, route, by_source] = *way_back;
  const Tensor by_rank = ops::unpermute_rows(rows, by_source);  // [M, H]
  const Tensor own = return_rows(route, by_rank, "results of the experts");
  return ops::unpermute_rows(own, by_choice);  // [R, H] -> [T, H]
}

}  // namespace moegrad::parallel
