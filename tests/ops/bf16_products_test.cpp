// SPDX-License-Identifier: Apache-2.0
// The ops of products in bfloat16: linear, grouped_matmul, npu_gmm, linear_cross_entropy.
#include <cmath>
#include <vector>

#include "framework/runtime/cpu_kernels.h"
#include "framework/runtime/rank_context.h"
#include "ops/cross_entropy.h"
#include "ops/elementwise.h"
#include "ops/grouped_matmul.h"
#include "ops/kernels/bf16/product.h"
#include "ops/linear.h"
#include "ops/linear_cross_entropy.h"
#include "ops/npu_gmm.h"
#include "ops/nz.h"
#include "ops/views.h"
#include "tests/ops/bf16_reference.h"
#include "tests/testing.h"

namespace moegrad::ops::bf16_products_test {
namespace {

using namespace test;

constexpr auto kBf16 = Dtype::kBFloat16, kF32 = Dtype::kFloat32, kF64 = Dtype::kFloat64;

// Runs the products of this rank with given kernels until the end.
class KernelsGuard {
 public:
  explicit KernelsGuard(CpuKernels kernels) : before_(RankContext::current().kernels()) {
    RankContext::current().set_kernels(kernels);
  }
  ~KernelsGuard() { RankContext::current().set_kernels(before_); }
  KernelsGuard(const KernelsGuard&) = delete;
  KernelsGuard& operator=(const KernelsGuard&) = delete;

 private:
  CpuKernels before_;
};

Tensor rounded(const Shape& shape, std::uint64_t seed) {
  return to_dtype(randn(shape, seed, kF32), kBf16);
}

// A matrix of bfloat16 as functions of row and column, or of column and row.
struct Matrix {
  std::vector<float> values;
  std::int64_t columns;

  explicit Matrix(const Tensor& tensor) : columns(tensor.dim(-1)) {
    const Tensor wide = to_dtype(tensor.detach(), kF32);
    const auto elements = wide.data<float>();
    values.assign(elements.begin(), elements.end());
  }
  float operator()(std::int64_t i, std::int64_t j) const {
    return values[static_cast<std::size_t>(i * columns + j)];
  }
};

// c[i, j] = sum over p < k of a(i, p) b(p, j) in the order of Note [bfloat16 products].
template <class A, class B>
Tensor product(std::int64_t m, std::int64_t n, std::int64_t k, const A& a, const B& b) {
  Tensor c = Tensor::empty({m, n}, kF32);
  const auto to = c.mutable_data<float>();
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      to[static_cast<std::size_t>(i * n + j)] = bf16_product(
          k, [&](std::int64_t p) { return a(i, p); }, [&](std::int64_t p) { return b(p, j); });
    }
  }
  return c;
}

struct Results {
  Tensor y, grad_x, grad_weight;
};

Results results_of(const Tensor& y, const Tensor& cotangent, const Tensor& x,
                   const Tensor& weight) {
  y.backward(cotangent);
  return {.y = y.detach(), .grad_x = x.grad(), .grad_weight = weight.grad()};
}

Tensor leaf(const Tensor& values) {
  Tensor tensor = values.detach();
  return tensor.set_requires_grad(true);
}

struct Case {
  std::int64_t m, k, n;
};
const std::vector<Case> kCases = {{1, 1, 1},    {5, 31, 17},   {17, 33, 16}, {33, 300, 40},
                                  {2, 520, 70}, {300, 48, 31}, {0, 8, 8},    {270, 64, 530}};

TEST(Bf16Products, LinearHasTheBitsOfScalarLoopsWithEveryKernel) {
  for (const auto& [m, k, n] : kCases) {
    const Tensor x = rounded({m, k}, 1), weight = rounded({n, k}, 2), g = rounded({m, n}, 3);
    const Matrix xs(x), ws(weight), gs(g);
    const Tensor y =
        to_dtype(product(m, n, k, xs, [&](auto p, auto j) { return ws(j, p); }), kBf16);
    const Tensor grad_x = to_dtype(product(m, k, n, gs, ws), kBf16);
    const Tensor grad_weight = product(
        n, k, m, [&](auto i, auto p) { return gs(p, i); }, xs);
    for (const auto kernels : available_cpu_kernels()) {
      const KernelsGuard guard(kernels);
      const Tensor in = leaf(x);
      const Tensor w = leaf(weight);
      const auto got = results_of(linear(in, w), g, in, w);
      EXPECT_EQ(got.y.dtype(), kBf16);
      EXPECT_TRUE(bitwise_equal(got.y, y)) << kernels << ' ' << m << ' ' << k << ' ' << n;
      EXPECT_TRUE(bitwise_equal(got.grad_x, to_dtype(grad_x, kF32))) << kernels;
      EXPECT_TRUE(bitwise_equal(got.grad_weight, grad_weight)) << kernels;
    }
  }
}

