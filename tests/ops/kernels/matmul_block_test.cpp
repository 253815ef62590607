// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iostream>
#include <limits>
#include <thread>
#include <vector>

#include "framework/runtime/random.h"
#include "framework/runtime/rank_context.h"
#include "framework/tensor/layout.h"
#include "ops/kernels/matmul_kernel.h"
#include "ops/kernels/product_loops_avx512.h"
#include "ops/kernels/product_loops_of.h"
#include "ops/kernels/simd.h"
#include "tests/ops/matmul_reference.h"
#include "tests/testing.h"

namespace moegrad::kernels::matmul_block_test {
namespace {

/// Sixteen floats as two vectors of eight, where the loops ask for a vector of 64 bytes.
struct PairOfVectors {
  using Half = Vec<float>;
  static constexpr std::int64_t kLanes = 2 * Half::kLanes;
  Half low, high;

  static PairOfVectors zero() { return {Half::zero(), Half::zero()}; }
  static PairOfVectors broadcast(float x) { return {Half::broadcast(x), Half::broadcast(x)}; }
  static PairOfVectors load(const float* p) {
    return {Half::load(p), Half::load(p + Half::kLanes)};
  }
  void store(float* p) const {
    low.store(p);
    high.store(p + Half::kLanes);
  }
  friend PairOfVectors operator+(const PairOfVectors& a, const PairOfVectors& b) {
    return {a.low + b.low, a.high + b.high};
  }
  friend void accumulate(PairOfVectors& sum, const PairOfVectors& a, const PairOfVectors& b) {
    accumulate(sum.low, a.low, b.low);
    accumulate(sum.high, a.high, b.high);
  }
};

template <class T>
std::vector<T> numbers(std::int64_t count, std::uint64_t seed) {
  const Random random(seed, "matmul_block_test");
  std::vector<T> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<T>(random.normal(i));
  return values;
}

struct Sizes {
  std::int64_t m, n, k;
  RightForm form;
  bool left_by_columns, adds;
};

std::ostream& operator<<(std::ostream& out, const Sizes& sizes) {
  return out << "[" << sizes.m << ", " << sizes.k << "] by [" << sizes.k << ", " << sizes.n
             << "], form " << static_cast<int>(sizes.form)
             << (sizes.left_by_columns ? ", left by columns" : "") << (sizes.adds ? ", adds" : "");
}

// Operands of one product, B in all forms; rows of C end with three elements that nobody may touch.
template <class T>
class Product {
 public:
  static constexpr std::int64_t kBeyond = 3;
  static constexpr T kUntouched = T(77);

  explicit Product(const Sizes& sizes)
      : sizes_(sizes),
        a_(followed_by_nan(numbers<T>(sizes.m * sizes.k, 1))),
        b_(numbers<T>(sizes.k * sizes.n, 2)),  // [k, n]
        start_(numbers<T>(sizes.m * sizes.n, 3)) {
    store();
  }

  // In blocks of at most `rows` by `columns`, as threads compute them.
  std::vector<T> by_loops(const ProductLoops<T>& loops, std::int64_t rows = 1 << 20,
                          std::int64_t columns = 1 << 20) const {
    const auto [m, n, k, form, left_by_columns, adds] = sizes_;
    const auto c_stride = n + kBeyond;
    std::vector<T> c(static_cast<std::size_t>(m * c_stride), kUntouched);
    for (std::int64_t i = 0; adds && i < m; ++i) {
      for (std::int64_t j = 0; j < n; ++j) at(c, i * c_stride + j) = at(start_, i * n + j);
    }
    const MatmulProblem<T> problem{
        .a = {a_.data(), left_by_columns ? 1 : k, left_by_columns ? m : 1},
        .b = {stored_.data(), form, stride_},
        .c = c.data(),
        .c_stride = c_stride,
        .m = m,
        .n = n,
        .k = k,
        .adds = adds};
    for (std::int64_t i0 = 0; i0 < m; i0 += rows) {
      for (std::int64_t j0 = 0; j0 < n; j0 += columns) {
        matmul_block(problem, i0, std::min(rows, m - i0), j0, std::min(columns, n - j0), loops);
      }
    }
    return c;
  }

