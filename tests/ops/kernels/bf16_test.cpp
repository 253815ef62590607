// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iostream>
#include <limits>
#include <ostream>
#include <vector>

#include "framework/runtime/random.h"
#include "framework/tensor/layout.h"
#include "ops/kernels/bf16/kernels.h"
#include "ops/kernels/bf16/pack.h"
#include "ops/kernels/bf16/product.h"
#include "ops/kernels/simd.h"
#include "tests/ops/bf16_reference.h"
#include "tests/testing.h"

namespace moegrad::kernels::bf16::bf16_test {
namespace {

template <class T>
T& at(std::vector<T>& values, std::int64_t i) {
  return values[static_cast<std::size_t>(i)];
}
template <class T>
const T& at(const std::vector<T>& values, std::int64_t i) {
  return values[static_cast<std::size_t>(i)];
}

// What the operands consist of.
enum class Kind : std::uint8_t {
  kNormal,
  kTiny,     // products and sums about 2^-126
  kSpread,   // over all exponents but the largest
  kSpecial,  // zeros of both signs, denormals, powers of two whose products are about 2^-126
  kEndless,  // some infinities and NaN among them
};
constexpr int kKinds = 5;

struct Numbers {
  Random random;
  Kind kind;

  BFloat16 operator()(std::uint64_t i) const {
    const auto pick = [&](int from, int to) {
      return from + static_cast<int>(random.integer(2 * i + 1, to - from + 1));
    };
    const auto x = static_cast<float>(random.normal(2 * i));
    switch (kind) {
      case Kind::kNormal:
        break;
      case Kind::kTiny:
        return BFloat16(std::ldexp(x, pick(-68, -56)));
      case Kind::kSpread:
        return BFloat16(std::ldexp(x, pick(-130, 60)));
      case Kind::kSpecial:
        switch (pick(0, 7)) {
          case 0:
            return BFloat16(0.0F);
          case 1:
            return BFloat16(-0.0F);
          case 2:
            return BFloat16(std::ldexp(x, -130));
          case 3:
            return BFloat16(std::copysign(0x1p-63F, x));
          case 4:
            return BFloat16(std::copysign(0x1.02p-64F, x));
          default:
            return BFloat16(std::ldexp(x, pick(-66, -60)));
        }
      case Kind::kEndless:
        switch (pick(0, 400)) {
          case 0:
            return BFloat16(std::numeric_limits<float>::infinity());
          case 1:
            return BFloat16(-std::numeric_limits<float>::infinity());
          case 2:
            return BFloat16(std::numeric_limits<float>::quiet_NaN());
          default:
            break;
        }
    }
    return BFloat16(x);
  }
};

struct Sizes {
  std::int64_t m, n, k;
  RightForm form = RightForm::kRows;
  bool left_by_columns = false, adds = false, rounds = false;
  Kind kind = Kind::kNormal;
};

std::ostream& operator<<(std::ostream& out, const Sizes& sizes) {
  return out << "[" << sizes.m << ", " << sizes.k << "] by [" << sizes.k << ", " << sizes.n
             << "], form " << static_cast<int>(sizes.form)
             << (sizes.left_by_columns ? ", left by columns" : "") << (sizes.adds ? ", adds" : "")
             << (sizes.rounds ? ", rounds" : "") << ", numbers of kind "
             << static_cast<int>(sizes.kind);
}

// One product, which every kernel computes; rows of C end with elements that nobody may touch.
class Product {
 public:
  static constexpr std::int64_t kBeyond = 3;

  Product(const Sizes& sizes, std::uint64_t seed) : sizes_(sizes) {
    const auto numbers = [&](std::int64_t count, std::uint64_t of) {
      const Numbers number{Random(4 * seed + of, "bf16_test"), sizes.kind};
      std::vector<BFloat16> values(static_cast<std::size_t>(count));
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = number(i);
      return values;
    };
    a_ = numbers(sizes.m * sizes.k, 0);
    b_ = numbers(sizes.k * sizes.n, 1);
    for (const auto& each : numbers(sizes.m * sizes.n, 2)) {
      start_.push_back(static_cast<float>(each) * 1.001F);
    }
  }

  // B in one of its forms.
  struct Right {
    std::vector<BFloat16> data;
    RightForm form;
    std::int64_t stride;

