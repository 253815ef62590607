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
  ops::RowPlan plan;
  std::vector<Row> rows;
};

/// The second half of what each rank sends is put behind all first halves.
inline Planned plan_for(int rank, int ranks) {
  Planned planned;
  std::vector<std::int64_t> row_of_slot(static_cast<std::size_t>(tokens_of(rank) * kTopK));
  std::vector<std::int64_t> slot_of_row, sent, received;
  for (int to = 0; to < ranks; ++to) {
    const auto rows = rows_between(rank, to, ranks);
    for (const auto& row : rows) {
      row_of_slot[static_cast<std::size_t>(row.slot)] = std::ssize(slot_of_row);
      slot_of_row.push_back(row.slot);
    }
    sent.push_back(std::ssize(rows));
  }
  std::vector<Row> second_halves;
  for (int from = 0; from < ranks; ++from) {
    const auto rows = rows_between(from, rank, ranks);
    const auto half = std::ssize(rows) / 2;
    planned.rows.insert(planned.rows.end(), rows.begin(), rows.begin() + half);
    second_halves.insert(second_halves.end(), rows.begin() + half, rows.end());
    received.insert(received.end(), {half, std::ssize(rows) - half});
  }
  planned.rows.insert(planned.rows.end(), second_halves.begin(), second_halves.end());
  const auto slots = std::ssize(slot_of_row);
  planned.plan = {.row_of_slot = Tensor::from(row_of_slot, {slots}),
                  .slot_of_row = Tensor::from(slot_of_row, {slots}),
                  .tokens = tokens_of(rank),
                  .top_k = kTopK,
                  .sent = {1, sent},
                  .received = {ranks, received}};
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
