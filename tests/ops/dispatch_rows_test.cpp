// SPDX-License-Identifier: Apache-2.0
#include "ops/dispatch_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "framework/distributed/collectives.h"
#include "framework/distributed/launch.h"
#include "framework/runtime/grad_mode.h"
#include "framework/tensor/fill.h"
#include "ops/elementwise.h"
#include "ops/reduce.h"
#include "ops/views.h"
#include "tests/ops/dispatch_plans.h"
#include "tests/testing.h"

namespace moegrad::dispatch_rows_test {
namespace {

using namespace dispatch_plans;
using namespace test;

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

        const Tensor combined =
            ops::combine_rows(context.group(), results(rank, planned, hidden, dtype), planned.plan);
        Tensor sums = Tensor::zeros({tokens_of(rank), hidden}, dtype);
        for (std::int64_t slot = 0; slot < tokens_of(rank) * kTopK; ++slot) {
          const int receiver = destination(rank, slot, ranks);
          const auto at_rank = plan_for(receiver, ranks);
          const Tensor rows = results(receiver, at_rank, hidden, dtype);
          for (std::size_t i = 0; i < at_rank.rows.size(); ++i) {
            if (at_rank.rows[i].source != rank || at_rank.rows[i].slot != slot) continue;
            put(sums, slot / kTopK,
                row_of(sums, slot / kTopK) + row_of(rows, static_cast<std::int64_t>(i)));
          }
        }
        EXPECT_TRUE(bitwise_equal(combined, sums));
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

// Row `slot` of rank `source`.
Tensor row_of_slot(int source, std::int64_t slot, std::int64_t hidden) {
  const auto seed = static_cast<std::uint64_t>(1000 * source + slot);
  return randn({1, hidden}, seed, Dtype::kBFloat16);
}

// bfloat16 travels as it is, and a token's rows are added as where nothing is sent.
TEST(DispatchRows, GivesTheBitsOfThePermutationHereInBFloat16) {
  for (const int ranks : {1, 2, 4}) {
    launch(ranks, [&](RankContext& context) {
      const int rank = context.rank();
      const auto planned = plan_for(rank, ranks);
      const auto& plan = planned.plan;
      const auto slots = plan.slot_of_row.numel(), arrived = std::ssize(planned.rows);
      for (const std::int64_t hidden : {1, 5, 300}) {
        const Tensor here = Tensor::empty({slots, hidden}, Dtype::kBFloat16);
        const Tensor at_experts = Tensor::empty({arrived, hidden}, Dtype::kBFloat16);
        const Tensor shown = Tensor::empty({arrived, hidden}, Dtype::kBFloat16);
        const Tensor grad_shown = Tensor::empty({arrived, hidden});
        const auto x = tokens(rank, hidden, Dtype::kBFloat16);
        const auto grad_y = randn({plan.tokens, hidden}, 7, Dtype::kBFloat16);
        for (std::int64_t row = 0; row < slots; ++row) {
          const auto slot = plan.slot_of_row.data<std::int64_t>()[static_cast<std::size_t>(row)];
          put(here, row, row_of_slot(rank, slot, hidden));
        }
        for (std::int64_t row = 0; row < arrived; ++row) {
          const auto& [source, slot] = planned.rows[static_cast<std::size_t>(row)];
          put(at_experts, row, row_of_slot(source, slot, hidden));
          put(shown, row, row_of(tokens(source, hidden, Dtype::kBFloat16), slot / kTopK));
          const Tensor grad = randn({tokens_of(source), hidden}, 7, Dtype::kBFloat16);
          put(grad_shown, row, row_of(grad, slot / kTopK));
        }
        const Tensor sent = ops::dispatch_rows(context.group(), x, plan);
        EXPECT_TRUE(bitwise_equal(sent, shown));
        sent.backward(at_experts);
        const Tensor leaf = clone(x.detach()).set_requires_grad(true);
        ops::permute_rows(leaf, plan).backward(here);
        EXPECT_TRUE(bitwise_equal(x.grad(), leaf.grad())) << hidden;

        const Tensor rows = clone(at_experts).set_requires_grad(true);
        const Tensor y = ops::combine_rows(context.group(), rows, plan);
        EXPECT_TRUE(bitwise_equal(y, ops::unpermute_rows(here, plan))) << hidden;
        y.backward(grad_y);
        EXPECT_TRUE(bitwise_equal(rows.grad(), grad_shown)) << hidden;
      }
    });
  }
}

TEST(DispatchRows, ReadsStridedInputsAndGradients) {
  launch(2, [](RankContext& context) {
    const int rank = context.rank();
    const auto planned = plan_for(rank, 2);
    const auto expect_the_same = [&](const auto& op, const Tensor& wide, const Tensor& wide_grad) {
      const Tensor x = ops::narrow(wide, 1, 2, 3), grad = Tensor::narrow(wide_grad, 1, 1, 3);
      const Tensor strided = op(context.group(), x, planned.plan, CollectiveOptions());
      strided.backward(grad);
      const Tensor leaf = clone(x.detach()).set_requires_grad(true);
      const Tensor y = op(context.group(), leaf, planned.plan, CollectiveOptions());
      y.backward(clone(grad));
      EXPECT_TRUE(bitwise_equal(strided, y));
      EXPECT_TRUE(bitwise_equal(Tensor::narrow(wide.grad(), 1, 2, 3), leaf.grad()));
    };
    const Tensor at_tokens = tokens(rank, 6, Dtype::kFloat64);
    const Tensor at_experts = results(rank, planned, 6, Dtype::kFloat64);
    expect_the_same(ops::dispatch_rows, at_tokens, at_experts.detach());
    expect_the_same(ops::combine_rows, at_experts, tokens(rank, 6, Dtype::kFloat64).detach());
  });
}

TEST(DispatchRows, NamesItsBackward) {
  launch(2, [](RankContext& context) {
    const auto planned = plan_for(context.rank(), 2);
    const Tensor x = tokens(context.rank(), 3, Dtype::kFloat64);
    context.spans().start(2);
    ops::sum(ops::dispatch_rows(context.group(), x, planned.plan, {.label = "of layer 3"}))
        .backward();
    clone(x.grad());
    if (context.rank() == 1) return;  // it has no tokens to wait for
    const auto spans = context.spans().spans();
    for (const auto* name : {"all_to_all of layer 3", "all_to_all of layer 3, backward"}) {
      EXPECT_NE(std::ranges::find(spans, name, &Span::name), spans.end()) << name;
    }
  });
}

}  // namespace
}  // namespace moegrad::dispatch_rows_test
