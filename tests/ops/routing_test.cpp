// SPDX-License-Identifier: Apache-2.0
#include "ops/routing.h"

#include <array>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "framework/autograd/function.h"
#include "framework/runtime/random.h"
#include "framework/runtime/rank_context.h"
#include "ops/copies.h"
#include "ops/indexing.h"
#include "ops/kernels/routing.h"
#include "ops/views.h"
#include "tests/ops/indices.h"
#include "tests/testing.h"

namespace moegrad::ops::routing_test {
namespace {

using namespace moegrad::test;

using Integers = std::vector<std::int64_t>;

Integers values_of(const Tensor& indices) {
  const auto data = indices.data<std::int64_t>();
  return {data.begin(), data.end()};
}

// K neighbouring experts (modulo E) from a random first one.
Tensor random_routing(std::int64_t tokens, std::int64_t top_k, std::int64_t experts) {
  const Random random(1, "routing test");
  Integers values;
  for (std::int64_t t = 0; t < tokens; ++t) {
    const auto first = random.integer(static_cast<std::uint64_t>(t), experts);
    for (std::int64_t j = 0; j < top_k; ++j) values.push_back((first + j) % experts);
  }
  return indices_of(values, {tokens, top_k});
}

struct Result {
  Tensor y, grad;
};

Result run(Tensor (*op)(const Tensor&, const RowPlan&), const Tensor& x, const RowPlan& plan,
           const Tensor& grad_y) {
  Tensor leaf = x.detach();
  leaf.set_requires_grad(true);
  const Tensor y = op(leaf, plan);
  y.backward(grad_y);
  return {y.detach(), leaf.grad()};
}

Result unpermute(const Tensor& rows, const RowPlan& plan, const Tensor& grad_y) {
  return run(unpermute_rows, rows, plan, grad_y);
}

Result permute(const Tensor& x, const RowPlan& plan, const Tensor& grad_rows) {
  return run(permute_rows, x, plan, grad_rows);
}

TEST(PlanRouting, SortsSlotsByExpertAndKeepsTheirOrder) {
  const auto plan = plan_routing(indices_of({2, 0, 0, 4, 2, 4}, {3, 2}), 5);
  EXPECT_EQ(plan.sent.counts(), (Integers{2, 0, 2, 0, 2}));
  EXPECT_EQ(plan.sent.offsets(), (Integers{0, 2, 2, 4, 4, 6}));
  EXPECT_EQ(values_of(plan.slot_of_row), (Integers{1, 2, 0, 4, 3, 5}));
  EXPECT_EQ(values_of(plan.row_of_slot), (Integers{2, 0, 1, 4, 3, 5}));
  EXPECT_EQ(plan.tokens, 3);
  EXPECT_EQ(plan.top_k, 2);
  EXPECT_EQ(plan.received, plan.sent);
}

TEST(PlanRouting, CountsTheRowsOfPartsOfTheTokensApart) {
  const Tensor indices = indices_of({2, 0, 0, 1, 2, 1, 2, 0}, {4, 2});
  const auto whole = plan_routing(indices, 3), parts = plan_routing(indices, 3, 2);
  EXPECT_EQ(parts.received.counts_by_source(), (std::vector<std::int64_t>{2, 1, 1, 1, 1, 2}));
  EXPECT_TRUE(parts.received.is_one_micro_batch());
  EXPECT_EQ(parts.sent, whole.sent);
  EXPECT_TRUE(bitwise_equal(parts.row_of_slot, whole.row_of_slot));
  EXPECT_EQ(plan_routing(indices_of({}, {0, 2}), 3, 2).received.rows(), 0);
  for (const std::int64_t count : {0, 3}) {
    EXPECT_EQ(message_of<ValueError>([&] { plan_routing(indices, 3, count); }),
              "routing: token_parts must divide the 4 tokens, got " + std::to_string(count));
  }
}

TEST(PlanRouting, GivesEachSlotARowOfItsExpert) {
  const Tensor indices = random_routing(97, 3, 11);
  const auto plan = plan_routing(indices, 11);
  const auto experts = values_of(indices), row_of_slot = values_of(plan.row_of_slot);
  const auto slot_of_row = values_of(plan.slot_of_row);
  EXPECT_EQ(plan.sent.offsets().front(), 0);
  EXPECT_EQ(plan.sent.offsets().back(), 97 * 3);
  for (std::size_t e = 0; e < 11; ++e) {
    EXPECT_EQ(plan.sent.offsets()[e + 1] - plan.sent.offsets()[e], plan.sent.counts()[e]);
    for (auto row = plan.sent.offsets()[e]; row < plan.sent.offsets()[e + 1]; ++row) {
      const auto slot = slot_of_row[static_cast<std::size_t>(row)];
      EXPECT_EQ(experts[static_cast<std::size_t>(slot)], static_cast<std::int64_t>(e));
      EXPECT_EQ(row_of_slot[static_cast<std::size_t>(slot)], row);
      if (row > plan.sent.offsets()[e]) {
        EXPECT_LT(slot_of_row[static_cast<std::size_t>(row - 1)], slot);
      }
    }
  }
}

TEST(PlanRouting, OneExpertMayTakeAllTokens) {
  const auto plan = plan_routing(indices_of({1, 1, 1, 1}, {4, 1}), 3);
  EXPECT_EQ(plan.sent.counts(), (Integers{0, 4, 0}));
  EXPECT_EQ(plan.sent.offsets(), (Integers{0, 0, 4, 4}));
  EXPECT_EQ(values_of(plan.slot_of_row), (Integers{0, 1, 2, 3}));
}

TEST(PlanRouting, NoTokensLeaveEveryExpertEmpty) {
  const auto plan = plan_routing(Tensor::empty({0, 2}, Dtype::kInt64), 3);
  EXPECT_EQ(plan.sent.counts(), (Integers{0, 0, 0}));
  EXPECT_EQ(plan.sent.offsets(), (Integers{0, 0, 0, 0}));
  EXPECT_EQ(plan.slot_of_row.shape(), (Shape{0}));
}

TEST(RowGroups, AreSortedByExpertAndThenBySource) {
  const RowGroups groups(2, {2, 0, 1, 0, 0, 4});
  EXPECT_EQ(groups.sources(), 2);
  EXPECT_EQ(groups.experts(), 3);
  EXPECT_EQ(groups.rows(), 7);
  EXPECT_EQ(groups.counts(), (Integers{2, 0, 5}));
  EXPECT_EQ(groups.offsets(), (Integers{0, 2, 2, 7}));
  EXPECT_EQ(groups.counts_by_source(), (Integers{2, 0, 1, 0, 0, 4}));
  EXPECT_EQ(groups.runs(), (std::vector<RowRun>{{0, 2}, {2, 0}, {2, 1}, {2, 0}, {2, 0}, {3, 4}}));
  EXPECT_EQ(groups.sums_of_parts(2), (Integers{3, 4}));
  EXPECT_EQ(groups.sums_of_parts(3), (Integers{2, 1, 4}));
}

TEST(RowGroups, MayBeOfNoExperts) {
  for (const auto& groups : {RowGroups(), RowGroups(3, {})}) {
    EXPECT_EQ(groups.experts(), 0);
    EXPECT_EQ(groups.rows(), 0);
    EXPECT_EQ(groups.offsets(), Integers{0});
    EXPECT_EQ(groups.sums_of_parts(2), (Integers{0, 0}));
  }
}

TEST(RowGroups, RefuseCountsThatAreNone) {
  const auto message = [](std::int64_t sources, const Integers& counts) {
    return message_of<ValueError>([&] { RowGroups(sources, counts); });
  };
  EXPECT_EQ(message(0, {}), "RowGroups: needs at least one source, got 0");
  EXPECT_EQ(message(2, {1, 2, 3}),
            "RowGroups: must have as many counts for each of 2 sources, got 3");
  EXPECT_EQ(message(3, {1}), "RowGroups: must have as many counts for each of 3 sources, got 1");
  EXPECT_EQ(message(1, {1, -2}),
            "RowGroups: counts must be at least 0, and at most 2^53 together, got -2");
  constexpr auto kMost = std::int64_t{1} << 53;
  EXPECT_EQ(message(1, {1, kMost}),
            "RowGroups: counts must be at least 0, and at most 2^53 together, got "
            "9007199254740992");
  for (const std::int64_t parts : {0, 2}) {
    EXPECT_EQ(message_of<ValueError>([&] {
                RowGroups(1, {1, 2, 3}).sums_of_parts(parts);
              }),
              "RowGroups: 3 counts must be cut into equal parts, got " + std::to_string(parts));
  }
}

TEST(PlanRouting, ReadsStridedIndices) {
  const Tensor indices = random_routing(6, 2, 5);
  const Tensor strided = transpose(contiguous(transpose(indices, 0, 1)), 0, 1);
  ASSERT_FALSE(strided.is_contiguous());
  EXPECT_TRUE(
      bitwise_equal(plan_routing(strided, 5).slot_of_row, plan_routing(indices, 5).slot_of_row));
}

TEST(PlanRouting, RejectsWhatIsNoRouting) {
  EXPECT_EQ(message_of<ShapeError>([] {
              plan_routing(indices_of({0, 1}, {2}), 2);
            }),
            "routing: indices must be [T, K], got [2]");
  EXPECT_EQ(message_of<DtypeError>([] {
              plan_routing(Tensor::zeros({2, 1}), 2);
            }),
            "routing: indices must be int64, got float32");
  EXPECT_EQ(message_of<ValueError>([] {
              plan_routing(indices_of({}, {0, 1}), 0);
            }),
            "routing: num_experts must be at least 1, got 0");
  EXPECT_EQ(message_of<ValueError>([] {
              plan_routing(indices_of({0, 1, 2, 4}, {2, 2}), 4);
            }),
            "routing: expert index must be in [0, 4), got 4 at token 1");
  EXPECT_EQ(message_of<ValueError>([] {
              plan_routing(indices_of({0, -1, 2, 3}, {2, 2}), 4);
            }),
            "routing: expert index must be in [0, 4), got -1 at token 0");
}

TEST(PermuteRows, CopiesTheRowOfEachSlotsToken) {
  const auto plan = plan_routing(indices_of({2, 0, 0, 1}, {2, 2}), 3);
  const Tensor x = Tensor::from(std::vector<double>{1, 2, 3, 4}, {2, 2});
  const Tensor grad = Tensor::from(std::vector<double>{1, 2, 10, 20, 100, 200, 1e3, 2e3}, {4, 2});
  const auto result = permute(x, plan, grad);  // rows: token 0, 1, 1, 0
  EXPECT_TRUE(
      bitwise_equal(result.y, Tensor::from(std::vector<double>{1, 2, 3, 4, 3, 4, 1, 2}, {4, 2})));
  EXPECT_TRUE(
      bitwise_equal(result.grad, Tensor::from(std::vector<double>{1001, 2002, 110, 220}, {2, 2})));
}

TEST(PermuteRows, GradientsMatchFiniteDifferences) {
  const auto plan = plan_routing(random_routing(5, 2, 4), 4);
  const auto f = [&](const TensorList& in) { return TensorList{permute_rows(in[0], plan)}; };
  EXPECT_TRUE(moegrad::gradients_agree(f, {variable({5, 3})}));
}

TEST(PermuteRows, TheGradientAddsInTheOrderOfSlots) {
  // In float, (1e8 - 1e8) + 1 = 1 but (1 + 1e8) - 1e8 = 0. Slots 0, 1, 2 have rows 2, 1, 0.
  const auto plan = plan_routing(indices_of({2, 1, 0}, {1, 3}), 3);
  const Tensor grad = Tensor::from(std::vector<float>{1, -1e8F, 1e8F}, {3, 1});
  EXPECT_EQ(permute(Tensor::zeros({1, 1}), plan, grad).grad.item(), 1);
  EXPECT_EQ(unpermute_rows(grad, plan).item(), 1);
}

TEST(UnpermuteRows, IsTheSumOfATokensRows) {
  for (const auto& [tokens, top_k, experts, h] :
       {std::array<std::int64_t, 4>{1, 1, 1, 1}, {1, 4, 4, 3}, {30, 3, 7, 37}, {8, 1, 50, 16}}) {
    const Tensor indices = random_routing(tokens, top_k, experts);
    const auto plan = plan_routing(indices, experts);
    const Tensor rows = randn({tokens * top_k, h}, 1), grad_y = randn({tokens, h}, 2);
    const auto got = unpermute(rows, plan, grad_y);

    Tensor y = Tensor::zeros({tokens, h}, Dtype::kFloat64), grad = zeros_like(rows);
    const auto row_of_slot = values_of(plan.row_of_slot);
    const auto in = rows.data<double>(), g = grad_y.data<double>();
    const auto width = static_cast<std::size_t>(h);
    for (std::size_t slot = 0; slot < row_of_slot.size(); ++slot) {
      const auto t = slot / static_cast<std::size_t>(top_k);
      const auto r = static_cast<std::size_t>(row_of_slot[slot]);
      for (std::size_t i = 0; i < width; ++i) {
        y.mutable_data<double>()[t * width + i] += in[r * width + i];
        grad.mutable_data<double>()[r * width + i] = g[t * width + i];
      }
    }
    EXPECT_TRUE(bitwise_equal(got.y, y));
    EXPECT_TRUE(bitwise_equal(got.grad, grad));
  }
}

TEST(UnpermuteRows, GradientsMatchFiniteDifferences) {
  const auto plan = plan_routing(random_routing(5, 2, 4), 4);
  const auto f = [&](const TensorList& in) { return TensorList{unpermute_rows(in[0], plan)}; };
  EXPECT_TRUE(moegrad::gradients_agree(f, {variable({10, 3})}));
}

TEST(UnpermuteRows, IsTheTransposeOfPermuteRows) {
  const auto plan = plan_routing(random_routing(20, 3, 9), 9);
  const Tensor x = randn({20, 6}, 1), rows = randn({60, 6}, 2);
  const auto permuted = permute(x, plan, rows), unpermuted = unpermute(rows, plan, x);
  EXPECT_TRUE(bitwise_equal(unpermuted.y, permuted.grad));
  EXPECT_TRUE(bitwise_equal(unpermuted.grad, permuted.y));
}

TEST(UnpermuteRows, KeepsTheIndicesAlone) {
  const auto plan = plan_routing(random_routing(5, 2, 4), 4);
  EXPECT_EQ(unpermute_rows(variable({10, 3}), plan).grad_fn()->saved_bytes(), 10 * 8);
  EXPECT_EQ(permute_rows(variable({5, 3}), plan).grad_fn()->saved_bytes(), 10 * 8);
}

TEST(UnpermuteRows, Float32IsCloseToFloat64) {
  const auto plan = plan_routing(random_routing(20, 8, 32), 32);
  const auto wide = unpermute(randn({160, 65}, 1), plan, randn({20, 65}, 2));
  const auto narrow =
      unpermute(randn({160, 65}, 1, Dtype::kFloat32), plan, randn({20, 65}, 2, Dtype::kFloat32));
  EXPECT_EQ(narrow.y.dtype(), Dtype::kFloat32);
  EXPECT_TRUE(all_close(narrow.y, wide.y, 1e-6, 4e-6));
  EXPECT_TRUE(all_close(narrow.grad, wide.grad, 1e-6, 0));
}

TEST(UnpermuteRows, TakesStridedInputsAndGradients) {
  const auto plan = plan_routing(random_routing(5, 2, 4), 4);
  const Tensor rows = transpose(randn({3, 10}, 1), 0, 1), x = transpose(randn({3, 5}, 2), 0, 1);
  for (const auto& op : {unpermute, permute}) {
    const auto& [in, grad] = op == unpermute ? std::pair{rows, x} : std::pair{x, rows};
    const auto strided = op(in, plan, grad);
    const auto dense = op(contiguous(in), plan, contiguous(grad));
    EXPECT_TRUE(bitwise_equal(strided.y, dense.y));
    EXPECT_TRUE(bitwise_equal(strided.grad, dense.grad));
  }
}

TEST(UnpermuteRows, EmptyInputsGiveEmptyOrZeroResults) {
  const auto no_tokens = plan_routing(Tensor::empty({0, 2}, Dtype::kInt64), 3);
  const Tensor empty = Tensor::zeros({0, 4});
  EXPECT_EQ(permute(empty, no_tokens, empty).grad.shape(), (Shape{0, 4}));
  EXPECT_EQ(unpermute(empty, no_tokens, empty).y.shape(), (Shape{0, 4}));
  EXPECT_EQ(unpermute(empty, no_tokens, empty).grad.shape(), (Shape{0, 4}));

  const auto no_width = plan_routing(random_routing(3, 2, 4), 4);
  EXPECT_EQ(unpermute_rows(Tensor::zeros({6, 0}), no_width).shape(), (Shape{3, 0}));

  const auto no_experts = plan_routing(Tensor::empty({3, 0}, Dtype::kInt64), 4);
  EXPECT_EQ(permute_rows(Tensor::ones({3, 2}), no_experts).shape(), (Shape{0, 2}));
  EXPECT_TRUE(
      bitwise_equal(unpermute_rows(Tensor::zeros({0, 2}), no_experts), Tensor::zeros({3, 2})));
  std::vector<float> tokens(6, 1.0F);  // what the memory held before
  kernels::collect_tokens<float>(nullptr, nullptr, tokens.data(), 3, 0, 2);
  EXPECT_EQ(tokens, std::vector<float>(6, 0.0F));
}

// The sum of each token's rows, one after the other.
template <class T>
Tensor summed(const Tensor& rows, const RowPlan& plan) {
  using Sum = std::conditional_t<std::is_same_v<T, BFloat16>, float, T>;
  const auto h = rows.dim(1), k = plan.top_k;
  Tensor y = Tensor::empty({plan.tokens, h}, rows.dtype());
  const auto row_of_slot = values_of(plan.row_of_slot);
  for (std::int64_t t = 0; t < plan.tokens; ++t) {
    for (std::int64_t i = 0; i < h; ++i) {
      Sum sum = 0;
      for (auto slot = t * k; slot < (t + 1) * k; ++slot) {
        const auto at = row_of_slot[static_cast<std::size_t>(slot)] * h + i;
        sum += Sum(rows.data<T>()[static_cast<std::size_t>(at)]);
      }
      y.mutable_data<T>()[static_cast<std::size_t>(t * h + i)] = T(sum);
    }
  }
  return y;
}

template <class T>
void expect_moved_and_summed() {
  constexpr auto kDtype = dtype_of<T>;
  for (const std::int64_t hidden : {1, 3, 256, 300}) {
    for (const std::int64_t k : {1, 2, 5}) {
      const auto plan = plan_routing(random_routing(23, k, 11), 11);
      const Tensor x = randn({23, hidden}, 1, kDtype), rows = randn({23 * k, hidden}, 2, kDtype);
      const Tensor sums = summed<T>(rows, plan);
      const auto unpermuted = unpermute(rows, plan, x), permuted = permute(x, plan, rows);
      EXPECT_TRUE(bitwise_equal(unpermuted.y, sums)) << hidden << ' ' << k;
      EXPECT_TRUE(bitwise_equal(permuted.grad, to_dtype(sums, arithmetic_dtype(kDtype))));
      Integers token_of_row;
      for (const auto slot : values_of(plan.slot_of_row)) token_of_row.push_back(slot / k);
      const Tensor moved = index_select(x, 0, indices_of(token_of_row, {23 * k}));
      EXPECT_TRUE(bitwise_equal(permuted.y, moved));
      EXPECT_TRUE(bitwise_equal(unpermuted.grad, to_dtype(moved, arithmetic_dtype(kDtype))));
    }
  }
}

// Wider rows than are summed at a time, too.
TEST(UnpermuteRows, AddsTheRowsInFloat32OrFloat64AndRoundsOnce) {
  expect_moved_and_summed<float>();
  expect_moved_and_summed<double>();
  expect_moved_and_summed<BFloat16>();
}

TEST(UnpermuteRows, GivesTheSameBitsWithThreeThreads) {
  const auto plan = plan_routing(random_routing(700, 4, 16), 16);
  const Tensor rows = randn({2800, 33}, 1, Dtype::kFloat32);
  const Tensor x = randn({700, 33}, 2, Dtype::kFloat32);
  const auto one = unpermute(rows, plan, x), one_permuted = permute(x, plan, rows);
  RankContext::current().set_threads(3);
  const auto three = unpermute(rows, plan, x), three_permuted = permute(x, plan, rows);
  RankContext::current().set_threads(1);
  EXPECT_TRUE(bitwise_equal(three.y, one.y));
  EXPECT_TRUE(bitwise_equal(three.grad, one.grad));
  EXPECT_TRUE(bitwise_equal(three_permuted.y, one_permuted.y));
  EXPECT_TRUE(bitwise_equal(three_permuted.grad, one_permuted.grad));
}

TEST(UnpermuteRows, ATokenDoesNotDependOnTheOthers) {
  const Tensor indices = random_routing(50, 3, 8), x = randn({50, 21}, 1, Dtype::kFloat32);
  const auto all_plan = plan_routing(indices, 8);
  const auto plan = plan_routing(narrow(indices, 0, 17, 5), 8);
  const Tensor all = unpermute_rows(permute_rows(x, all_plan), all_plan);
  const Tensor some = unpermute_rows(permute_rows(narrow(x, 0, 17, 5), plan), plan);
  EXPECT_TRUE(bitwise_equal(some, narrow(all, 0, 17, 5)));
}

TEST(PermuteRows, RejectsTokensThatThePlanDoesNotFit) {
  const auto plan = plan_routing(indices_of({2, 0, 0, 1}, {2, 2}), 3);
  EXPECT_EQ(message_of<ShapeError>([&] { permute_rows(randn({2}), plan); }),
            "permute_rows: x must be [T, H], got [2]");
  EXPECT_EQ(message_of<ShapeError>([&] {
              permute_rows(randn({3, 5}), plan);
            }),
            "permute_rows: the plan has 4 rows, 2 for each token, got x [3, 5]");
  EXPECT_EQ(message_of<DtypeError>([&] {
              permute_rows(Tensor::zeros({2, 5}, Dtype::kInt64), plan);
            }),
            "permute_rows: x must be float32, float64 or bfloat16, got int64");
}

TEST(UnpermuteRows, RejectsRowsThatThePlanDoesNotFit) {
  const auto plan = plan_routing(indices_of({2, 0, 0, 1}, {2, 2}), 3);
  EXPECT_EQ(message_of<ShapeError>([&] { unpermute_rows(randn({4}), plan); }),
            "unpermute_rows: rows must be [4, H] as planned, got [4]");
  EXPECT_EQ(message_of<ShapeError>([&] {
              unpermute_rows(randn({3, 5}), plan);
            }),
            "unpermute_rows: rows must be [4, H] as planned, got [3, 5]");
  EXPECT_EQ(message_of<DtypeError>([&] {
              unpermute_rows(Tensor::zeros({4, 5}, Dtype::kInt64), plan);
            }),
            "unpermute_rows: rows must be float32, float64 or bfloat16, got int64");
}

}  // namespace
}  // namespace moegrad::ops::routing_test
