// SPDX-License-Identifier: Apache-2.0
#include "ops/dispatch_rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "framework/autograd/grad_mode.h"
#include "framework/distributed/collectives.h"
#include "framework/distributed/launch.h"
#include "framework/tensor/fill.h"
#include "ops/elementwise.h"
#include "ops/reduce.h"
#include "tests/testing.h"

namespace moegrad::dispatch_rows_test {
namespace {

using ops::DispatchPlan;
using test::bitwise_equal;
using test::message_of;
using test::randn;

constexpr std::int64_t kTopK = 2;

// Rank 1 has no tokens, the others have different numbers of them.
std::int64_t tokens_of(int rank) { return rank == 1 ? 0 : 3 + rank; }

// The rank that a slot's row goes to. Rank 2 of 4 gets none.
int destination(int rank, std::int64_t slot, int ranks) {
  const auto to = static_cast<int>((rank + 3 * slot + slot / 4) % ranks);
  return ranks == 4 && to == 2 ? 3 : to;
}

/// A row of a slot of another rank.
struct Row {
  int source = 0;
  std::int64_t slot = 0;
};

std::vector<Row> rows_between(int from, int to, int ranks) {
  std::vector<Row> rows;
  for (std::int64_t slot = 0; slot < tokens_of(from) * kTopK; ++slot) {
    if (destination(from, slot, ranks) == to) rows.push_back({from, slot});
  }
  return rows;
}

/// A plan, and what the rows [M] are that come.
struct Planned {
  DispatchPlan plan;
  std::vector<Row> rows;
};

// The second half of what each rank sends is put before all first halves.
Planned plan_for(int rank, int ranks) {
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

Tensor tokens(int rank, std::int64_t hidden, Dtype dtype) {
  return randn({tokens_of(rank), hidden}, 10 + static_cast<std::uint64_t>(rank), dtype, true);
}
Tensor results(int rank, const Planned& planned, std::int64_t hidden, Dtype dtype) {
  return randn({std::ssize(planned.rows), hidden}, 30 + static_cast<std::uint64_t>(rank), dtype,
               true);
}

// Row `row` of x as a tensor [1, H].
Tensor row_of(const Tensor& x, std::int64_t row) { return Tensor::narrow(x.detach(), 0, row, 1); }

void put(const Tensor& table, std::int64_t row, const Tensor& values) {
  Tensor place = Tensor::narrow(table, 0, row, 1);
  copy_(place, values);
}

class RowsOnTheirWay : public ::testing::TestWithParam<int> {};

// Widths of none, of one, of a few, and of rows that do not fit into a header of MPI.
TEST_P(RowsOnTheirWay, ComeToTheirPlacesAndBackToTheirTokens) {
  const int ranks = GetParam();
  launch(ranks, [&](RankContext& context) {
    const int rank = context.rank();
    const auto planned = plan_for(rank, ranks);
    for (const auto dtype : {Dtype::kFloat32, Dtype::kFloat64}) {
      for (const std::int64_t hidden : {0, 1, 5, 1000}) {
        SCOPED_TRACE(hidden);
        const Tensor sent =
            ops::dispatch_rows(context.group(), tokens(rank, hidden, dtype), planned.plan);
        Tensor expected = Tensor::empty({std::ssize(planned.rows), hidden}, dtype);
        for (std::size_t i = 0; i < planned.rows.size(); ++i) {
          const auto& [source, slot] = planned.rows[i];
          put(expected, static_cast<std::int64_t>(i),
              row_of(tokens(source, hidden, dtype), slot / kTopK));
        }
        EXPECT_TRUE(bitwise_equal(sent, expected));

        const Tensor back =
            ops::combine_rows(context.group(), results(rank, planned, hidden, dtype), planned.plan);
        Tensor sums = Tensor::zeros({tokens_of(rank), hidden}, dtype);
        for (std::int64_t slot = 0; slot < tokens_of(rank) * kTopK; ++slot) {
          const int there = destination(rank, slot, ranks);
          const auto at_rank = plan_for(there, ranks);
          const Tensor rows = results(there, at_rank, hidden, dtype);
          for (std::size_t i = 0; i < at_rank.rows.size(); ++i) {
            if (at_rank.rows[i].source != rank || at_rank.rows[i].slot != slot) continue;
            put(sums, slot / kTopK,
                row_of(sums, slot / kTopK) + row_of(rows, static_cast<std::int64_t>(i)));
          }
        }
        EXPECT_TRUE(bitwise_equal(back, sums));
      }
    }
  });
}

// The objective is the sum over the ranks of <cotangent, y>, in which combine_rows follows
// dispatch_rows.
TEST_P(RowsOnTheirWay, GradientsMatchFiniteDifferencesOfTheSumOfAllRanksObjectives) {
  const int ranks = GetParam();
  launch(ranks, [&](RankContext& context) {
    const int rank = context.rank();
    const auto planned = plan_for(rank, ranks);
    const Tensor scale = results(rank, planned, 3, Dtype::kFloat64).detach();
    const auto objective = [&](const Tensor& x) {
      const Tensor rows = ops::dispatch_rows(context.group(), x, planned.plan);
      const Tensor y = ops::combine_rows(context.group(), rows * rows * scale, planned.plan);
      return ops::sum(y * randn(y.shape(), 50 + static_cast<std::uint64_t>(rank)));
    };
    const Tensor x = tokens(rank, 3, Dtype::kFloat64);
    objective(x).backward();
    const Tensor grad = x.grad();
    ASSERT_TRUE(grad.defined());
    constexpr double kStep = 1e-5;
    for (int mover = 0; mover < ranks; ++mover) {
      for (std::int64_t i = 0; i < 3 * tokens_of(mover); ++i) {
        const auto at = [&](double step) {
          const NoGradGuard no_grad;
          Tensor moved = clone(x);
          if (mover == rank) moved.mutable_data<double>()[static_cast<std::size_t>(i)] += step;
          return all_reduce(*context.group(), objective(moved).item());
        };
        const double expected = (at(kStep) - at(-kStep)) / (2 * kStep);
        if (mover != rank) continue;
        EXPECT_NEAR(grad.data<double>()[static_cast<std::size_t>(i)], expected,
                    1e-7 * (1 + std::abs(expected)))
            << i;
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(OnRanks, RowsOnTheirWay, ::testing::Values(1, 2, 3, 4));

TEST(DispatchRows, ReadsAStridedInput) {
  launch(2, [](RankContext& context) {
    const auto planned = plan_for(context.rank(), 2);
    const Tensor wide = tokens(context.rank(), 6, Dtype::kFloat64);
    const Tensor x = Tensor::narrow(wide, 1, 2, 3);
    EXPECT_TRUE(bitwise_equal(ops::dispatch_rows(context.group(), x, planned.plan),
                              ops::dispatch_rows(context.group(), clone(x), planned.plan)));
  });
}

TEST(DispatchRows, CountsWhatGoesToOtherRanks) {
  launch(2, [](RankContext& context) {
    const auto planned = plan_for(context.rank(), 2);
    const auto other = static_cast<std::size_t>(1 - context.rank());
    const std::int64_t out = planned.plan.sent[other], in = planned.plan.received[other];
    EXPECT_GT(out + in, 0);
    const auto& counters = context.counters();
    const Tensor x = tokens(context.rank(), 3, Dtype::kFloat64);
    const Tensor rows = ops::dispatch_rows(context.group(), x, planned.plan);
    EXPECT_EQ(counters.exchanged_bytes_sent, out * 3 * 8);
    EXPECT_EQ(counters.exchanged_bytes_received, in * 3 * 8);
    ops::sum(ops::combine_rows(context.group(), rows, planned.plan)).backward();
    EXPECT_EQ(counters.exchanged_bytes_sent, 2 * (out + in) * 3 * 8);
    EXPECT_EQ(counters.exchanged_bytes_received, 2 * (out + in) * 3 * 8);
  });
}

TEST(DispatchRows, RefusesWhatDoesNotFit) {
  launch(2, [](RankContext& context) {
    const int rank = context.rank();
    const auto& group = context.group();
    // Of a rank with 5 tokens, to which 7 rows come.
    constexpr std::int64_t m = 7;
    auto good = plan_for(2, 2);
    good.plan.received = {3, 4};
    good.plan.places = {{4, 3}, {0, 4}};
    const Tensor x = randn({5, 3}), rows = randn({m, 3});
    const auto with = [&](const std::function<void(DispatchPlan&)>& change) {
      return message_of<Error>([&] {
        auto plan = good.plan;
        change(plan);
        ops::dispatch_rows(group, x, plan);
      });
    };
    const auto integers = [](const std::vector<std::int64_t>& values) {
      return Tensor::from(values, {std::ssize(values)});
    };
    EXPECT_EQ(message_of<ValueError>([&] { ops::dispatch_rows(nullptr, x, good.plan); }),
              "dispatch_rows: needs a process group, got null");
    EXPECT_EQ(message_of<ValueError>([&] { ops::combine_rows(nullptr, rows, good.plan); }),
              "combine_rows: needs a process group, got null");
    EXPECT_EQ(message_of<ShapeError>([&] {
                ops::dispatch_rows(group, randn({4, 3}), good.plan);
              }),
              "dispatch_rows: x must be [5, H] as planned, got [4, 3]");
    EXPECT_EQ(message_of<ShapeError>([&] { ops::dispatch_rows(group, randn({5}), good.plan); }),
              "dispatch_rows: x must be a matrix, got [5]");
    EXPECT_EQ(message_of<ShapeError>([&] {
                ops::combine_rows(group, randn({m + 1, 3}), good.plan);
              }),
              "combine_rows: rows must be [" + std::to_string(m) + ", H] as planned, got [" +
                  std::to_string(m + 1) + ", 3]");
    EXPECT_EQ(message_of<DtypeError>([&] {
                ops::dispatch_rows(group, Tensor::zeros({5, 3}, Dtype::kInt64), good.plan);
              }),
              "dispatch_rows: x must be float32 or float64, got int64");
    EXPECT_EQ(with([](auto& plan) { plan.sent.pop_back(); }),
              "dispatch_rows: plan.sent must have one count for each of 2 ranks, got 1");
    EXPECT_EQ(with([](auto& plan) { plan.received[1] = -1; }),
              "dispatch_rows: plan.received must be at least 0, and at most 2^53 together, got -1");
    EXPECT_EQ(with([](auto& plan) { ++plan.sent[0]; }),
              "dispatch_rows: plan.sent must add up to the 10 rows of the order, got 11");
    EXPECT_EQ(with([](auto& plan) { plan.order.tokens = 6; }),
              "dispatch_rows: the order must have a row for each of 2 slots of each of 6 tokens, "
              "got 10 rows of 10 slots");
    EXPECT_EQ(with([](auto& plan) { plan.order.top_k = std::int64_t{1} << 62; }),
              "dispatch_rows: the order must have a row for each of 4611686018427387904 slots of "
              "each of 5 tokens, got 10 rows of 10 slots");
    EXPECT_EQ(with([](auto& plan) { plan.order.top_k = 0; }),
              "dispatch_rows: the order must have a row for each of 0 slots of each of 5 tokens, "
              "got 10 rows of 10 slots");
    EXPECT_EQ(with([&](auto& plan) {
                plan.order.row_of_slot = integers({0, 1});
              }),
              "dispatch_rows: the order must have a row for each of 2 slots of each of 5 tokens, "
              "got 10 rows of 2 slots");
    EXPECT_EQ(with([&](auto& plan) {
                plan.order.slot_of_row = integers({0, 1, 2, 3, 4, 5, 6, 7, 8, 10});
                plan.order.row_of_slot = integers({0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
              }),
              "dispatch_rows: row_of_slot must be the inverse of slot_of_row, got slot 10 for row "
              "9");
    EXPECT_EQ(with([&](auto& plan) {
                plan.order.slot_of_row = integers({0, 1, 2, 3, 4, 5, 6, 7, 8, 8});
                plan.order.row_of_slot = integers({0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
              }),
              "dispatch_rows: row_of_slot must be the inverse of slot_of_row, got slot 8 for row "
              "9");
    EXPECT_EQ(
        with([](auto& plan) { plan.order.slot_of_row = Tensor::zeros({10}, Dtype::kFloat64); }),
        "dispatch_rows: the order must be int64, got float64");
    EXPECT_EQ(with([](auto& plan) {
                plan.order.slot_of_row = Tensor::zeros({5, 2}, Dtype::kInt64);
              }),
              "dispatch_rows: the order must be two contiguous vectors, got [5, 2]");
    const auto all = std::to_string(m);
    EXPECT_EQ(with([&](auto& plan) {
                plan.places = {{0, m - 1}};
              }),
              "dispatch_rows: the places must be each of " + all + " rows once, got " +
                  std::to_string(m - 1));
    EXPECT_EQ(with([&](auto& plan) {
                plan.places = {{0, 2}, {1, m - 2}};
              }),
              "dispatch_rows: the places must be each of " + all + " rows once, got 1 and " +
                  std::to_string(m - 2) + " after 2");
    EXPECT_EQ(with([&](auto& plan) {
                plan.places = {{0, std::int64_t{1} << 62}};
              }),
              "dispatch_rows: the places must be each of " + all +
                  " rows once, got 0 and 4611686018427387904 after 0");
    EXPECT_EQ(with([&](auto& plan) {
                plan.places = {{0, -1}, {-1, m + 1}};
              }),
              "dispatch_rows: the places must be each of " + all + " rows once, got -1 and " +
                  std::to_string(m + 1) + " after 0");
    // Both ranks have said how wide their rows are.
    const auto planned = plan_for(rank, 2);
    const auto message = message_of<CollectiveError>([&] {
      const Tensor own_width = randn({tokens_of(rank), rank + 1});
      ops::sum(ops::dispatch_rows(group, own_width, planned.plan)).item();
    });
    EXPECT_NE(message.find("all_to_all"), std::string::npos) << message;
    EXPECT_NE(message.find("which expects"), std::string::npos) << message;
  });
}

}  // namespace
}  // namespace moegrad::dispatch_rows_test