    RightOperand<BFloat16> operand() const { return {data.data(), form, stride}; }
  };
  Right right_operand(RightForm form, PairOrder order) const {
    const auto n = sizes_.n, k = sizes_.k;
    if (form == RightForm::kRows) return {b_, form, n};
    if (form == RightForm::kColumns) {
      Right right{b_, form, k};
      for (std::int64_t i = 0; i < k * n; ++i) at(right.data, i % n * k + i / n) = at(b_, i);
      return right;
    }
    const NzBlocks blocks{1, k, n};
    const NzPairs pairs{order, form == RightForm::kNzTransposed};
    Right right{{}, form, round_up(pairs.transposed ? n : k, kUnit)};
    right.data.resize(static_cast<std::size_t>(blocks.numel(Dtype::kBFloat16)));
    for (std::int64_t i = 0; i < k * n; ++i) {
      at(right.data, nz_offset(i / n, i % n, blocks, pairs)) = at(b_, i);
    }
    return right;
  }
  BFloat16 right(std::int64_t p, std::int64_t j) const { return at(b_, p * sizes_.n + j); }

  std::vector<float> by_definition() const {
    const auto [m, n, k, form, left_by_columns, adds, rounds, kind] = sizes_;
    std::vector<float> c;
    for (std::int64_t i = 0; i < m; ++i) {
      for (std::int64_t j = 0; j < n; ++j) {
        const auto y = test::bf16_product(
            k, [&, i = i, k = k](std::int64_t p) { return static_cast<float>(at(a_, i * k + p)); },
            [&, j = j, n = n](std::int64_t p) { return static_cast<float>(at(b_, p * n + j)); });
        const auto sum = adds ? test::flushed_sum(at(start_, i * n + j), y) : y;
        c.push_back(rounds ? static_cast<float>(BFloat16(sum)) : sum);
      }
    }
    return c;
  }

  std::vector<float> by(const Loops& loops, std::int64_t rows = kBlockRows,
                        std::int64_t columns = kBlockColumns) const {
    const auto m = sizes_.m, n = sizes_.n, k = sizes_.k, stride = n + kBeyond;
    std::vector<BFloat16> left(a_);
    const auto right = right_operand(sizes_.form, loops.order);
    Problem problem{.a = {left.data(), k, 1},
                    .b = right.operand(),
                    .c_stride = stride,
                    .m = m,
                    .n = n,
                    .k = k,
                    .adds = sizes_.adds};
    if (sizes_.left_by_columns) {
      for (std::int64_t i = 0; i < m * k; ++i) at(left, i % k * m + i / k) = at(a_, i);
      problem.a = {left.data(), 1, m};
    }
    constexpr float kUntouched = 77;
    std::vector<float> c(static_cast<std::size_t>(m * stride), kUntouched);
    std::vector<BFloat16> rounded(c.size(), BFloat16(kUntouched));
    for (std::int64_t i = 0; sizes_.adds && i < m * n; ++i) {
      at(c, i / n * stride + i % n) = at(start_, i);
    }
    problem.c = c.data();
    if (sizes_.rounds) problem.rounded_c = rounded.data();
    for (std::int64_t i = 0; i < m; i += rows) {
      for (std::int64_t j = 0; j < n; j += columns) {
        multiply_block(problem, i, std::min(rows, m - i), j, std::min(columns, n - j), loops);
      }
    }
    std::vector<float> whole;
    for (std::int64_t i = 0; i < m * stride; ++i) {
      const float value = sizes_.rounds ? static_cast<float>(at(rounded, i)) : at(c, i);
      if (i % stride < n) {
        whole.push_back(value);
      } else {
        EXPECT_EQ(value, kUntouched);
      }
    }
    return whole;
  }

