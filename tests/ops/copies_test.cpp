// SPDX-License-Identifier: Apache-2.0
#include "ops/copies.h"

#include <functional>
#include <vector>

#include "framework/autograd/engine.h"
#include "framework/runtime/rank_context.h"
#include "ops/embedding.h"
#include "ops/indexing.h"
#include "ops/masks.h"
#include "ops/split_cat.h"
#include "ops/views.h"
#include "tests/ops/counting.h"
#include "tests/testing.h"

namespace moegrad::ops::copies_test {
namespace {

using namespace test;

std::int64_t copies() { return RankContext::current().counters().materialized_transposes; }

TEST(Copies, ContiguousCopiesAndCountsOnlyStridedTensors) {
  const Tensor x = counting({2, 3});
  const auto before = copies();
  EXPECT_TRUE(contiguous(x).is(x));
  EXPECT_EQ(copies(), before);
  const Tensor y = contiguous(transpose(x, 0, 1));
  EXPECT_EQ(copies(), before + 1);
  EXPECT_TRUE(y.is_contiguous());
  const Tensor nz = Tensor::empty_nz({2, 3}, {.batch = 1, .k = 2, .n = 3}, Dtype::kFloat32);
  EXPECT_TRUE(contiguous(nz).is(nz));
}

TEST(Copies, IndexSelectTakesRowsInAnyOrder) {
  const Tensor x = counting({3, 2});
  const Tensor indices = Tensor::from<std::int64_t>({2, 0, 2}, {3});
  EXPECT_TRUE(holds(index_select(x, 0, indices), {3, 2}, {4, 5, 0, 1, 4, 5}));
  EXPECT_TRUE(holds(index_select(transpose(x, 0, 1), 0, Tensor::from<std::int64_t>({1}, {1})),
                    {1, 3}, {1, 3, 5}));
  EXPECT_EQ(index_select(x, 0, Tensor::zeros({0}, Dtype::kInt64)).shape(), (Shape{0, 2}));
  EXPECT_TRUE(
      bitwise_equal(index_select(indices, 0, indices), Tensor::from<std::int64_t>({2, 2, 2}, {3})));
}

TEST(Copies, CastChangesTheDtypeAndItsGradientComesBack) {
  const Tensor x = variable({2, 3});
  const Tensor y = cast(x, Dtype::kFloat32);
  EXPECT_EQ(y.dtype(), Dtype::kFloat32);
  y.backward(Tensor::full({2, 3}, 0.1F));
  EXPECT_TRUE(bitwise_equal(x.grad(), Tensor::full({2, 3}, double{0.1F}, Dtype::kFloat64)));
  EXPECT_TRUE(cast(x, Dtype::kFloat64).is(x));
}

TEST(Copies, CastToBFloat16RoundsTheValueAndNotTheGradient) {
  for (const auto dtype : {Dtype::kFloat32, Dtype::kFloat64}) {
    const Tensor x = randn({3, 5}, 1, dtype, true);
    const Tensor y = cast(x, Dtype::kBFloat16);
    EXPECT_TRUE(bitwise_equal(y, to_dtype(x.detach(), Dtype::kBFloat16)));
    const Tensor g = randn({3, 5}, 2, Dtype::kFloat32), h = randn({3, 5}, 3, Dtype::kFloat32);
    run_backward({cast(y, Dtype::kFloat32), cast(y, Dtype::kFloat32)}, {g, h},
                 /*retain_graph=*/false);
    Tensor sum = moegrad::clone(h);
    add_(sum, g);
    EXPECT_TRUE(bitwise_equal(x.grad(), to_dtype(sum, dtype)));
  }
  const Tensor narrow = randn({2}, 1, Dtype::kBFloat16, true);
  cast(narrow, Dtype::kFloat64).backward(Tensor::full({2}, 1 + 0x1p-20, Dtype::kFloat64));
  EXPECT_TRUE(bitwise_equal(narrow.grad(), Tensor::full({2}, 1 + 0x1p-20)));
}

// So what several of them give is rounded once, after it has been added.
TEST(Copies, OpsThatMoveBFloat16DoNotRoundItsGradient) {
  const Tensor index = Tensor::from<std::int64_t>({1, 0, 1}, {3});
  const Tensor at = Tensor::from<std::int64_t>({1, 0, 1}, {1, 3});
  const Tensor mask = Tensor::from(std::vector<bool>{true, false, true}, {3});
  const std::vector<std::function<Tensor(const Tensor&)>> ops{
      [](const Tensor& x) { return x[1]; },
      [](const Tensor& x) { return view(x, {6}); },
      [](const Tensor& x) {
        return permute(x, {1, 0});
      },
      [](const Tensor& x) {
        return expand(x, {4, 2, 3});
      },
      [](const Tensor& x) { return contiguous(transpose(x, 0, 1)); },
      [](const Tensor& x) { return clone(x); },
      [](const Tensor& x) {
        return cat({x, x}, 1);
      },
      [](const Tensor& x) { return split(x, 2, 1)[0]; },
      [](const Tensor& x) { return chunk(x, 3, 1)[2]; },
      [&](const Tensor& x) { return index_select(x, 0, index); },
      [&](const Tensor& x) { return gather(x, 0, at); },
      [](const Tensor& x) { return flip(x, {1}); },
      [&](const Tensor& x) { return where(mask, x[0], x); },
      [&](const Tensor& x) { return embedding(index, x); },
  };
  for (std::size_t i = 0; i < ops.size(); ++i) {
    for (const auto given : {Dtype::kFloat32, Dtype::kBFloat16}) {
      const auto gradient = [&](Dtype dtype) {
        const Tensor x = randn({2, 3}, 1, dtype, true);
        const Tensor y = ops[i](x), g = randn(y.shape(), 2, given);
        EXPECT_EQ(y.dtype(), dtype);
        y.backward(dtype == Dtype::kFloat32 ? widened(g) : g);
        return x.grad();
      };
      EXPECT_TRUE(bitwise_equal(gradient(Dtype::kBFloat16), gradient(Dtype::kFloat32)))
          << "op " << i << ", gradient " << given;
    }
  }
}

TEST(Copies, WidenedIsTheTensorItselfUnlessItIsBFloat16) {
  for (const auto dtype : {Dtype::kFloat32, Dtype::kFloat64, Dtype::kInt64}) {
    const Tensor x = Tensor::ones({2}, dtype);
    EXPECT_TRUE(widened(x).is(x));
  }
  EXPECT_TRUE(bitwise_equal(widened(Tensor::ones({2}, Dtype::kBFloat16)), Tensor::ones({2})));
}

TEST(Copies, ACloneHasItsOwnBytesAndPassesTheGradient) {
  const Tensor x = variable({2, 3});
  Tensor y = clone(transpose(x, 0, 1));
  EXPECT_TRUE(y.is_contiguous());
  EXPECT_NE(&y.storage(), &x.storage());
  EXPECT_TRUE(y.requires_grad());
  const Tensor grad = randn({3, 2}, 2);
  y.backward(grad);
  EXPECT_TRUE(bitwise_equal(x.grad(), transpose(grad, 0, 1)));
}

TEST(Copies, GradientsMatchFiniteDifferences) {
  const Tensor rows = Tensor::from<std::int64_t>({1, 0, 1, 1}, {4});
  const std::vector<std::function<TensorList(const Tensor&)>> ops{
      [](const Tensor& x) {
        return TensorList{contiguous(permute(x, {2, 0, 1}))};
      },
      [&](const Tensor& x) { return TensorList{index_select(x, 0, rows)}; },
      [](const Tensor& x) { return TensorList{cast(x, Dtype::kFloat64)}; },
  };
  for (std::size_t i = 0; i < ops.size(); ++i) {
    EXPECT_TRUE(
        gradients_agree([&](const TensorList& in) { return ops[i](in[0]); }, {variable({2, 3, 2})}))
        << "op " << i;
  }
}

TEST(Copies, CastsMasksAndIndicesWithoutGradients) {
  const Tensor mask = Tensor::from(std::vector<bool>{true, false}, {2});
  EXPECT_TRUE(holds(cast(mask, Dtype::kFloat64), {2}, {1, 0}));
  EXPECT_TRUE(holds(cast(Tensor::from<std::int64_t>({3, -2}, {2}), Dtype::kFloat64), {2}, {3, -2}));
  const Tensor x = Tensor::from(std::vector<double>{-0.5, 0}, {2}).set_requires_grad(true);
  EXPECT_TRUE(bitwise_equal(cast(x, Dtype::kBool), mask));
  EXPECT_FALSE(cast(x, Dtype::kInt64).requires_grad());
}

}  // namespace
}  // namespace moegrad::ops::copies_test
