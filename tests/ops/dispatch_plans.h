// SPDX-License-Identifier: Apache-2.0
#pragma once

// Rows of different numbers between ranks, and the plans by which they travel.

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <vector>

#include "framework/tensor/tensor.h"
#include "ops/dispatch_rows.h"
#include "tests/testing.h"

namespace moegrad::dispatch_plans {

inline constexpr std::int64_t kTopK = 3;  // the order of a sum of two would not show

/// Rank 1 has no tokens, the others have different numbers of them.
inline std::int64_t tokens_of(int rank) { return rank == 1 ? 0 : 3 + rank; }

/// The rank that a slot's row goes to. Rank 2 of 4 gets none.
inline int destination(int rank, std::int64_t slot, int ranks) {
  const auto to = static_cast<int>((rank + 3 * slot + slot / 4) % ranks);
  return ranks == 4 && to == 2 ? 3 : to;
}

/// A row of a slot of another rank.
struct Row {
  int source = 0;
  std::int64_t slot = 0;
};

/// What rank `from` sends to rank `to`.
inline std::vector<Row> rows_between(int from, int to, int ranks) {
  std::vector<Row> rows;
  for (std::int64_t slot = 0; slot < tokens_of(from) * kTopK; ++slot) {
    if (destination(from, slot, ranks) == to) rows.push_back({from, slot});
  }
  return rows;
}

/// A plan, and what the rows [M] are that come.
struct Planned {
  ops::DispatchPlan plan;
  std::vector<Row> rows;
};

/// The second half of what each rank sends is put before all first halves.
inline Planned plan_for(int rank, int ranks) {
  Planned planned;
  std::vector<std::int64_t> row_of_slot(static_cast<std::size_t>(tokens_of(rank) * kTopK));
  std::vector<std::int64_t> slot_of_row;
  for (int to = 0; to < ranks; ++to) {
    const auto rows = rows_between(rank, to, ranks);
    for (const auto& row : rows) {
      row_of_slot[static_cast<std::size_t>(row.slot)] = std::ssize(slot_of_row);
      slot_of_row.push_back(row.slot);
    }
    planned.plan.sent.push_back(std::ssize(rows));
  }
  const auto slots = std::ssize(slot_of_row);
  planned.plan.order = {.row_of_slot = Tensor::from(row_of_slot, {slots}),
                        .slot_of_row = Tensor::from(slot_of_row, {slots}),
                        .tokens = tokens_of(rank),
                        .top_k = kTopK};
  std::vector<Row> first_halves;
  std::vector<std::int64_t> second_at, second_count;
  for (int from = 0; from < ranks; ++from) {
    const auto rows = rows_between(from, rank, ranks);
    const auto half = static_cast<std::ptrdiff_t>(rows.size() / 2);
    second_at.push_back(std::ssize(planned.rows));
    planned.rows.insert(planned.rows.end(), rows.begin() + half, rows.end());
    first_halves.insert(first_halves.end(), rows.begin(), rows.begin() + half);
    planned.plan.received.push_back(std::ssize(rows));
  }
  auto first_at = std::ssize(planned.rows);
  for (std::size_t from = 0; from < second_at.size(); ++from) {
    const auto half = planned.plan.received[from] / 2;
    planned.plan.places.push_back({first_at, half});
    planned.plan.places.push_back({second_at[from], planned.plan.received[from] - half});
    first_at += half;
  }
  planned.rows.insert(planned.rows.end(), first_halves.begin(), first_halves.end());
  return planned;
}

/// What rank `rank` has before dispatch_rows.
inline Tensor tokens(int rank, std::int64_t hidden, Dtype dtype) {
  return test::randn({tokens_of(rank), hidden}, 10 + static_cast<std::uint64_t>(rank), dtype, true);
}
/// What it has before combine_rows.
inline Tensor results(int rank, const Planned& planned, std::int64_t hidden, Dtype dtype) {
  return test::randn({std::ssize(planned.rows), hidden}, 30 + static_cast<std::uint64_t>(rank),
                     dtype, true);
}

}  // namespace moegrad::dispatch_plans
