// SPDX-License-Identifier: Apache-2.0
// Plans and tensors that dispatch_rows and combine_rows refuse.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "framework/distributed/launch.h"
#include "framework/tensor/fill.h"
#include "ops/dispatch_rows.h"
#include "ops/reduce.h"
#include "tests/ops/dispatch_plans.h"
#include "tests/ops/indices.h"
#include "tests/testing.h"

namespace moegrad::dispatch_rows_errors_test {
namespace {

using namespace dispatch_plans;
using ops::RowGroups;
using ops::RowPlan;
using namespace test;

TEST(DispatchRows, RefusesWhatDoesNotFit) {
  launch(2, [](RankContext& context) {
    const int rank = context.rank();
    const auto& group = context.group();
    // The plan of a rank with 5 tokens, to which 7 rows come.
    auto good = plan_for(2, 2);
    good.plan.received = {2, {3, 4}};
    const Tensor x = randn({5, 3}), rows = randn({7, 3}), eight_rows = randn({8, 3});
    EXPECT_EQ(message_of<ValueError>([&] { ops::dispatch_rows(nullptr, x, good.plan); }),
              "dispatch_rows: needs a process group, got null");
    EXPECT_EQ(message_of<ValueError>([&] { ops::combine_rows(nullptr, rows, good.plan); }),
              "combine_rows: needs a process group, got null");
    EXPECT_EQ(message_of<ShapeError>([&] { ops::combine_rows(group, eight_rows, good.plan); }),
              "combine_rows: rows must be [7, H] as planned, got [8, 3]");
    const auto of = [&](const Tensor& tensor) {
      return [&, tensor] { ops::dispatch_rows(group, tensor, good.plan); };
    };
    EXPECT_EQ(message_of<ShapeError>(of(randn({4, 3}))),
              "dispatch_rows: x must be [5, H] as planned, got [4, 3]");
    EXPECT_EQ(message_of<ShapeError>(of(randn({5}))), "dispatch_rows: x must be a matrix, got [5]");
    EXPECT_EQ(message_of<DtypeError>(of(Tensor::zeros({5, 3}, Dtype::kInt64))),
              "dispatch_rows: x must be float32, float64 or bfloat16, got int64");

    const auto order = [](const Tensor& row_of_slot, const Tensor& slot_of_row) {
      return [=](RowPlan& plan) {
        plan.row_of_slot = row_of_slot;
        plan.slot_of_row = slot_of_row;
      };
    };
    // Row 14 has slot `last` instead of 14.
    const auto slots = [](std::int64_t last) {
      Tensor tensor = Tensor::arange(15);
      tensor.mutable_data<std::int64_t>()[14] = last;
      return tensor;
    };
    constexpr auto kHuge = std::int64_t{1} << 62;
    struct Case {
      std::function<void(RowPlan&)> change;
      std::string message;
    };
    const std::vector<Case> cases = {
        {[](auto& plan) {
           plan.sent = {1, {15}};
         },
         "plan.sent must have as many counts for each of 2 ranks, got 1"},
        {[](auto& plan) {
           plan.received = {1, {1, 2, 4}};
         },
         "plan.received must have as many counts for each of 2 ranks, got 3"},
        {[](auto& plan) {
           plan.sent = {1, {8, 8}};
         },
         "plan.sent must add up to the 15 rows of the order, got 16"},
        {[](auto& plan) { plan.tokens = 6; },
         "the order must have a row for each of 3 slots of each of 6 tokens, got 15 rows of 15 "
         "slots"},
        {[](auto& plan) { plan.top_k = kHuge; },
         "the order must have a row for each of 4611686018427387904 slots of each of 5 tokens, got "
         "15 rows of 15 slots"},
        {[](auto& plan) { plan.top_k = 0; },
         "the order must have a row for each of 0 slots of each of 5 tokens, got 15 rows of 15 "
         "slots"},
        {order(indices_of({0, 1}), good.plan.slot_of_row),
         "the order must have a row for each of 3 slots of each of 5 tokens, got 15 rows of 2 "
         "slots"},
        // Too high, twice there, negative.
        {order(slots(14), slots(15)),
         "row_of_slot must be the inverse of slot_of_row, got slot 15 for row 14"},
        {order(slots(14), slots(13)),
         "row_of_slot must be the inverse of slot_of_row, got slot 13 for row 14"},
        {order(slots(14), slots(-1)),
         "row_of_slot must be the inverse of slot_of_row, got slot -1 for row 14"},
        {order(slots(14), Tensor::zeros({15}, Dtype::kFloat64)),
         "the order must be int64, got float64"},
        {order(slots(14), Tensor::zeros({5, 3}, Dtype::kInt64)),
         "the order must be two contiguous vectors, got [5, 3]"}};
    for (const auto& each : cases) {
      auto plan = good.plan;
      each.change(plan);
      EXPECT_EQ(message_of<Error>([&] { ops::dispatch_rows(group, x, plan); }),
                "dispatch_rows: " + each.message);
    }
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
    const auto two = indices_of({0, 1});
    if (context.rank() == 0) {  // three rows of two elements for rank 1
      const RowPlan plan = {.row_of_slot = none,
                            .slot_of_row = none,
                            .tokens = 0,
                            .top_k = 1,
                            .sent = {1, {0, 0}},
                            .received = {2, {0, 0, 1, 2}}};
      ops::combine_rows(context.group(), randn({3, 2}), plan);
      return;
    }
    const RowPlan plan = {.row_of_slot = two,  // two rows of three elements
                          .slot_of_row = two,
                          .tokens = 2,
                          .top_k = 1,
                          .sent = {1, {2, 0}},
                          .received = {2, {0, 0}}};
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
