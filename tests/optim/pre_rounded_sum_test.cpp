// SPDX-License-Identifier: Apache-2.0
#include "optim/pre_rounded_sum.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "tests/testing.h"

namespace moegrad::optim::pre_rounded_sum_test {
namespace {

using test::randn;

constexpr std::int64_t kElements = 1 << 12;

/// Adds `copies` times as many elements as `bins` are of.
void add_copies(Bins& total, const Bins& bins, std::int64_t copies) {
  for (std::size_t i = 0; i < total.size(); ++i) total[i] += copies * bins[i];
}

/// The norm of `copies` copies of the elements.
double long_double_norm(const Tensor& values, int p, std::int64_t copies) {
  long double sum = 0;
  for (const long double value : values.data<double>()) {
    sum += p == 1 ? std::abs(value) : value * value;
  }
  sum *= static_cast<long double>(copies);
  return static_cast<double>(p == 1 ? sum : std::sqrt(sum));
}

TEST(PreRoundedSum, HoldsTwoToTheFortiethElements) {
  const Tensor wild = randn({kElements}, 3);
  const Tensor ones = Tensor::ones({kElements}, Dtype::kFloat64);
  // Next to its bound, so that each element rounds to as many quanta as there can be.
  const Tensor largest = Tensor::full({kElements}, 1 - 0x1p-53, Dtype::kFloat64);
  for (const Tensor& values : {wild, ones, largest}) {
    const double magnitude = extreme_of(values).magnitude;
    for (const int p : {1, 2}) {
      const PreRoundedSum sum(p, magnitude);
      const Bins bins = sum.bins_of(values);
      for (const auto elements : {std::int64_t{1} << 30, (std::int64_t{1} << 38) - kElements,
                                  kMaxTerms - kElements, kMaxTerms}) {
        const auto copies = elements / kElements;
        Bins total{};
        add_copies(total, bins, copies);
        const double expected = long_double_norm(values, p, copies);
        EXPECT_NEAR(sum.norm_of(total) / expected, 1.0, 1e-15) << p << ", " << elements;
      }
    }
  }
}

// As if 2^38 elements were spread over ranks that each hold a piece of the tensor, some of them
// many times.
TEST(PreRoundedSum, IsTheSameForEverySplitBeyondTwoToTheThirtiethElements) {
  const Tensor values = randn({kElements}, 5, Dtype::kFloat32);
  const PreRoundedSum sum(2, extreme_of(values).magnitude);
  constexpr std::int64_t kCopies = (std::int64_t{1} << 26) - 1;
  Bins expected{};
  add_copies(expected, sum.bins_of(values), kCopies);
  for (const std::int64_t size : {1, 7, 1000, 4095}) {
    std::vector<std::pair<Bins, std::int64_t>> parts;
    for (std::int64_t begin = 0; begin < kElements; begin += size) {
      const auto length = std::min(size, kElements - begin);
      const Bins bins = sum.bins_of(Tensor::narrow(values, 0, begin, length));
      const auto some = 1 + begin * 7919 % (kCopies - 1);
      parts.emplace_back(bins, some);
      parts.emplace_back(bins, kCopies - some);
    }
    Bins forwards{}, backwards{};
    for (const auto& [bins, copies] : parts) add_copies(forwards, bins, copies);
    std::ranges::reverse(parts);
    for (const auto& [bins, copies] : parts) add_copies(backwards, bins, copies);
    EXPECT_EQ(forwards, expected) << size;
    EXPECT_EQ(backwards, expected) << size;
  }
}

// What a norm drops of a term depends on the largest element alone: at most 2^-67 of the power of
// two above it, to the p.
TEST(PreRoundedSum, DropsLittle) {
  constexpr std::int64_t kCopies = std::int64_t{1} << 38;
  for (const int p : {1, 2}) {
    const PreRoundedSum sum(p, 0.5);
    const double small = p == 1 ? 0x1.8p-67 : std::sqrt(0x1.8p-67);
    Bins total{};
    add_copies(total, sum.bins_of(Tensor::full({1}, 0.5, Dtype::kFloat64)), 1);
    add_copies(total, sum.bins_of(Tensor::full({1}, small, Dtype::kFloat64)), kCopies);
    const double norm = sum.norm_of(total);
    const double exact = p == 1 ? 0.5 + 0x1.8p-29 : std::sqrt(0.25 + 0x1.8p-29);
    EXPECT_NEAR(norm, exact, 0x1p-28);
  }
}

}  // namespace
}  // namespace moegrad::optim::pre_rounded_sum_test