// Rows, columns, and which expert is empty; each product is that of its rows alone.
TEST(Bf16Products, GroupedProductsHaveTheBitsOfLinearForEachExpertInEveryStorage) {
  const std::vector<std::int64_t> counts{3, 0, 40, 7}, offsets{0, 3, 3, 43, 50};
  const std::int64_t experts = 4, k = 50, n = 70, rows = 50;
  const Tensor x = rounded({rows, k}, 1), g = rounded({rows, n}, 3);
  const Tensor weight = rounded({experts, k, n}, 2);
  Results expected{.y = Tensor::empty({rows, n}, kBf16),
                   .grad_x = Tensor::empty({rows, k}, kF32),
                   .grad_weight = Tensor::zeros({experts, k, n}, kF32)};
  for (std::int64_t e = 0; e < experts; ++e) {
    const auto at = static_cast<std::size_t>(e);
    const auto rows_of = [&](const Tensor& t) {
      return Tensor::narrow(t, 0, offsets[at], counts[at]);
    };
    const Tensor in = leaf(clone(rows_of(x)));
    const Tensor of_expert = transpose(weight[e], 0, 1);
    const Tensor w = leaf(clone(of_expert));
    const auto got = results_of(linear(in, w), rows_of(g), in, w);
    const auto put = [&](const Tensor& target, const Tensor& values) {
      Tensor part = Tensor::narrow(target, 0, offsets[at], counts[at]);
      copy_(part, values);
    };
    put(expected.y, got.y);
    put(expected.grad_x, got.grad_x);
    Tensor part = Tensor::narrow(expected.grad_weight, 0, e, 1);
    copy_(part, view(clone(transpose(got.grad_weight, 0, 1)), {1, k, n}));
  }
  const auto check_same = [&](const Results& got, const Tensor& grad_weight) {
    EXPECT_TRUE(bitwise_equal(got.y, expected.y));
    EXPECT_TRUE(bitwise_equal(got.grad_x, expected.grad_x));
    EXPECT_TRUE(bitwise_equal(grad_weight, expected.grad_weight));
  };
  for (const auto kernels : available_cpu_kernels()) {
    SCOPED_TRACE(to_string(kernels));
    const KernelsGuard guard(kernels);
    for (const Tensor& stored : {weight, nd_to_nz(weight)}) {
      const Tensor in = leaf(x);
      const Tensor w = leaf(stored);
      const auto got = results_of(npu_gmm(w, in, counts), g, in, w);
      check_same(got, got.grad_weight);
    }
    const Tensor turned = clone(transpose(weight, 1, 2));
    for (const Tensor& stored : {turned, nd_to_nz(turned)}) {
      const Tensor in = leaf(x);
      const Tensor w = leaf(stored);
      const auto got =
          results_of(grouped_matmul(in, w, offsets, /*transpose_weight=*/true), g, in, w);
      check_same(got, clone(transpose(got.grad_weight, 1, 2)));
    }
  }
}

// From so many rows on, each into panels of its own.
TEST(Bf16Products, WeightsOfExpertsWithManyRowsArePackedOnceEach) {
  const std::int64_t rows = 2 * kernels::bf16::kBlockRows + 1, k = 33, n = 17;
  const Tensor x = rounded({2 * rows, k}, 1), weight = rounded({2, k, n}, 2);
  const Tensor y = npu_gmm(weight, x, std::vector<std::int64_t>{rows, rows});
  for (std::int64_t e = 0; e < 2; ++e) {
    const Tensor of_expert = linear(narrow(x, 0, e * rows, rows), transpose(weight[e], 0, 1));
    EXPECT_TRUE(bitwise_equal(clone(narrow(y, 0, e * rows, rows)), of_expert)) << e;
  }
}

