// SPDX-License-Identifier: Apache-2.0
// Plans and tensors that dispatch_rows and combine_rows refuse.
#include <gtest/gtest.h>

#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "framework/distributed/launch.h"
#include "framework/tensor/fill.h"
#include "ops/dispatch_rows.h"
#include "ops/reduce.h"
#include "tests/ops/dispatch_plans.h"
#include "tests/testing.h"

namespace moegrad::dispatch_rows_errors_test {
namespace {

using namespace dispatch_plans;
using ops::DispatchPlan;
using namespace test;

TEST(DispatchRows, RefusesWhatDoesNotFit) {
  launch(2, [](RankContext& context) {
    const int rank = context.rank();
    const auto& group = context.group();
    // The plan of a rank with 5 tokens, to which 7 rows come.
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
              "dispatch_rows: plan.sent must add up to the 15 rows of the order, got 16");
    EXPECT_EQ(with([](auto& plan) { plan.order.tokens = 6; }),
              "dispatch_rows: the order must have a row for each of 3 slots of each of 6 tokens, "
              "got 15 rows of 15 slots");
    EXPECT_EQ(with([](auto& plan) { plan.order.top_k = std::int64_t{1} << 62; }),
              "dispatch_rows: the order must have a row for each of 4611686018427387904 slots of "
              "each of 5 tokens, got 15 rows of 15 slots");
    EXPECT_EQ(with([](auto& plan) { plan.order.top_k = 0; }),
              "dispatch_rows: the order must have a row for each of 0 slots of each of 5 tokens, "
              "got 15 rows of 15 slots");
    EXPECT_EQ(with([&](auto& plan) {
                plan.order.row_of_slot = integers({0, 1});
              }),
              "dispatch_rows: the order must have a row for each of 3 slots of each of 5 tokens, "
              "got 15 rows of 2 slots");
    for (const std::int64_t wrong : {15, 13, -1}) {  // too high, twice there, negative
      EXPECT_EQ(with([&](auto& plan) {
                  std::vector<std::int64_t> slots(15);
                  std::iota(slots.begin(), slots.end(), 0);
                  plan.order.row_of_slot = integers(slots);
                  slots[14] = wrong;
                  plan.order.slot_of_row = integers(slots);
                }),
                "dispatch_rows: row_of_slot must be the inverse of slot_of_row, got slot " +
                    std::to_string(wrong) + " for row 14");
    }
    EXPECT_EQ(
        with([](auto& plan) { plan.order.slot_of_row = Tensor::zeros({15}, Dtype::kFloat64); }),
        "dispatch_rows: the order must be int64, got float64");
    EXPECT_EQ(with([](auto& plan) {
                plan.order.slot_of_row = Tensor::zeros({5, 3}, Dtype::kInt64);
              }),
              "dispatch_rows: the order must be two contiguous vectors, got [5, 3]");
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
                plan.places = {{0, 3}, {4, m - 3}};
              }),
              "dispatch_rows: the places must be each of " + all + " rows once, got 4 and " +
                  std::to_string(m - 3) + " after 3");
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

// The numbers of elements agree, the widths of the rows do not.
TEST(DispatchRows, RefusesPartsThatAreNotWholeRows) {
  launch(2, [](RankContext& context) {
    const auto none = Tensor::zeros({0}, Dtype::kInt64);
    const auto two = Tensor::from(std::vector<std::int64_t>{0, 1}, {2});
    if (context.rank() == 0) {  // three rows of two elements for rank 1
      const DispatchPlan plan = {
          .order = {.row_of_slot = none, .slot_of_row = none, .tokens = 0, .top_k = 1},
          .sent = {0, 0},
          .received = {0, 3},
          .places = {{0, 1}, {1, 2}}};
      ops::combine_rows(context.group(), randn({3, 2}), plan);
      return;
    }
    const DispatchPlan plan = {
        // two rows of three elements
        .order = {.row_of_slot = two, .slot_of_row = two, .tokens = 2, .top_k = 1},
        .sent = {2, 0},
        .received = {0, 0},
        .places = {{0, 0}}};
    const auto message = message_of<Error>([&] {
      clone(ops::combine_rows(context.group(), randn({0, 3}), plan).detach());
    });
    EXPECT_NE(message.find("combine_rows: rows of 24 bytes must come back, got 16 bytes"),
              std::string::npos)
        << message;
  });
}

}  // namespace
}  // namespace moegrad::dispatch_rows_errors_test
