// SPDX-License-Identifier: Apache-2.0
// Shapes: T tokens, H hidden size, M rows that have come to the experts of this rank.
#include "parallel/expert/all_to_all_dispatcher.h"

#include <cstddef>
#include <memory>
#include <utility>

#include "framework/runtime/error.h"
#include "framework/runtime/rank_context.h"

namespace moegrad::parallel {
namespace {

struct RouteOfRows final : nn::DispatchMetadata {
  explicit RouteOfRows(RowExchange::Route taken) : route(std::move(taken)) {}
  RowExchange::Route route;
};

}  // namespace

AllToAllDispatcher::AllToAllDispatcher(RowExchange exchange, std::int64_t num_experts,
                                       bool one_micro_batch)
    : exchange_(std::move(exchange)), num_experts_(num_experts), one_micro_batch_(one_micro_batch) {
  const auto& group = exchange_.group();
  check<ValueError>(num_experts >= 1 && num_experts % group.size() == 0, "AllToAllDispatcher: the ",
                    group.size(), " ranks of group '", group.name(),
                    "' must divide the experts, got ", num_experts);
}

nn::DispatchedRows AllToAllDispatcher::dispatch(const Tensor& x,  // [T, H]
                                                const nn::Router::Output& routed) {
  const auto plan = ops::plan_routing(routed.indices, num_experts_);
  auto route = exchange_.plan(plan);
  const auto& groups = route.back().plan.received;
  const auto own = static_cast<std::size_t>(exchange_.group().rank());
  const auto stay = groups.sums_of_parts(groups.sources())[own];
  auto& counters = RankContext::current().counters();
  counters.rows_sent += plan.sent.rows() - stay;
  counters.rows_received += groups.rows() - stay;

  Tensor rows = send_rows(route, x, "rows for the experts");                  // [M, H]
  Tensor weights = send_slots(route, routed.weights, "weights of the rows");  // [M]
  return {.rows = std::move(rows),
          .weights = std::move(weights),
          .groups = one_micro_batch_ ? groups.of_one_micro_batch() : groups,
          .tokens_per_expert = plan.sent.counts(),
          .metadata = std::make_shared<RouteOfRows>(std::move(route))};
}

Tensor AllToAllDispatcher::combine(const Tensor& rows,  // [M, H]
                                   const nn::DispatchedRows& dispatched) {
  const auto& route = nn::metadata_of<RouteOfRows>(dispatched, "AllToAllDispatcher").route;
  return return_rows(route, rows, "results of the experts");  // [T, H]
}

}  // namespace moegrad::parallel