// Some are ignored.
Tensor drawn_targets(std::int64_t tokens, std::int64_t vocabulary) {
  Tensor targets = Tensor::empty({tokens}, Dtype::kInt64);
  std::int64_t t = 0;
  for (auto& target : targets.mutable_data<std::int64_t>()) {
    target = t % 5 == 3 ? -100 : t * 7 % vocabulary;
    ++t;
  }
  return targets;
}

// The logits and the loss are float32; what goes into the products of backward is rounded once.
TEST(Bf16Products, LinearCrossEntropyIsThatOfTheProductsBehindIt) {
  const std::int64_t tokens = kLinearCrossEntropyRows + 37, hidden = 40, vocabulary = 51;
  const Tensor x = rounded({tokens, hidden}, 1), weight = rounded({vocabulary, hidden}, 2);
  const Tensor targets = drawn_targets(tokens, vocabulary);
  const Matrix xs(x), ws(weight);
  const Tensor logits =
      leaf(product(tokens, vocabulary, hidden, xs, [&](auto p, auto j) { return ws(j, p); }));
  const Tensor loss = cross_entropy(logits, targets, {.denominator = 12.0});
  mul(loss, 0.7).backward();
  const Tensor g = to_dtype(logits.grad(), kBf16);
  const Matrix gs(g);
  const Tensor grad_x = to_dtype(product(tokens, hidden, vocabulary, gs, ws), kBf16);
  Tensor grad_weight;
  for (std::int64_t begin = 0; begin < tokens; begin += kLinearCrossEntropyRows) {
    const auto count = std::min(kLinearCrossEntropyRows, tokens - begin);
    const Tensor part = product(
        vocabulary, hidden, count, [&](auto i, auto p) { return gs(begin + p, i); },
        [&](auto p, auto j) { return xs(begin + p, j); });
    if (grad_weight.defined()) {
      add_(grad_weight, part);
    } else {
      grad_weight = part;
    }
  }
  for (const auto kernels : available_cpu_kernels()) {
    SCOPED_TRACE(to_string(kernels));
    const KernelsGuard guard(kernels);
    for (const Tensor& stored : {weight, nd_to_nz(weight)}) {
      const Tensor in = leaf(x);
      const Tensor w = leaf(stored);
      const Tensor fused = linear_cross_entropy(in, w, targets, {.denominator = 12.0});
      EXPECT_TRUE(bitwise_equal(fused.detach(), loss.detach()));
      mul(fused, 0.7).backward();
      EXPECT_TRUE(bitwise_equal(in.grad(), to_dtype(grad_x, kF32)));
      EXPECT_TRUE(bitwise_equal(w.grad(), grad_weight));
    }
  }
}

// |error| <= 2^-8 |result| + K 2^-24 sum |terms|, the second part alone where nothing is rounded.
struct Bound {
  double rounding;
  std::int64_t k;
  double operator()(double result, double terms) const {
    return rounding * std::fabs(result) + static_cast<double>(k) * 0x1p-24 * terms;
  }
};

// How many elements are outside the bound, against `exact` and `terms`, the sums of |terms|.
std::int64_t outside(const Tensor& got, const Tensor& exact, const Tensor& terms, Bound bound) {
  const Tensor values = to_dtype(got, kF64);
  std::int64_t count = 0;
  for (std::size_t i = 0; i < values.data<double>().size(); ++i) {
    const auto result = exact.data<double>()[i];
    const auto error = std::fabs(values.data<double>()[i] - result);
    if (!(error <= bound(result, terms.data<double>()[i]))) ++count;
  }
  return count;
}

Tensor drawn(const Shape& shape, std::uint64_t seed, bool uniform) {
  const Tensor values = uniform ? Tensor::uniform(shape, {seed, "bf16 products"})
                                : Tensor::randn(shape, {seed, "bf16 products"});
  return to_dtype(values, kBf16);
}

