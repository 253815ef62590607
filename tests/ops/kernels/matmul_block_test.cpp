// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <iostream>
#include <limits>
#include <vector>

#include "framework/runtime/random.h"
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
  bool left_by_columns, resume;
};

std::ostream& operator<<(std::ostream& out, const Sizes& sizes) {
  return out << "[" << sizes.m << ", " << sizes.k << "] by [" << sizes.k << ", " << sizes.n
             << "], form " << static_cast<int>(sizes.form)
             << (sizes.left_by_columns ? ", left by columns" : "")
             << (sizes.resume ? ", resume" : "");
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

  std::vector<T> by_loops(const ProductLoops<T>& loops) const {
    const auto [m, n, k, form, left_by_columns, resume] = sizes_;
    const auto c_stride = n + kBeyond;
    std::vector<T> c(static_cast<std::size_t>(m * c_stride), kUntouched);
    for (std::int64_t i = 0; resume && i < m; ++i) {
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
        .resume = resume};
    matmul_block(problem, 0, m, 0, n, loops);
    return c;
  }

  std::vector<T> by_definition() const {
    const auto [m, n, k, form, left_by_columns, resume] = sizes_;
    std::vector<T> c(static_cast<std::size_t>(m * (n + kBeyond)), kUntouched);
    for (std::int64_t i = 0; i < m; ++i) {
      for (std::int64_t j = 0; j < n; ++j) {
        T y = resume ? at(start_, i * n + j) : T(0);
        for (std::int64_t p = 0; p < k; ++p) {
          y = test::chain_step(at(a_, left_by_columns ? p * m + i : i * k + p), at(b_, p * n + j),
                               y);
        }
        at(c, i * (n + kBeyond) + j) = y;
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
      for (const std::int64_t k : {0, 1, 2, 3, 4, 5, 7, 8, 9, 16, 21, 64, 65, 390, 520}) {
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
    if (++wrong <= 5) ADD_FAILURE() << "other bits than the chains: " << sizes;
  });
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(seen, test::kSanitized ? 1000 : 5000);
}

TEST(MatmulBlock, GivesTheBitsOfTheChains) {
  compare_with_definition(narrow_product_loops<float>());
  compare_with_definition(narrow_product_loops<double>());
}

// The loops of sixteen lanes on any CPU: as many panels, rows and tails as with AVX-512, without
// its instructions.
TEST(MatmulBlock, GivesTheBitsOfTheChainsOnPairsOfVectors) {
  static_assert(kProductLoops<float, PairOfVectors>.few_rows.most_rows == 8);
  compare_with_definition(kProductLoops<float, PairOfVectors>);
}

// Without AVX-512 these are the loops that GivesTheBitsOfTheChains has compared.
TEST(MatmulBlock, GivesTheBitsOfTheChainsOnTheWidestVectorsOfTheCpu) {
  const bool wide = has_avx512();
  RecordProperty("vector_bytes", wide ? "32 and 64" : "32");
  std::cout << "vector widths run: 32 bytes" << (wide ? ", 64 bytes (AVX-512)" : "")
            << "; sixteen lanes as pairs of 32 bytes\n";
  EXPECT_EQ(&product_loops<float>(),
            wide ? avx512_product_loops() : &narrow_product_loops<float>());
  EXPECT_EQ(&product_loops<double>(), &narrow_product_loops<double>());
  if (wide) compare_with_definition(product_loops<float>());
}

}  // namespace
}  // namespace moegrad::kernels::matmul_block_test