 private:
  Sizes sizes_;
  std::vector<BFloat16> a_, b_;  // [m, k], [k, n]
  std::vector<float> start_;
};

// Equal bits, but any NaN for a NaN.
bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return std::ranges::equal(a, b, [](float x, float y) {
    return (std::isnan(x) && std::isnan(y)) || std::memcmp(&x, &y, sizeof(x)) == 0;
  });
}

TEST(Bf16Order, PlacesStepsAsItsWordsSay) {
  for (std::int64_t p = 0; p < kUnit; ++p) EXPECT_EQ(place_in_unit(PairOrder::kNeighbours, p), p);
  std::vector<std::int64_t> steps(kUnit);
  for (std::int64_t p = 0; p < kUnit; ++p) at(steps, place_in_unit(PairOrder::kChains, p)) = p;
  // The lower half of each word, then the upper one.
  EXPECT_EQ(steps,
            (std::vector<std::int64_t>{2, 0, 6, 4, 10, 8, 14, 12, 18, 16, 22, 20, 26, 24, 30, 28,
                                       3, 1, 7, 5, 11, 9, 15, 13, 19, 17, 23, 21, 27, 25, 31, 29}));
}

// Sixteen lanes of steps that are all different, and the strides between them.
class Bf16Pack : public testing::TestWithParam<bool> {
 protected:
  static constexpr std::int64_t kStride = 35;

  Bf16Pack() : values(kStride * kStride) {
    for (std::size_t i = 0; i < values.size(); ++i) values[i].bits = static_cast<std::uint16_t>(i);
  }
  BFloat16 value(std::int64_t step, std::int64_t lane) const {
    return at(values, step * from.step_stride + lane * from.lane_stride);
  }