// In float64, and with a sum that is rounded to bfloat16 after each term beside it.
TEST(Bf16Products, AreWithinTheBoundAndASumInBfloat16IsNot) {
  const std::int64_t m = 24, n = 40;
  for (const std::int64_t k : {256, 1000, 2048}) {
    for (const bool uniform : {false, true}) {
      const Tensor x = drawn({m, k}, 1, uniform), weight = drawn({n, k}, 2, uniform);
      const Tensor g = drawn({m, n}, 3, uniform);
      const auto exact = [&](const Tensor& left, const Tensor& right) {  // left right^T
        return linear(to_dtype(left, kF64), to_dtype(right, kF64));
      };
      const auto magnitudes = [&](const Tensor& left, const Tensor& right) {
        return linear(abs(to_dtype(left, kF64)), abs(to_dtype(right, kF64)));
      };
      const auto turned = [](const Tensor& t) { return clone(transpose(t, 0, 1)); };
      const Tensor in = leaf(x);
      const Tensor w = leaf(weight);
      const auto got = results_of(linear(in, w), g, in, w);
      const Tensor gt = turned(g), xt = turned(x), wt = turned(weight);
      EXPECT_EQ(outside(got.y, exact(x, weight), magnitudes(x, weight), {0x1p-8, k}), 0);
      EXPECT_EQ(outside(got.grad_x, exact(g, wt), magnitudes(g, wt), {0x1p-8, n}), 0);
      EXPECT_EQ(outside(got.grad_weight, exact(gt, xt), magnitudes(gt, xt), {0, m}), 0);

      const Matrix xs(x), ws(weight);
      Tensor narrow = Tensor::empty({m, n}, kF32);
      for (std::int64_t i = 0; i < m; ++i) {
        for (std::int64_t j = 0; j < n; ++j) {
          BFloat16 sum(0.0F);
          for (std::int64_t p = 0; p < k; ++p) {
            sum = BFloat16(static_cast<float>(sum) + xs(i, p) * ws(j, p));
          }
          narrow.mutable_data<float>()[static_cast<std::size_t>(i * n + j)] =
              static_cast<float>(sum);
        }
      }
      EXPECT_GT(outside(narrow, exact(x, weight), magnitudes(x, weight), {0x1p-8, k}), m * n / 2)
          << k << (uniform ? " uniform" : " normal");
    }
  }
}

TEST(Bf16Products, LinearThatGivesFloat32HasTheBitsOfLinearCrossEntropyBehindIt) {
  const Tensor x = rounded({700, 40}, 1), weight = rounded({51, 40}, 2);
  const Tensor targets = drawn_targets(700, 51);
  const auto run = [&](bool fused) {
    const Tensor in = leaf(x), w = leaf(weight);
    const CrossEntropyOptions options{.denominator = 12.0};
    const Tensor loss =
        fused ? linear_cross_entropy(in, w, targets, options)
              : cross_entropy(linear(in, w, kLinearCrossEntropyRows, kF32), targets, options);
    mul(loss, 0.7).backward();
    return TensorList{loss.detach(), in.grad(), w.grad()};
  };
  const auto fused = run(true), plain = run(false);
  for (std::size_t i = 0; i < fused.size(); ++i)
    EXPECT_TRUE(bitwise_equal(fused[i], plain[i])) << i;
}

// A router: float32 arithmetic on rows that are kept in bfloat16.
TEST(Bf16Products, LinearOfAFloat32WeightWidensRowsWhereItIsAskedTo) {
  const Tensor x = rounded({9, 40}, 1), weight = randn({5, 40}, 2, kF32),
               g = randn({9, 5}, 3, kF32);
  const Tensor wide = leaf(to_dtype(x, kF32)), w = leaf(weight);
  const auto expected = results_of(linear(wide, w), g, wide, w);
  const Tensor narrow = leaf(x), own = leaf(weight);
  const auto got = results_of(linear(narrow, own, 0, kF32), g, narrow, own);
  EXPECT_TRUE(bitwise_equal(got.y, expected.y));
  EXPECT_TRUE(bitwise_equal(got.grad_x, expected.grad_x));
  EXPECT_TRUE(bitwise_equal(got.grad_weight, expected.grad_weight));
}

