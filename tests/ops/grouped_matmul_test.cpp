// SPDX-License-Identifier: Apache-2.0
#include "ops/grouped_matmul.h"

#include <cmath>
#include <limits>

#include "framework/autograd/tree_sum.h"
#include "framework/runtime/rank_context.h"
#include "framework/tensor/fill.h"
#include "ops/elementwise.h"
#include "ops/npu_gmm.h"
#include "ops/nz.h"
#include "ops/views.h"
#include "tests/ops/matmul_reference.h"
#include "tests/testing.h"

namespace moegrad::ops::grouped_matmul_test {
namespace {

using namespace test;

struct Problem {
  std::int64_t k, n;
  std::vector<std::int64_t> offsets;
  std::int64_t experts() const { return std::ssize(offsets) - 1; }
  std::int64_t rows() const { return offsets.back(); }
};

// Empty experts first, last and between; one row; row and column tails; a cut reduction; few rows
// of several panels; the room for packed operands used up by rows (800 and 800), by none (792 and
// 792 are one short of it) and by eleven groups of the weights' gradient, each of which pads a row
// to sixteen.
const Problem kAwkward[] = {{1, 1, {0, 1}},
                            {3, 5, {0, 0, 2, 2, 7, 7}},
                            {16, 32, {0, 6, 18, 19}},
                            {33, 17, {0, 13, 13, 24}},
                            {520, 47, {0, 9, 12}},
                            {21, 150, {0, 0, 0}},
                            {30, 40, {0, 530, 531}},
                            {600, 215, {0, 1, 3, 6, 10}},
                            {130, 700, {0, 20, 37, 77}},
                            {560, 30, {0, 2, 3, 6, 6, 9, 10, 40, 41, 60}},
                            {100, 70, {0, 5, 11, 18, 26}},
                            {20, 21, {0, 800, 1600}},
                            {20, 21, {0, 792, 1584}},
                            {793, 17, {0, 1, 18, 19, 20, 53, 54, 71, 72, 73, 90, 91}}};

enum class Storage { kND, kNZ, kHuggingFace, kHuggingFaceNZ, kStridedView };

struct Results {
  Tensor y, grad_x, grad_weight;  // grad_weight as [E, K, N]
};

Results run(const Problem& p, Dtype dtype, Storage storage) {
  const Tensor x = randn({p.rows(), p.k}, 1, dtype, true);
  const Tensor values = randn({p.experts(), p.k, p.n}, 2, dtype);  // [E, K, N]
  const Tensor transposed = clone(transpose(values, 1, 2));        // [E, N, K]
  const bool hf = storage == Storage::kHuggingFace || storage == Storage::kHuggingFaceNZ;
  Tensor weight = storage == Storage::kNZ              ? nd_to_nz(values)
                  : storage == Storage::kHuggingFaceNZ ? nd_to_nz(transposed)
                  : storage == Storage::kHuggingFace   ? transposed
                  : storage == Storage::kStridedView   ? transpose(transposed, 1, 2).detach()
                                                       : values;
  weight.set_requires_grad(true);
  const Tensor y = grouped_matmul(x, weight, p.offsets, hf);
  y.backward(randn({p.rows(), p.n}, 3, dtype));
  EXPECT_EQ(weight.grad().layout(), Layout::kND);
  return {y.detach(), x.grad(), hf ? clone(transpose(weight.grad(), 1, 2)) : weight.grad()};
}

template <class T>
Results scalar_sums(const Problem& p) {
  const auto dtype = dtype_of<T>;
  const Tensor x = randn({p.rows(), p.k}, 1, dtype), w = randn({p.experts(), p.k, p.n}, 2, dtype);
  const Tensor g = randn({p.rows(), p.n}, 3, dtype);
  Results r{Tensor::empty({p.rows(), p.n}, dtype), Tensor::empty(x.shape(), dtype),
            Tensor::empty(w.shape(), dtype)};
  T* y = r.y.mutable_data<T>().data();
  T* gx = r.grad_x.mutable_data<T>().data();
  T* gw = r.grad_weight.mutable_data<T>().data();
  for (std::int64_t e = 0; e < p.experts(); ++e) {
    const auto begin = p.offsets[static_cast<std::size_t>(e)];
    const auto rows = p.offsets[static_cast<std::size_t>(e + 1)] - begin;
    const T* px = x.data<T>().data() + begin * p.k;
    const T* pw = w.data<T>().data() + e * p.k * p.n;
    const T* pg = g.data<T>().data() + begin * p.n;
    test::halved_products<T>({px, p.k, 1}, {pw, 1, p.n}, rows, p.n, p.k, y + begin * p.n);
    test::halved_products<T>({pg, p.n, 1}, {pw, p.n, 1}, rows, p.k, p.n, gx + begin * p.k);
    test::halved_products<T>({px, 1, p.k}, {pg, 1, p.n}, p.k, p.n, rows, gw + e * p.k * p.n);
  }
  return r;
}

void expect_bitwise_equal(const Results& a, const Results& b) {
  EXPECT_TRUE(bitwise_equal(a.y, b.y));
  EXPECT_TRUE(bitwise_equal(a.grad_x, b.grad_x));
  EXPECT_TRUE(bitwise_equal(a.grad_weight, b.grad_weight));
}

TEST(GroupedMatmul, EveryStorageGivesTheScalarSumsBitForBit) {
  for (const auto& problem : kAwkward) {
    SCOPED_TRACE(::testing::Message() << problem.k << ' ' << problem.n << ' ' << problem.rows());
    const auto narrow_chains = scalar_sums<float>(problem);
    const auto wide_chains = scalar_sums<double>(problem);
    for (const auto storage : {Storage::kND, Storage::kNZ, Storage::kHuggingFace,
                               Storage::kHuggingFaceNZ, Storage::kStridedView}) {
      SCOPED_TRACE(static_cast<int>(storage));
      expect_bitwise_equal(run(problem, Dtype::kFloat32, storage), narrow_chains);
      expect_bitwise_equal(run(problem, Dtype::kFloat64, storage), wide_chains);
    }
  }
}

TEST(GroupedMatmul, GradientsMatchFiniteDifferences) {
  const std::vector<std::int64_t> offsets{0, 2, 2, 5};
  for (const bool transposed : {false, true}) {
    EXPECT_TRUE(moegrad::gradients_agree(
        [&](const TensorList& in) {
          return TensorList{grouped_matmul(in[0], in[1], offsets, transposed)};
        },
        {variable({5, 3}, 1), variable(transposed ? Shape{3, 4, 3} : Shape{3, 3, 4}, 2)}));
  }
  const Tensor nz = nd_to_nz(randn({3, 3, 4}, 2));
  EXPECT_TRUE(moegrad::gradients_agree(
      [&](const TensorList& in) { return TensorList{grouped_matmul(in[0], nz, offsets)}; },
      {variable({5, 3}, 1)}));
}

// As nn::GroupedExperts stores them.
TEST(GroupedMatmul, TakesStackedWeights) {
  for (const bool transposed : {false, true}) {
    const Shape whole = transposed ? Shape{3, 4, 5} : Shape{3, 5, 4};
    const Shape stacked = {whole[0] * whole[1], whole[2]};
    const auto run = [&](const Shape& shape) {
      const Tensor x = randn({8, 5}, 1, Dtype::kFloat32, true);
      const Tensor weight =
          view(randn(whole, 2, Dtype::kFloat32), shape).detach().set_requires_grad(true);
      const Tensor y = grouped_matmul(x, weight, RowGroups(2, {1, 0, 2, 2, 0, 3}), transposed);
      y.backward(randn({8, 4}, 3, Dtype::kFloat32));
      return TensorList{y.detach(), x.grad(), view(weight.grad(), whole)};
    };
    const auto expected = run(whole), got = run(stacked);
    for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(bitwise_equal(got[i], expected[i])) << i;
  }
}

// The weight's gradient is that of one product per source, added along the tree; all else is as
// without sources.
TEST(GroupedMatmul, AddsTheProductsOfItsSourcesAlongTheTree) {
  const std::vector<std::int64_t> all = {2, 0, 3, 0, 0, 1, 5, 4, 0, 1, 1, 1, 0, 0, 0};
  constexpr std::int64_t kIn = 7, kOut = 18;
  for (std::int64_t count = 1; count <= 5; ++count) {
    const RowGroups groups(count, {all.begin(), all.begin() + 3 * count});
    const auto rows = groups.rows();
    for (const auto dtype : {Dtype::kFloat32, Dtype::kFloat64}) {
      enum class Product { kGrouped, kTransposed, kNpuGmm };
      for (const auto product : {Product::kGrouped, Product::kTransposed, Product::kNpuGmm}) {
        const bool transposed = product == Product::kTransposed;
        const Shape shape = transposed ? Shape{3, kOut, kIn} : Shape{3, kIn, kOut};
        const Tensor g = randn({rows, kOut}, 3, dtype);
        const auto run = [&](const RowGroups& grouped) {
          const Tensor x = randn({rows, kIn}, 1, dtype, true);
          const Tensor weight = randn(shape, 2, dtype, true);
          const Tensor y = product == Product::kNpuGmm
                               ? npu_gmm(weight, x, grouped)
                               : grouped_matmul(x, weight, grouped, transposed);
          y.backward(g);
          return TensorList{y.detach(), x.grad(), weight.grad()};
        };
        const auto whole = run(RowGroups(1, groups.counts())), apart = run(groups);
        EXPECT_TRUE(bitwise_equal(apart[0], whole[0]));
        EXPECT_TRUE(bitwise_equal(apart[1], whole[1]));
        TreeSum sum;
        for (std::int64_t s = 0; s < count; ++s) {
          Tensor mask = Tensor::zeros({rows, 1}, dtype);  // the rows of this source
          for (std::int64_t e = 0; e < 3; ++e) {
            auto row = groups.offsets()[static_cast<std::size_t>(e)];
            for (std::int64_t before = 0; before < s; ++before) {
              row += all[static_cast<std::size_t>(3 * before + e)];
            }
            Tensor own = narrow(mask, 0, row, all[static_cast<std::size_t>(3 * s + e)]);
            fill_(own, 1.0);
          }
          const Tensor x = randn({rows, kIn}, 1, dtype, true);
          const Tensor weight = randn(shape, 2, dtype, true);
          grouped_matmul(x, weight, groups.offsets(), transposed).backward(g * mask);
          sum.push(weight.grad());
        }
        EXPECT_TRUE(bitwise_equal(apart[2], sum.take())) << count;
        if (count == 1) {
          EXPECT_TRUE(bitwise_equal(apart[2], whole[2]));
        } else if (count == 4) {
          EXPECT_FALSE(bitwise_equal(apart[2], whole[2]));
        }
      }
    }
  }
}

TEST(GroupedMatmul, RefusesGroupsThatDoNotFit) {
  const Tensor x = randn({5, 3}), weight = randn({2, 3, 4});
  const auto message = [&](const RowGroups& groups) {
    return message_of<ValueError>([&] { grouped_matmul(x, weight, groups); });
  };
  EXPECT_EQ(message(RowGroups(2, {1, 1, 1, 0, 1, 1})),
            "grouped_matmul: groups must be of the 2 experts of the weight, got 3");
  EXPECT_EQ(message(RowGroups(2, {1, 3, 0, 0})),
            "grouped_matmul: groups must have the 5 rows of x, got 4");
  EXPECT_EQ(message_of<ValueError>([&] { npu_gmm(weight, x, RowGroups(1, {5})); }),
            "npu_gmm: groups must be of the 2 experts of the weight, got 1");
  EXPECT_EQ(message_of<ValueError>([&] {
              npu_gmm(weight, x, RowGroups(1, {2, 2}));
            }),
            "npu_gmm: groups must have the 5 rows of x, got 4");
}

// Padding that a row's chain ran into would make NaN of the next row's infinity.
TEST(GroupedMatmul, ARowDoesNotSeeTheNextOne) {
  const Tensor weight = randn({1, 20, 7}, 2, Dtype::kFloat32);
  for (const std::int64_t rows : {2, 8, 9, 30}) {
    for (const auto& stored : {weight, nd_to_nz(weight)}) {
      Tensor g = randn({rows, 7}, 3, Dtype::kFloat32);
      for (std::int64_t i = 1; i < rows; i += 2) {
        g.mutable_data<float>()[static_cast<std::size_t>(i * 7)] =
            std::numeric_limits<float>::infinity();
      }
      const Tensor x = randn({rows, 20}, 1, Dtype::kFloat32, true);
      grouped_matmul(x, stored, {0, rows}).backward(g);
      const Tensor grad_x = x.grad();
      const auto grad = grad_x.data<float>();
      for (std::int64_t i = 0; i < rows; ++i) {
        for (std::int64_t j = 0; j < 20; ++j) {
          const auto value = grad[static_cast<std::size_t>(i * 20 + j)];
          EXPECT_EQ(std::isfinite(value), i % 2 == 0) << rows << ": " << i << ", " << j;
        }
      }
    }
  }
}

TEST(GroupedMatmul, ThreadsDoNotChangeABit) {
  const Problem problem{300, 270, {0, 800, 800, 830, 835}};
  for (const auto storage : {Storage::kND, Storage::kNZ, Storage::kHuggingFace}) {
    const auto one = run(problem, Dtype::kFloat32, storage);
    RankContext context({.threads = 3});
    const RankContextGuard guard(context);
    expect_bitwise_equal(one, run(problem, Dtype::kFloat32, storage));
  }
}

TEST(GroupedMatmul, Float32IsCloseToFloat64) {
  const Problem problem{600, 50, {0, 20, 33}};
  const auto a = run(problem, Dtype::kFloat32, Storage::kNZ);
  const auto b = run(problem, Dtype::kFloat64, Storage::kND);
  EXPECT_TRUE(all_close(a.y, b.y, 1e-4, 1e-4));
  EXPECT_TRUE(all_close(a.grad_x, b.grad_x, 1e-4, 1e-4));
  EXPECT_TRUE(all_close(a.grad_weight, b.grad_weight, 1e-4, 1e-4));
}

TEST(GroupedMatmul, ExpertsWithoutRowsGetExactlyZeroGradients) {
  const auto results = run({20, 18, {0, 3, 3, 5}}, Dtype::kFloat32, Storage::kNZ);
  EXPECT_TRUE(
      bitwise_equal(clone(narrow(results.grad_weight, 0, 1, 1)), Tensor::zeros({1, 20, 18})));
}

TEST(GroupedMatmul, EmptySizesWork) {
  for (const auto storage : {Storage::kND, Storage::kNZ, Storage::kHuggingFace}) {
    const auto no_k = run({0, 4, {0, 2, 3}}, Dtype::kFloat64, storage);
    EXPECT_TRUE(bitwise_equal(no_k.y, Tensor::zeros({3, 4}, Dtype::kFloat64)));
    const auto no_n = run({4, 0, {0, 2, 3}}, Dtype::kFloat64, storage);
    EXPECT_TRUE(bitwise_equal(no_n.grad_x, Tensor::zeros({3, 4}, Dtype::kFloat64)));
  }
  EXPECT_EQ(grouped_matmul(randn({0, 3}), randn({0, 3, 4}), {0}).shape(), (Shape{0, 4}));
}

// Counts of (packed_panels, transposed_packs) after forward, then after backward as well.
std::vector<std::int64_t> packing_of(Storage storage) {
  RankContext context{RankContext::Options{}};
  const RankContextGuard guard(context);
  const std::vector<std::int64_t> offsets{0, 4, 4, 9};  // two of three experts have rows
  const Tensor x = randn({9, 32}, 1, Dtype::kFloat32, true);
  const bool hf = storage == Storage::kHuggingFace;
  const Tensor values = randn(hf ? Shape{3, 48, 32} : Shape{3, 32, 48}, 2, Dtype::kFloat32);
  const Tensor y =
      grouped_matmul(x, storage == Storage::kNZ ? nd_to_nz(values) : values, offsets, hf);
  const auto& counters = context.counters();
  std::vector<std::int64_t> counts{counters.packed_panels, counters.transposed_packs};
  y.backward(randn({9, 48}, 3, Dtype::kFloat32));
  counts.push_back(counters.packed_panels);
  counts.push_back(counters.transposed_packs);
  EXPECT_EQ(counters.materialized_transposes, 0);
  return counts;
}

TEST(GroupedMatmul, CountsOnePackPerExpertWithRowsAndNoneForNz) {
  EXPECT_EQ(packing_of(Storage::kNZ), (std::vector<std::int64_t>{0, 0, 0, 0}));
  EXPECT_EQ(packing_of(Storage::kND), (std::vector<std::int64_t>{2, 0, 2, 2}));
  EXPECT_EQ(packing_of(Storage::kHuggingFace), (std::vector<std::int64_t>{0, 2, 2, 2}));
}

TEST(GroupedMatmul, RejectsWhatDoesNotFit) {
  const Tensor x = randn({8, 5}), weight = randn({3, 5, 4});
  const auto shape_message = [&](const Tensor& a, const Tensor& b, bool transposed = false) {
    return message_of<ShapeError>([&] { grouped_matmul(a, b, {0, 2, 4, 8}, transposed); });
  };
  EXPECT_EQ(shape_message(randn({8}), weight), "grouped_matmul: x must be [M, K], got [8]");
  EXPECT_EQ(shape_message(x, randn({15})),
            "grouped_matmul: weight must be [E, K, N] or [E * K, N], got [15]");
  EXPECT_EQ(
      shape_message(x, randn({16, 4})),
      "grouped_matmul: weight must be [E, K, N] or [E * K, N] with K = 5 and E = 3 to match x "
      "[8, 5], got [16, 4]");
  EXPECT_EQ(
      shape_message(x, randn({16, 5}), true),
      "grouped_matmul: weight must be [E, N, K] or [E * N, K] with K = 5 and E = 3 to match x "
      "[8, 5], got [16, 5]");
  EXPECT_EQ(shape_message(x, randn({3, 4, 5})),
            "grouped_matmul: weight must be [E, K, N] or [E * K, N] with K = 5 to match x [8, 5], "
            "got [3, 4, 5]");
  EXPECT_EQ(shape_message(x, weight, true),
            "grouped_matmul: weight must be [E, N, K] or [E * N, K] with K = 5 to match x [8, 5], "
            "got [3, 5, 4]");

  const auto offsets_message = [&](const std::vector<std::int64_t>& offsets) {
    return message_of<ValueError>([&] { grouped_matmul(x, weight, offsets); });
  };
  EXPECT_EQ(offsets_message({0, 2, 8}),
            "grouped_matmul: offsets must have 4 entries (experts + 1), got 3");
  EXPECT_EQ(offsets_message({1, 2, 4, 8}), "grouped_matmul: offsets must start at 0, got 1");
  EXPECT_EQ(offsets_message({0, 5, 4, 8}),
            "grouped_matmul: offsets must not decrease, got 5 then 4 for expert 1");
  EXPECT_EQ(offsets_message({0, 2, 4, 7}),
            "grouped_matmul: offsets must end at the 8 rows of x, got 7");

  const std::vector<std::int64_t> offsets{0, 2, 4, 8};
  EXPECT_EQ(message_of<DtypeError>([&] {
              grouped_matmul(Tensor::zeros({8, 5}, Dtype::kInt64), weight, offsets);
            }),
            "grouped_matmul: x must be float32, float64 or bfloat16, got int64");
  EXPECT_EQ(message_of<DtypeError>([&] {
              grouped_matmul(x, randn({3, 5, 4}, 1, Dtype::kFloat32), offsets);
            }),
            "grouped_matmul: x is float64 but weight is float32");
  EXPECT_EQ(
      message_of<LayoutError>([&] { grouped_matmul(nd_to_nz(x), weight, offsets); }),
      "grouped_matmul: input 0 must be row-major ND, got FRACTAL_NZ; convert it with nz_to_nd");
  const Tensor other_blocks = Tensor::empty_nz({3, 5, 4}, {1, 15, 4}, Dtype::kFloat64);
  EXPECT_EQ(message_of<LayoutError>([&] { grouped_matmul(x, other_blocks, offsets); }),
            "grouped_matmul: weight [3, 5, 4] must be FRACTAL_NZ blocks of that shape, got blocks "
            "of [1, 15, 4]");
}

}  // namespace
}  // namespace moegrad::ops::grouped_matmul_test
