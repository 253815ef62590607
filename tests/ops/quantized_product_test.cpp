// SPDX-License-Identifier: Apache-2.0
#include "ops/quantized_product.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "framework/distributed/comm_handle.h"
#include "framework/distributed/launch.h"
#include "framework/runtime/random.h"
#include "framework/runtime/rank_context.h"
#include "framework/tensor/fill.h"
#include "framework/tensor/nested_values.h"
#include "ops/copies.h"
#include "ops/mm_all_reduce.h"
#include "ops/views.h"
#include "tests/testing.h"

namespace moegrad::ops::quantized_product_test {
namespace {

using namespace test;

constexpr auto kF32 = Dtype::kFloat32, kBf16 = Dtype::kBFloat16, kInt8 = Dtype::kInt8;
using Integers = std::vector<std::int64_t>;

/// Each from -128 to 127; with `extreme` only these two, which make the largest sums.
Tensor codes(const Shape& shape, std::uint64_t seed, bool extreme) {
  Tensor tensor = Tensor::empty(shape, kInt8);
  const Random random(seed, "codes");
  std::uint64_t i = 0;
  for (auto& code : tensor.mutable_data<std::int8_t>()) {
    code = static_cast<std::int8_t>(extreme ? (i < 3 || random.integer(i, 4) > 0 ? -128 : 127)
                                            : random.integer(i, 256) - 128);
    ++i;
  }
  return tensor;
}

Integers integers_of(const Tensor& tensor) { return integers(to_dtype(tensor, Dtype::kInt64)); }

/// sums [rows, n] += x [rows, k] w [k, n]
void add_product(const Tensor& x, const Tensor& w, Integers& sums) {
  const auto left = integers_of(x), right = integers_of(w);
  const auto k = static_cast<std::size_t>(w.dim(0)), n = static_cast<std::size_t>(w.dim(1));
  for (std::size_t at = 0; at < sums.size(); ++at) {
    for (std::size_t p = 0; p < k; ++p) sums[at] += left[at / n * k + p] * right[p * n + at % n];
  }
}

/// Whether no other number of the type is nearer, and of two that are as near this is the even one.
template <class T>
bool is_nearest(T y, long double exact) {
  using Bits = std::conditional_t<sizeof(T) == 2, std::uint16_t, std::uint32_t>;
  const auto bits = std::bit_cast<Bits>(y);
  const auto off = [&](Bits other) {
    return std::abs(static_cast<long double>(static_cast<double>(std::bit_cast<T>(other))) - exact);
  };
  const long double own = off(bits);
  if (own == 0) return true;
  for (const auto other : {static_cast<Bits>(bits - 1), static_cast<Bits>(bits + 1)}) {
    if (off(other) < own || (off(other) == own && (bits & 1) != 0)) return false;
  }
  return true;
}

template <class T>
void expect_rounded_once(const Tensor& y, const Integers& sums, const Tensor& scale) {
  const auto got = y.data<T>();
  const auto factors = to_dtype(scale, Dtype::kFloat64);
  ASSERT_EQ(got.size(), sums.size());
  const auto n = static_cast<std::size_t>(y.dim(-1));
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const auto factor = factors.data<double>()[scale.numel() == 1 ? 0 : i % n];
    // 64 bits of a long double hold it.
    const long double exact = static_cast<long double>(sums[i]) * static_cast<long double>(factor);
    ASSERT_TRUE(is_nearest(got[i], exact)) << "element " << i << " of sum " << sums[i];
  }
}

TEST(QuantizedMmAllReduce, IsTheSumOfIntegersRoundedOnce) {
  for (const int ranks : {1, 2, 4}) {
    launch(ranks, [&](RankContext& context) {
      const auto handle = comm_handle(context.group());
      for (const bool extreme : {false, true}) {
        for (const auto& shape : {Shape{13, 40}, Shape{3, 5, 8}, Shape{1, 1}, Shape{4, 1024},
                                  Shape{5, 1025}, Shape{2, 5000}}) {
          const std::int64_t rows = shape.numel() / shape[-1], n = 9;
          const auto part = [&](int rank, std::uint64_t of) {
            const auto seed = 2 * static_cast<std::uint64_t>(rank) + of;
            return codes(of == 0 ? shape : Shape{shape[-1], n}, seed, extreme);
          };
          const Tensor bias = to_dtype(codes({n}, 90, false), Dtype::kInt32);
          Integers sums(static_cast<std::size_t>(rows * n));
          for (int rank = 0; rank < ranks; ++rank) {
            add_product(part(rank, 0), part(rank, 1), sums);
          }
          for (std::size_t i = 0; i < sums.size(); ++i) {
            sums[i] += bias.data<std::int32_t>()[i % static_cast<std::size_t>(n)];
          }
          for (const auto dtype : {kF32, kBf16}) {
            for (const auto& scale :
                 {randn({1}, 5, dtype), randn({n}, 6, dtype), randn({1, n}, 7, dtype)}) {
              for (const std::int64_t tiles : {1, 3, 100}) {
                const Tensor y =
                    mm_all_reduce(part(context.rank(), 0), part(context.rank(), 1), handle,
                                  {.bias = bias, .dequant_scale = scale, .tiles = tiles});
                Shape expected = shape;
                expected[-1] = n;
                ASSERT_EQ(y.shape(), expected);
                ASSERT_EQ(y.dtype(), dtype);
                if (dtype == kF32) {
                  expect_rounded_once<float>(y, sums, scale);
                } else {
                  expect_rounded_once<BFloat16>(y, sums, scale);
                }
              }
            }
          }
        }
      }
    });
  }
}

// The product is half-way between two floats for a double, and is not.
TEST(QuantizedMmAllReduce, RoundsOnceWhereADoubleIsTooShort) {
  launch(1, [](RankContext& context) {
    const auto handle = comm_handle(context.group());
    const Tensor zero = Tensor::zeros({1, 1}, kInt8);
    for (const auto& [whole, scale] : {std::pair{1862382403, 14217579},
                                       {1959595711, 13459775},
                                       {1311855631, 16311569},
                                       {2112156857, 14757495}}) {
      for (const int sign : {1, -1}) {
        const Tensor bias = Tensor::of({sign * whole}, Dtype::kInt32);
        const Tensor by = Tensor::of({scale}, kF32);
        const Tensor y = mm_all_reduce(zero, zero, handle, {.bias = bias, .dequant_scale = by});
        expect_rounded_once<float>(y, {sign * whole}, by);
      }
    }
  });
}

TEST(QuantizedMmAllReduce, ReadsViewsAndLeavesABiasOut) {
  launch(2, [](RankContext& context) {
    const auto handle = comm_handle(context.group());
    const Tensor x1 = codes({6, 10}, 1, false), x2 = codes({10, 7}, 2, false);
    const Tensor scale = Tensor::of({0.5}, kF32);
    const Tensor none = Tensor::zeros({7}, Dtype::kInt32);
    const Tensor expected = mm_all_reduce(x1, x2, handle, {.bias = none, .dequant_scale = scale});
    const Tensor turned = transpose(clone(transpose(x2, 0, 1)), 0, 1);
    const Tensor y = mm_all_reduce(x1, turned, handle, {.dequant_scale = scale});
    EXPECT_TRUE(bitwise_equal(y, expected));
    EXPECT_FALSE(y.requires_grad());
    const Tensor strided = narrow(Tensor::of({{0.5, 7}, {0.5, 7}}, kF32), 1, 0, 1);
    const Tensor one = transpose(narrow(strided, 0, 0, 1), 0, 1);
    EXPECT_TRUE(bitwise_equal(mm_all_reduce(x1, x2, handle, {.dequant_scale = select(one, 0, 0)}),
                              expected));
  });
}

TEST(QuantizedMmAllReduce, KeepsTheLargestSumsThatItTakes) {
  launch(2, [](RankContext& context) {
    const auto handle = comm_handle(context.group());
    const Tensor scale = Tensor::of({1}, kF32);
    const auto k = kMostQuantizedTerms / 2;
    const Tensor row = Tensor::full({1, k}, -128, kInt8);
    const Tensor y = mm_all_reduce(row, transpose(row, 0, 1), handle, {.dequant_scale = scale});
    EXPECT_EQ(y.item<float>(), static_cast<float>(2 * k * 128 * 128));
    const Tensor longer = Tensor::full({1, k + 1}, 1, kInt8);
    EXPECT_EQ(
        message_of<ShapeError>([&] {
          mm_all_reduce(longer, transpose(longer, 0, 1), handle, {.dequant_scale = scale});
        }),
        "mm_all_reduce: k of int8 must be at most 65535 on 2 ranks, whose sums int32 holds, got "
        "65536");
  });
}

TEST(QuantizedMmAllReduce, RefusesWhatDoesNotGoWithInt8) {
  launch(1, [](RankContext& context) {
    const auto handle = comm_handle(context.group());
    const Tensor x1 = codes({2, 3}, 1, false), x2 = codes({3, 4}, 2, false);
    const Tensor scale = randn({4}, 3, kF32);
    const auto refused = [&](const MmAllReduceOptions& options) {
      return message_of<Error>([&] { mm_all_reduce(x1, x2, handle, options); });
    };
    EXPECT_EQ(refused({}), "mm_all_reduce: int8 operands need a dequant_scale");
    EXPECT_EQ(refused({.bias = randn({4}, 1, kF32), .dequant_scale = scale}),
              "mm_all_reduce: bias must be int32 for int8 operands, got float32");
    EXPECT_EQ(refused({.bias = Tensor::zeros({3}, Dtype::kInt32), .dequant_scale = scale}),
              "mm_all_reduce: bias must be [4], got [3]");
    EXPECT_EQ(refused({.x3 = randn({2, 4}, 1, kF32), .dequant_scale = scale}),
              "mm_all_reduce: x3 must be left out for int8 operands");
    EXPECT_EQ(refused({.dequant_scale = randn({4}, 3)}),
              "mm_all_reduce: dequant_scale must be float32 or bfloat16, got float64");
    EXPECT_EQ(refused({.dequant_scale = randn({2}, 3, kF32)}),
              "mm_all_reduce: dequant_scale must be [1], [4] or [1, 4], got [2]");
    EXPECT_EQ(refused({.dequant_scale = clone(scale).set_requires_grad(true)}),
              "mm_all_reduce: the product of int8 has no gradient, but dequant_scale requires one");
    const std::string reserved =
        "mm_all_reduce: antiquant_scale, antiquant_offset and antiquant_group_size are reserved; "
        "convert x2 before";
    EXPECT_EQ(refused({.antiquant_scale = scale}), reserved);
    EXPECT_EQ(refused({.antiquant_offset = scale}), reserved);
    EXPECT_EQ(refused({.antiquant_group_size = 32}), reserved);
    const auto message = [&](const Tensor& left, const Tensor& right,
                             const MmAllReduceOptions& options) {
      return message_of<Error>([&] { mm_all_reduce(left, right, handle, options); });
    };
    const Tensor real = randn({2, 3}, 1, kF32), weight = randn({3, 4}, 1, kF32);
    EXPECT_EQ(message(real, x2, {}),
              "mm_all_reduce: x1 is float32 but x2 is int8; convert it with ops::cast");
    EXPECT_EQ(message(x1, weight, {.dequant_scale = scale}),
              "mm_all_reduce: x1 is int8 but x2 is float32; convert it with ops::cast");
    EXPECT_EQ(message(real, weight, {.dequant_scale = scale}),
              "mm_all_reduce: dequant_scale is for int8 operands, got float32");
    EXPECT_EQ(message(to_dtype(x1, Dtype::kInt32), to_dtype(x2, Dtype::kInt32), {}),
              "mm_all_reduce: x1 must be float32, float64 or bfloat16, got int32");
  });
}

}  // namespace
}  // namespace moegrad::ops::quantized_product_test