  std::vector<T> by_definition() const {
    const auto m = sizes_.m, n = sizes_.n, k = sizes_.k;
    const bool left_by_columns = sizes_.left_by_columns, adds = sizes_.adds;
    std::vector<T> c(static_cast<std::size_t>(m * (n + kBeyond)), kUntouched);
    for (std::int64_t i = 0; i < m; ++i) {
      for (std::int64_t j = 0; j < n; ++j) {
        const auto y = test::halved_product<T>(
            k,
            [&, i = i](std::int64_t p) { return at(a_, left_by_columns ? p * m + i : i * k + p); },
            [&, j = j](std::int64_t p) { return at(b_, p * n + j); });
        at(c, i * (n + kBeyond) + j) = adds ? at(start_, i * n + j) + y : y;
      }
    }
    return c;
  }

 private:
  static T& at(std::vector<T>& values, std::int64_t i) {
    return values[static_cast<std::size_t>(i)];
  }
  static const T& at(const std::vector<T>& values, std::int64_t i) {
    return values[static_cast<std::size_t>(i)];
  }

  // What follows the last row of A is no part of it, whatever padding of B it would meet.
  static std::vector<T> followed_by_nan(std::vector<T> values) {
    values.resize(values.size() + kNzBlock, std::numeric_limits<T>::quiet_NaN());
    return values;
  }

  // By the formulas beside RightForm.
  void store() {
    const auto n = sizes_.n, k = sizes_.k;
    const bool nz = is_read_in_place(sizes_.form);
    const auto rows = round_up(k, kNzBlock), columns = round_up(n, kNzBlock);
    stride_ = sizes_.form == RightForm::kRows      ? n
              : sizes_.form == RightForm::kColumns ? k
              : sizes_.form == RightForm::kNz      ? rows
                                                   : columns;
    stored_.assign(static_cast<std::size_t>(nz ? rows * columns : k * n), T(0));
    for (std::int64_t p = 0; p < k; ++p) {
      for (std::int64_t j = 0; j < n; ++j) {
        const auto to = sizes_.form == RightForm::kRows      ? p * stride_ + j
                        : sizes_.form == RightForm::kColumns ? j * stride_ + p
                        : sizes_.form == RightForm::kNz      ? (j / 16 * stride_ + p) * 16 + j % 16
                                                             : (p / 16 * stride_ + j) * 16 + p % 16;
        at(stored_, to) = at(b_, p * n + j);
      }
    }
  }