TEST(Bf16Products, CastToNzPacksAWeightWhoseGradientIsNotRounded) {
  const std::int64_t experts = 3, k = 37, n = 50;
  const Tensor weight = randn({experts * k, n}, 2, kF32);
  const Tensor stacked = view(weight, {experts, k, n});
  for (const bool transposed : {false, true}) {
    const Tensor w = leaf(weight);
    const Tensor packed = cast_to_nz(w, {experts, k, n}, transposed);
    EXPECT_EQ(packed.storage().nz_pairs().transposed, transposed);
    EXPECT_EQ(packed.storage().tag(), MemoryTag::kParameters);
    EXPECT_TRUE(bitwise_equal(nz_to_nd(packed.detach()), to_dtype(weight, kBf16)));
    const Tensor x = rounded({12, k}, 1), g = rounded({12, n}, 3);
    const std::vector<std::int64_t> counts{5, 0, 7};
    const Tensor y = npu_gmm(packed, x, counts);
    const Tensor rounded_weight = leaf(to_dtype(stacked, kBf16));
    const Tensor expected = npu_gmm(rounded_weight, x, counts);
    EXPECT_TRUE(bitwise_equal(y.detach(), expected.detach()));
    y.backward(g);
    expected.backward(g);
    EXPECT_TRUE(bitwise_equal(w.grad(), view(rounded_weight.grad(), {experts * k, n})));
  }
  EXPECT_EQ(message_of<ShapeError>([&] {
              cast_to_nz(weight, {2, k, n}, false);
            }),
            "cast_to_nz: weight must be [2, 37, 50] or [74, 50], got [111, 50]");
  EXPECT_EQ(message_of<DtypeError>([&] {
              cast_to_nz(rounded({k, n}, 1), {1, k, n}, false);
            }),
            "cast_to_nz: weight must be float32, got bfloat16");
}

TEST(Bf16Products, MixNoDtypes) {
  const Tensor x = rounded({4, 8}, 1), weight = rounded({6, 8}, 2);
  const Tensor wide = randn({6, 8}, 2, kF32);
  EXPECT_EQ(message_of<DtypeError>([&] { linear(x, wide); }),
            "linear: x is bfloat16 but weight is float32; convert it with ops::cast");
  EXPECT_EQ(message_of<DtypeError>([&] { linear(wide, weight); }),
            "linear: x is float32 but weight is bfloat16; convert it with ops::cast");
  EXPECT_EQ(message_of<DtypeError>([&] { linear(x, weight, 0, kF64); }),
            "linear: dtype must be that of the weight, bfloat16, or float32, got float64");
  EXPECT_EQ(message_of<DtypeError>(
                [&] { linear_cross_entropy(x, wide, Tensor::zeros({4}, Dtype::kInt64), {}); }),
            "linear_cross_entropy: x is bfloat16 but weight is float32; convert it with ops::cast");
  EXPECT_EQ(message_of<DtypeError>([&] {
              npu_gmm(randn({1, 8, 6}, 2, kF32), x, std::vector<std::int64_t>{4});
            }),
            "npu_gmm: x is bfloat16 but weight is float32; convert it with ops::cast");
}

// FRACTAL_NZ that was packed for one kind of kernels is read by all of this kind, and refused by
// the other.
TEST(Bf16Products, RefuseThePairsOfOtherKernels) {
  const Tensor x = rounded({4, 8}, 1), weight = rounded({1, 8, 6}, 2);
  const std::vector<std::int64_t> counts{4};
  const Tensor expected = npu_gmm(weight, x, counts);
  for (const auto packed : available_cpu_kernels()) {
    const Tensor nz = [&] {
      const KernelsGuard guard(packed);
      return nd_to_nz(weight);
    }();
    for (const auto read : available_cpu_kernels()) {
      const KernelsGuard guard(read);
      if ((packed == CpuKernels::kAmx) == (read == CpuKernels::kAmx)) {
        EXPECT_TRUE(bitwise_equal(npu_gmm(nz, x, counts), expected));
      } else {
        const auto message = message_of<LayoutError>([&] { npu_gmm(nz, x, counts); });
        const std::string begin = "products: FRACTAL_NZ of bfloat16 must have the pairs that ";
        EXPECT_TRUE(message.starts_with(begin + std::string(to_string(read)))) << message;
        EXPECT_TRUE(
            message.ends_with("; convert it with nz_to_nd, and nd_to_nz under these kernels"))
            << message;
      }
      // The conversions read what is stored.
      EXPECT_TRUE(bitwise_equal(nz_to_nd(nz), weight));
    }
  }
}

}  // namespace
}  // namespace moegrad::ops::bf16_products_test
