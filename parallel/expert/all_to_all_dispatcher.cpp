// SPDX-License-Identifier: Apache-2.0
// Shapes: T tokens, H hidden size, M rows that have come to the experts of this rank.
#include "parallel/expert/all_to_all_dispatcher.h"

#include <any>
#include <cstddef>
#include <numeric>
#include <utility>

#include "framework/runtime/error.h"
#include "framework/runtime/rank_context.h"

namespace moegrad::parallel {

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
  const auto route = exchange_.plan(plan);
  auto groups = ops::group_rows(route.sources);

  const auto own = static_cast<std::size_t>(exchange_.group().rank());
  const auto& of_own = route.sources[own];
  const auto stay = std::accumulate(of_own.begin(), of_own.end(), std::int64_t{0});
  auto& counters = RankContext::current().counters();
  counters.rows_sent += plan.groups.offsets.back() - stay;
  counters.rows_received += groups.offsets.back() - stay;

  Tensor rows = send_rows(route, x, "rows for the experts");                  // [M, H]
  Tensor weights = send_slots(route, routed.weights, "weights of the rows");  // [M]
  return {.rows = std::move(rows),
          .weights = std::move(weights),
          .groups = std::move(groups),
          .tokens_per_expert = std::move(plan.groups.counts),
          .way_back = route};
}

Tensor AllToAllDispatcher::combine(const Tensor& rows,  // [M, H]
                                   const nn::DispatchedRows& dispatched) {
  const auto* const route = std::any_cast<RowExchange::Route>(&dispatched.way_back);
  check(route != nullptr,
        "AllToAllDispatcher: must combine rows that it has dispatched, got those of another");
  return return_rows(*route, rows, "results of the experts");  // [T, H]
}

}  // namespace moegrad::parallel
