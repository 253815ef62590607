// SPDX-License-Identifier: Apache-2.0
// Shapes: S = H * L ranks on H hosts of L; E experts; h, l: a host and a place there.
#include "parallel/expert/row_exchange.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "framework/runtime/error.h"
#include "framework/runtime/rank_context.h"
#include "ops/views.h"

namespace moegrad::parallel {
namespace {

using RowCounts = std::vector<std::int64_t>;
using Group = std::shared_ptr<ProcessGroup>;

// Each rank gives each as many counts; those from all, by rank.
RowCounts exchange_counts(ProcessGroup& group, const RowCounts& counts) {
  const RowCounts per_rank(static_cast<std::size_t>(group.size()),
                           std::ssize(counts) / group.size());
  RowCounts received(counts.size());
  const auto begin = std::chrono::steady_clock::now();
  group
      .all_to_all(std::as_bytes(std::span(counts)), per_rank,
                  std::as_writable_bytes(std::span(received)), per_rank, Dtype::kInt64,
                  {.label = "rows of each expert"})
      ->wait();
  const std::chrono::nanoseconds waited = std::chrono::steady_clock::now() - begin;
  RankContext::current().counters().exchange_wait += waited.count();
  return received;
}

// [A, B, n] -> [B, A, n]
RowCounts transposed(const RowCounts& counts, std::int64_t a, std::int64_t b) {
  const auto n = std::ssize(counts) / (a * b);
  RowCounts result;
  for (std::int64_t j = 0; j < b; ++j) {
    for (std::int64_t i = 0; i < a; ++i) {
      const auto block = counts.begin() + (i * b + j) * n;
      result.insert(result.end(), block, block + n);
    }
  }
  return result;
}

// The rows of `routed`, which are in the order of (host, place, expert), in that of (place, host,
// expert). `sent` are their counts in that order.
ops::RowPlan sorted_by_place(const ops::RowPlan& routed, std::int64_t hosts,
                             std::int64_t ranks_per_host, const RowCounts& sent) {
  ops::RowPlan plan{.row_of_slot = Tensor::empty(routed.row_of_slot.shape(), Dtype::kInt64),
                    .slot_of_row = Tensor::empty(routed.slot_of_row.shape(), Dtype::kInt64),
                    .tokens = routed.tokens,
                    .top_k = routed.top_k,
                    .sent = {1, sent}};
  const auto slots = routed.slot_of_row.data<std::int64_t>();
  const auto row_of_slot = plan.row_of_slot.mutable_data<std::int64_t>();
  const auto slot_of_row = plan.slot_of_row.mutable_data<std::int64_t>();
  std::size_t before = 0;
  const ops::RowGroups by_place(hosts, routed.sent.sums_of_parts(hosts * ranks_per_host));
  for (const auto& [first, count] : by_place.runs()) {
    for (auto row = first; row < first + count; ++row, ++before) {
      slot_of_row[static_cast<std::size_t>(row)] = slots[before];
      row_of_slot[static_cast<std::size_t>(slots[before])] = row;
    }
  }
  return plan;
}

}  // namespace

RowExchange::RowExchange(Group group) : group_(std::move(group)) {
  check<ValueError>(group_ != nullptr, "RowExchange: needs a process group, got null");
}

RowExchange::RowExchange(Group group, Group within, Group between)
    : group_(std::move(group)), within_(std::move(within)), between_(std::move(between)) {
  check<ValueError>(group_ != nullptr && within_ != nullptr && between_ != nullptr,
                    "RowExchange: needs three process groups, got null");
  const int hosts = between_->size(), ranks_per_host = within_->size();
  const int index = between_->rank() * ranks_per_host + within_->rank();
  check<ValueError>(hosts * ranks_per_host == group_->size() && index == group_->rank(),
                    "RowExchange: rank ", within_->rank(), " of ", ranks_per_host, " on host ",
                    between_->rank(), " of ", hosts, " must be rank ", index, " of ",
                    hosts * ranks_per_host, ", got rank ", group_->rank(), " of ", group_->size());
}

RowExchange::Route RowExchange::plan(const ops::RowPlan& routed) const {
  const auto& own = routed.sent.counts_by_source();
  if (!has_two_levels()) {
    auto plan = routed;
    plan.received = {group_->size(), exchange_counts(*group_, own)};
    return {{.group = group_, .plan = std::move(plan)}};
  }
  const auto hosts = between_->size(), ranks_per_host = within_->size();
  // What this rank has for (h, l), [H, L, E / S]; what the ranks l of this host have for this
  // rank's place on host h, [L, H, E / S]; and what comes here from (h, l), [H, L, E / S].
  const auto sent = transposed(own, hosts, ranks_per_host);  // [L, H, E / S]
  const ops::RowGroups passing(ranks_per_host, exchange_counts(*within_, sent));
  const auto forwarded = transposed(passing.counts_by_source(), ranks_per_host, hosts);
  auto to_place = sorted_by_place(routed, hosts, ranks_per_host, sent);
  to_place.received = {ranks_per_host, passing.sums_of_parts(ranks_per_host * hosts)};
  const Tensor order = Tensor::arange(passing.rows());  // of hosts, in which they have been put
  return {{.group = within_, .plan = std::move(to_place)},
          {.group = between_,
           .plan = {.row_of_slot = order,
                    .slot_of_row = order,
                    .tokens = passing.rows(),
                    .top_k = 1,
                    .sent = {1, forwarded},
                    .received = {group_->size(), exchange_counts(*between_, forwarded)}}}};
}

Tensor send_rows(const RowExchange::Route& route, const Tensor& x, const std::string& label) {
  Tensor rows = x;
  for (const auto& leg : route) {
    rows = ops::dispatch_rows(leg.group, rows, leg.plan, {.label = label});
  }
  return rows;
}

Tensor send_slots(const RowExchange::Route& route, const Tensor& values, const std::string& label) {
  auto of_slots = route;
  auto& plan = of_slots.front().plan;
  plan.tokens = values.numel();
  plan.top_k = 1;
  const Tensor sent = send_rows(of_slots, ops::reshape(values, {values.numel(), 1}), label);
  return ops::reshape(sent, {sent.numel()});
}

Tensor return_rows(const RowExchange::Route& route, const Tensor& y, const std::string& label) {
  Tensor rows = y;
  for (auto leg = route.rbegin(); leg != route.rend(); ++leg) {
    rows = ops::combine_rows(leg->group, rows, leg->plan, {.label = label});
  }
  return rows;
}

}  // namespace moegrad::parallel