  std::vector<BFloat16> values;
  const Lanes from{values.data(), GetParam() ? kStride : 1, GetParam() ? 1 : kStride};
  std::vector<BFloat16> unit = std::vector<BFloat16>(kUnit * kPanel, BFloat16(77));
  std::byte* const bytes = reinterpret_cast<std::byte*>(unit.data());
};
INSTANTIATE_TEST_SUITE_P(BySteps, Bf16Pack, testing::Bool());

TEST_P(Bf16Pack, PutsEachStepIntoItsPlaceAndZeroWhereThereIsNone) {
  for (const auto order : {PairOrder::kNeighbours, PairOrder::kChains}) {
    for (const std::int64_t lanes : {1, 15, 16}) {
      for (const std::int64_t steps : {1, 2, 31, 32}) {
        pack_unit(from, steps, lanes, order, bytes);
        for (std::int64_t p = 0; p < kUnit; ++p) {
          for (std::int64_t i = 0; i < kPanel; ++i) {
            const auto place = place_in_unit(order, p);
            const auto expected = p < steps && i < lanes ? value(p, i) : BFloat16();
            ASSERT_EQ(at(unit, (place / 2 * kPanel + i) * 2 + place % 2), expected)
                << "step " << p << " of lane " << i;
          }
        }
      }
    }
  }
}

TEST_P(Bf16Pack, OfRowsKeepsTheStepsOfALaneTogether) {
  for (const std::int64_t lanes : {1, 15, 16}) {
    for (const std::int64_t steps : {1, 2, 31, 32}) {
      pack_unit_of_rows(from, steps, lanes, bytes);
      for (std::int64_t i = 0; i < kUnit * kPanel; ++i) {
        const auto p = i % kUnit, lane = i / kUnit;
        ASSERT_EQ(at(unit, i), p < steps && lane < lanes ? value(p, lane) : BFloat16())
            << "step " << p << " of lane " << lane;
      }
    }
  }
}

TEST_P(Bf16Pack, IsReadBackBySixteenSteps) {
  for (const auto order : {PairOrder::kNeighbours, PairOrder::kChains}) {
    pack_unit(from, kUnit, kPanel, order, bytes);
    for (const std::int64_t first : {0, 16}) {
      constexpr std::int64_t kTo = kPanel + 3;
      std::vector<BFloat16> steps(16 * kTo, BFloat16(77));
      unpack_steps(bytes, order, first, steps.data(), kTo);
      for (std::int64_t i = 0; i < std::ssize(steps); ++i) {
        const auto p = i / kTo, lane = i % kTo;
        ASSERT_EQ(at(steps, i), lane < kPanel ? value(first + p, lane) : BFloat16(77)) << p;
      }
    }
  }
}

TEST(Bf16Product, HasTheBitsOfItsDefinitionWithEveryKernel) {
  std::cout << "kernels: " << names_of_cpu_kernels() << "\n";
  const int cases = test::full_suite() ? 1'000 : 150;
  const Random random(7, "bf16_test sizes");
  for (int i = 0; i < cases; ++i) {
    std::uint64_t draws = 0;
    const auto upto = [&](std::int64_t most) {
      return random.integer(64 * static_cast<std::uint64_t>(i) + draws++, most + 1);
    };
    Sizes sizes{.m = 1 + upto(i % 3 == 0 ? 99 : 19),
                .n = 1 + upto(i % 5 == 0 ? 299 : 69),
                .k = upto(i % 4 == 0 ? 3'000 : 600),
                .form = static_cast<RightForm>(upto(3)),
                .left_by_columns = upto(1) == 0,
                .adds = upto(2) == 0,
                .rounds = upto(2) == 0,
                .kind = static_cast<Kind>(upto(kKinds - 1))};
    const bool tiny = sizes.kind != Kind::kNormal && sizes.kind != Kind::kEndless;
    if (tiny && !kFusesMultiplyAdd) sizes.kind = Kind::kNormal;
    sizes.rounds = sizes.rounds && !sizes.adds;
    const Product product(sizes, static_cast<std::uint64_t>(i));
    const auto expected = product.by_definition();
    for (const auto kernels : available_cpu_kernels()) {
      const auto& loops = loops_of(kernels);
      ASSERT_TRUE(same_bits(product.by(loops), expected)) << kernels << ": " << sizes;
      ASSERT_TRUE(same_bits(product.by(loops, 1 + upto(40), kPanel * (1 + upto(3))), expected))
          << kernels << " in blocks: " << sizes;
    }
  }
}

TEST(Bf16Product, ReadsAPackedRightOperandLikeAnyOther) {
  const Random random(7, "bf16_test packed");
  for (std::uint64_t c = 0; c < 40; ++c) {
    const auto k = 1 + random.integer(3 * c, 300), n = 1 + random.integer(3 * c + 1, 100);
    const auto cut = std::min(n, random.integer(3 * c + 2, 7) * kPanel);
    const Product product({.m = 1, .n = n, .k = k}, c);
    for (const auto order : {PairOrder::kNeighbours, PairOrder::kChains}) {
      const auto rows = round_up(k, kUnit), columns = round_up(n, kPanel);
      std::vector<BFloat16> expected(static_cast<std::size_t>(rows * columns));
      for (std::int64_t i = 0; i < k * n; ++i) {
        at(expected, nz_offset(i / n, i % n, {1, k, n}, {order})) = product.right(i / n, i % n);
      }
      for (const auto form : {RightForm::kRows, RightForm::kColumns, RightForm::kNzTransposed}) {
        const auto stored = product.right_operand(form, order);
        std::vector<BFloat16> packed(expected.size(), BFloat16(77));
        auto* const panels = reinterpret_cast<std::byte*>(packed.data());
        pack_right(stored.operand(), k, n, cut, n, order, panels);
        pack_right(stored.operand(), k, n, 0, cut, order, panels);
        ASSERT_EQ(packed, expected) << k << " by " << n << ", form " << static_cast<int>(form);
      }
    }
  }
}

// Two units that leave -0, and then one with nothing but flushed negative products: the zeros that
// fill it up turn its chains into +0.
TEST(Bf16Product, ComputesWithThePadding) {
  if (!kFusesMultiplyAdd) GTEST_SKIP() << "a portable build multiplies and adds with two roundings";
  for (const std::int64_t k : {65, 66, 96}) {
    std::vector<float> a(static_cast<std::size_t>(k), 0.0F), b(a);
    a[0] = 0x1p-100F, b[0] = 0x1p-26F;       // y = 2^-126
    a[32] = 0x1.8p-100F, b[32] = -0x1p-26F;  // y = -2^-127, which is denormal
    for (std::size_t p = 64; p < a.size(); ++p) a[p] = 0x1p-100F, b[p] = -0x1p-100F;
    const auto expected = test::bf16_product(
        k, [&](std::int64_t p) { return at(a, p); }, [&](std::int64_t p) { return at(b, p); });
    EXPECT_EQ(expected, 0.0F);
    EXPECT_EQ(std::signbit(expected), k == 96) << k;
    std::vector<BFloat16> left, right;
    for (std::size_t p = 0; p < a.size(); ++p) {
      left.emplace_back(a[p]);
      right.emplace_back(b[p]);
    }
    for (const auto kernels : available_cpu_kernels()) {
      const auto& loops = loops_of(kernels);
      float c = 1;
      const Problem problem{.a = {left.data(), k, 1},
                            .b = {right.data(), RightForm::kRows, 1},
                            .c = &c,
                            .c_stride = 1,
                            .m = 1,
                            .n = 1,
                            .k = k};
      multiply_block(problem, 0, 1, 0, 1, loops);
      EXPECT_TRUE(same_bits({c}, {expected})) << kernels << ", k = " << k;
    }
  }
}

// 2^-126 less a little is rounded to 24 bits before it is compared with 2^-126.
TEST(Bf16Product, FlushesWhatIsTooSmallAfterRounding) {
  if (!kFusesMultiplyAdd) GTEST_SKIP() << "a portable build multiplies and adds with two roundings";
  for (const bool odd : {false, true}) {
    for (const float sign : {1.0F, -1.0F}) {
      for (const float quarters : {1.0F, 1.5F, 2.0F, 2.5F, 3.0F, 4.0F, 5.0F}) {  // of the last bit
        std::vector<BFloat16> left(8), right(8);
        const std::size_t first = odd ? 1 : 0, second = first + 2;
        left[first] = BFloat16(sign * 0x1p-63F), right[first] = BFloat16(0x1p-63F);
        left[second] = BFloat16(-sign * quarters * 0x1p-76F), right[second] = BFloat16(0x1p-76F);
        const float expected = quarters <= 2 ? sign * 0x1p-126F : 0.0F;
        EXPECT_EQ(test::bf16_product(
                      8, [&](std::int64_t p) { return static_cast<float>(at(left, p)); },
                      [&](std::int64_t p) { return static_cast<float>(at(right, p)); }),
                  expected);
        for (const auto kernels : available_cpu_kernels()) {
          const auto& loops = loops_of(kernels);
          float c = 1;
          const Problem problem{.a = {left.data(), 8, 1},
                                .b = {right.data(), RightForm::kRows, 1},
                                .c = &c,
                                .c_stride = 1,
                                .m = 1,
                                .n = 1,
                                .k = 8};
          multiply_block(problem, 0, 1, 0, 1, loops);
          EXPECT_TRUE(same_bits({c}, {expected})) << kernels << ", " << quarters << ": " << c;
        }
      }
    }
  }
}

TEST(Bf16Product, RoundsSumsAsBFloat16Does) {
  std::vector<float> sums;
  for (std::uint32_t upper = 0; upper < 0x10000U; upper += 37) {
    for (const std::uint32_t lower : {0U, 1U, 0x7fffU, 0x8000U, 0x8001U, 0xffffU}) {
      sums.push_back(std::bit_cast<float>(upper << 16 | lower));
    }
  }
  const auto n = std::ssize(sums);
  sums.resize(static_cast<std::size_t>(round_up(n, kPanel)));
  for (const auto kernels : available_cpu_kernels()) {
    const auto round = loops_of(kernels).round;
    if (round == nullptr) continue;
    for (const auto count : {n, n - 5, std::int64_t{16}, std::int64_t{3}, std::int64_t{0}}) {
      std::vector<BFloat16> rounded(sums.size(), BFloat16(77));
      round(sums.data(), rounded.data(), count);
      for (std::int64_t i = 0; i < std::ssize(rounded); ++i) {
        ASSERT_EQ(at(rounded, i), i < count ? BFloat16(at(sums, i)) : BFloat16(77))
            << kernels << ": " << at(sums, i);
      }
    }
  }
}

TEST(Bf16Product, LeavesDenormalsToOthers) {
  const Product product({.m = 3, .n = 17, .k = 40}, 0);
  for (const auto kernels : available_cpu_kernels()) {
    const auto& loops = loops_of(kernels);
    product.by(loops);
    volatile float tiny = 0x1p-130F;
    tiny = tiny * 0.5F;
    EXPECT_EQ(std::bit_cast<std::uint32_t>(float{tiny}), 1U << 18U) << kernels;
  }
}

}  // namespace
}  // namespace moegrad::kernels::bf16::bf16_test
