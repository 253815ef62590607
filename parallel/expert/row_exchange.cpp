// SPDX-License-Identifier: Apache-2.0
// Shapes: S = H * L ranks on H hosts of L; E experts; h, l: a host and a place there.
#include "parallel/expert/row_exchange.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <numeric>
#include <span>
#include <utility>

#include "framework/runtime/error.h"
#include "framework/runtime/rank_context.h"
#include "ops/views.h"

namespace moegrad::parallel {
namespace {

using RowCounts = std::vector<std::int64_t>;
using Group = std::shared_ptr<ProcessGroup>;

std::int64_t sum(std::span<const std::int64_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

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

/// A [A, B, n] array of counts.
struct CountBlocks {
  std::size_t a = 0, b = 0;
  RowCounts counts;

  std::span<const std::int64_t> block(std::size_t i, std::size_t j) const {
    const auto n = counts.size() / (a * b);
    return std::span(counts).subspan((i * b + j) * n, n);
  }
  // [B, A, n]
  CountBlocks transposed() const {
    CountBlocks result{.a = b, .b = a, .counts = {}};
    for (std::size_t j = 0; j < b; ++j) {
      for (std::size_t i = 0; i < a; ++i) {
        result.counts.insert(result.counts.end(), block(i, j).begin(), block(i, j).end());
      }
    }
    return result;
  }
  // [A][B]: the sums of the blocks.
  std::vector<RowCounts> sums() const {
    std::vector<RowCounts> result(a, RowCounts(b));
    for (std::size_t i = 0; i < a; ++i) {
      for (std::size_t j = 0; j < b; ++j) result[i][j] = sum(block(i, j));
    }
    return result;
  }
  // [A]
  RowCounts row_sums() const {
    RowCounts result;
    for (const auto& row : sums()) result.push_back(sum(row));
    return result;
  }
};

ops::SourceCounts by_source(const RowCounts& counts, std::size_t ranks) {
  ops::SourceCounts sources;
  const CountBlocks blocks{.a = ranks, .b = 1, .counts = counts};
  for (std::size_t s = 0; s < ranks; ++s) {
    const auto of_source = blocks.block(s, 0);
    sources.emplace_back(of_source.begin(), of_source.end());
  }
  return sources;
}

// For rows in A x B blocks of blocks[a][b] rows: from the order of (a, b) to that of (b, a).
ops::Permutation transpose_blocks(const std::vector<RowCounts>& blocks) {
  const auto columns = blocks.empty() ? 0 : blocks.front().size();
  std::vector<RowCounts> first(blocks.size(), RowCounts(columns));  // row of each block's first
  std::int64_t rows = 0;
  for (std::size_t b = 0; b < columns; ++b) {
    for (std::size_t a = 0; a < blocks.size(); ++a) {
      first[a][b] = rows;
      rows += blocks[a][b];
    }
  }
  ops::Permutation permutation{.row_of_slot = Tensor::empty({rows}, Dtype::kInt64),
                               .slot_of_row = Tensor::empty({rows}, Dtype::kInt64),
                               .tokens = rows,
                               .top_k = 1};
  const auto row_of_slot = permutation.row_of_slot.mutable_data<std::int64_t>();
  const auto slot_of_row = permutation.slot_of_row.mutable_data<std::int64_t>();
  std::int64_t slot = 0;
  for (std::size_t a = 0; a < blocks.size(); ++a) {
    for (std::size_t b = 0; b < columns; ++b) {
      for (std::int64_t i = 0; i < blocks[a][b]; ++i, ++slot) {
        const auto row = first[a][b] + i;
        row_of_slot[static_cast<std::size_t>(slot)] = row;
        slot_of_row[static_cast<std::size_t>(row)] = slot;
      }
    }
  }
  return permutation;
}

// From tokens to rows in one order, and from that to another: one rank's rows in the latter.
ops::Permutation compose(const ops::Permutation& first, const ops::Permutation& second) {
  const auto through = [](const Tensor& indices, const Tensor& next) {
    Tensor result = Tensor::empty(indices.shape(), Dtype::kInt64);
    const auto table = next.data<std::int64_t>();
    std::ranges::transform(indices.data<std::int64_t>(),
                           result.mutable_data<std::int64_t>().begin(),
                           [&](std::int64_t i) { return table[static_cast<std::size_t>(i)]; });
    return result;
  };
  return {.row_of_slot = through(first.row_of_slot, second.row_of_slot),
          .slot_of_row = through(second.slot_of_row, first.slot_of_row),
          .tokens = first.tokens,
          .top_k = first.top_k};
}

// Where the rows of (source, expert) are in the order of (expert, source).
std::vector<ops::RowRun> by_expert(const ops::SourceCounts& sources) {
  const auto experts = sources.front().size();
  std::vector<RowCounts> first(sources.size(), RowCounts(experts));
  std::int64_t rows = 0;
  for (std::size_t e = 0; e < experts; ++e) {
    for (std::size_t s = 0; s < sources.size(); ++s) {
      first[s][e] = rows;
      rows += sources[s][e];
    }
  }
  std::vector<ops::RowRun> places;
  for (std::size_t s = 0; s < sources.size(); ++s) {
    for (std::size_t e = 0; e < experts; ++e) places.push_back({first[s][e], sources[s][e]});
  }
  return places;
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

RowExchange::Route RowExchange::plan(const ops::RoutingPlan& routed) const {
  const auto ranks = static_cast<std::size_t>(group_->size());
  const auto& rows_per_expert = routed.groups.counts;
  if (!has_two_levels()) {
    const auto received = exchange_counts(*group_, rows_per_expert);
    const CountBlocks out{.a = ranks, .b = 1, .counts = rows_per_expert};
    const CountBlocks in{.a = ranks, .b = 1, .counts = received};
    auto sources = by_source(received, ranks);
    return {.legs = {{.group = group_,
                      .plan = {.order = routed.permutation,
                               .sent = out.row_sums(),
                               .received = in.row_sums(),
                               .places = by_expert(sources)}}},
            .sources = sources};
  }
  const auto hosts = static_cast<std::size_t>(between_->size());
  const auto ranks_per_host = static_cast<std::size_t>(within_->size());
  // What this rank has for (h, l), [H, L, E / S]; what the ranks l of this host have for this
  // rank's place on host h, [L, H, E / S]; and what comes here from (h, l), [H, L, E / S].
  const CountBlocks own{.a = hosts, .b = ranks_per_host, .counts = rows_per_expert};
  const auto out = own.transposed();
  const CountBlocks passing{
      .a = ranks_per_host, .b = hosts, .counts = exchange_counts(*within_, out.counts)};
  const auto forwarded = passing.transposed();
  const CountBlocks in{
      .a = hosts, .b = ranks_per_host, .counts = exchange_counts(*between_, forwarded.counts)};
  auto sources = by_source(in.counts, ranks);
  return {.legs = {{.group = within_,
                    .plan = {.order = compose(routed.permutation, transpose_blocks(own.sums())),
                             .sent = out.row_sums(),
                             .received = passing.row_sums(),
                             .places = {{.first = 0, .count = sum(passing.counts)}}}},
                   {.group = between_,
                    .plan = {.order = transpose_blocks(passing.sums()),
                             .sent = forwarded.row_sums(),
                             .received = in.row_sums(),
                             .places = by_expert(sources)}}},
          .sources = sources};
}

Tensor send_rows(const RowExchange::Route& route, const Tensor& x, const std::string& label) {
  Tensor rows = x;
  for (const auto& leg : route.legs) {
    rows = ops::dispatch_rows(leg.group, rows, leg.plan, {.label = label});
  }
  return rows;
}

Tensor send_slots(const RowExchange::Route& route, const Tensor& values, const std::string& label) {
  auto of_slots = route;
  auto& order = of_slots.legs.front().plan.order;
  order.tokens = values.numel();
  order.top_k = 1;
  const Tensor sent = send_rows(of_slots, ops::reshape(values, {values.numel(), 1}), label);
  return ops::reshape(sent, {sent.numel()});
}

Tensor return_rows(const RowExchange::Route& route, const Tensor& y, const std::string& label) {
  Tensor rows = y;
  for (auto leg = route.legs.rbegin(); leg != route.legs.rend(); ++leg) {
    rows = ops::combine_rows(leg->group, rows, leg->plan, {.label = label});
  }
  return rows;
}

}  // namespace moegrad::parallel