  Sizes sizes_;
  std::vector<T> a_, b_, start_, stored_;
  std::int64_t stride_ = 0;
};

// Every number of rows of a strip and of what is left of strips, panels one by one and several,
// reductions within and past every threshold of the kernels.
template <class Visit>
void each_size(const Visit& visit) {
  std::int64_t turn = 0;
  for (const std::int64_t m : {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 15, 17, 24, 31, 33, 49}) {
    for (const std::int64_t n : {1, 8, 16, 17, 24, 33, 48, 63, 100, 131}) {
      for (const std::int64_t k :
           {0, 1, 2, 3, 4, 5, 7, 8, 9, 16, 21, 64, 65, 128, 129, 390, 530, 1300}) {
        if (k > 100 && n % 16 > 1) continue;
        for (const auto form :
             {RightForm::kRows, RightForm::kColumns, RightForm::kNz, RightForm::kNzTransposed}) {
          ++turn;
          // 5 has no factor in common with the turns of what follows.
          if (test::kSanitized && turn % 5 != 0) continue;
          visit(Sizes{m, n, k, form, turn % 3 == 0 && form != RightForm::kNzTransposed,
                      turn / 4 % 2 == 0});
        }
      }
    }
  }
}

template <class T>
void compare_with_definition(const ProductLoops<T>& loops) {
  int wrong = 0, seen = 0;
  each_size([&](const Sizes& sizes) {
    const Product<T> product(sizes);
    ++seen;
    if (product.by_loops(loops) == product.by_definition()) return;
    if (++wrong <= 5) ADD_FAILURE() << "other bits than the definition: " << sizes;
  });
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(seen, test::kSanitized ? 1000 : 5000);
}

// Blocks that begin within C and have more rows than a strip, in a thread whose scratch is new.
template <class T>
void compare_blocks_with_definition(const ProductLoops<T>& loops) {
  struct Blocks {
    std::int64_t m, n, rows;
  };
  for (const auto& [m, n, rows] : {Blocks{7, 131, 4},
                                   {16, 160, 8},
                                   {24, 257, 11},
                                   {33, 129, 16},
                                   {300, 17, 160},
                                   {300, 129, 140}}) {
    for (const std::int64_t k : {4, 9, 200, 530, 1300}) {
      if (k > (m < 300 || n < 100 ? 1300 : 530) / (test::kSanitized ? 2 : 1)) continue;
      for (const auto form :
           {RightForm::kRows, RightForm::kColumns, RightForm::kNz, RightForm::kNzTransposed}) {
        for (const bool adds : {false, true}) {
          const Sizes sizes{m, n, k, form, false, adds};
          const Product<T> product(sizes);
          std::vector<T> got;
          std::thread([&, rows = rows] {
            got = product.by_loops(loops, rows, kGroupColumns);
          }).join();
          EXPECT_TRUE(got == product.by_definition()) << sizes << " in blocks of " << rows;
        }
      }
    }
  }
}

TEST(MatmulBlock, GivesTheBitsOfTheDefinitionInBlocks) {
  compare_blocks_with_definition(narrow_product_loops<float>());
  compare_blocks_with_definition(kProductLoops<float, PairOfVectors>);
  if (uses_avx512()) compare_blocks_with_definition(product_loops<float>());
}

TEST(MatmulBlock, GivesTheBitsOfTheDefinition) {
  compare_with_definition(narrow_product_loops<float>());
  compare_with_definition(narrow_product_loops<double>());
}

// The loops of sixteen lanes on any CPU: as many panels, rows and tails as with AVX-512, without
// its instructions.
TEST(MatmulBlock, GivesTheBitsOfTheDefinitionOnPairsOfVectors) {
  static_assert(kProductLoops<float, PairOfVectors>.few_rows.most_rows == 8);
  compare_with_definition(kProductLoops<float, PairOfVectors>);
}

// Without AVX-512 these are the loops that GivesTheBitsOfTheDefinition has compared.
TEST(MatmulBlock, GivesTheBitsOfTheDefinitionOnTheWidestVectorsOfTheCpu) {
  const bool wide = uses_avx512();
  RecordProperty("vector_bytes", wide ? "32 and 64" : "32");
  std::cout << "vector widths run: 32 bytes" << (wide ? ", 64 bytes (AVX-512)" : "")
            << "; sixteen lanes as pairs of 32 bytes\n";
  EXPECT_EQ(&product_loops<float>(),
            wide ? avx512_product_loops() : &narrow_product_loops<float>());
  EXPECT_EQ(&product_loops<double>(), &narrow_product_loops<double>());
  if (wide) compare_with_definition(product_loops<float>());
}

TEST(ProductLoops, AreThoseOfTheRanksKernels) {
  for (const auto kernels : available_cpu_kernels()) {
    RankContext context({.kernels = kernels});
    const RankContextGuard guard(context);
    const bool narrow = kernels == CpuKernels::kNarrow;
    EXPECT_EQ(&product_loops<float>(),
              narrow ? &narrow_product_loops<float>() : avx512_product_loops());
  }
}

}  // namespace
}  // namespace moegrad::kernels::matmul_block_test
