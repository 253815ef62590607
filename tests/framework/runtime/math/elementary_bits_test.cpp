// SPDX-License-Identifier: Apache-2.0
// The promise itself: the bits of the elementary functions are these on every CPU, with every
// compiler and every mathematical library. See Note [Elementary functions].
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "framework/runtime/crc32c.h"
#include "framework/runtime/math/elementary.h"

namespace moegrad::elementary_bits_test {
namespace {

// Argument i, made of integers and exact operations alone: each second one has any bits, the others
// are even over [-range, range].
template <class T>
T argument(std::uint64_t i, double range) {
  // G. L. Steele, D. Lea, C. H. Flood, "Fast splittable pseudorandom number generators", 2014
  std::uint64_t bits = i * 0x9e3779b97f4a7c15U;
  bits = (bits ^ bits >> 30U) * 0xbf58476d1ce4e5b9U;
  bits = (bits ^ bits >> 27U) * 0x94d049bb133111ebU;
  bits ^= bits >> 31U;
  if (i % 2 != 0) return static_cast<T>((static_cast<double>(bits >> 11U) * 0x1p-52 - 1.0) * range);
  using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
  return std::bit_cast<T>(static_cast<Bits>(bits));
}

template <class T, class F>
std::uint32_t checksum(const F& result) {
  std::vector<T> results;
  for (std::uint64_t i = 1; i <= 100'000; ++i) results.push_back(result(i));
  return crc32c(std::as_bytes(std::span(results)));
}

template <class T>
std::uint32_t bits_of(T (*function)(T), double range) {
  return checksum<T>([=](std::uint64_t i) { return function(argument<T>(i, range)); });
}

template <class T>
std::uint32_t bits_of(T (*function)(T, T), double range) {
  return checksum<T>([=](std::uint64_t i) {
    return function(std::abs(argument<T>(i, 8.0)), argument<T>(i + 1'000'000, range));
  });
}

TEST(ElementaryFunctions, OfFloatHaveTheseBits) {
  EXPECT_EQ(bits_of<float>(math::exp, 110.0), 0x63bf6a00U);
  EXPECT_EQ(bits_of<float>(math::log, 4.0), 0x07ffbbe3U);
  EXPECT_EQ(bits_of<float>(math::log1p, 1.0), 0x0c5090a3U);
  EXPECT_EQ(bits_of<float>(math::sin, 100.0), 0x908128fdU);
  EXPECT_EQ(bits_of<float>(math::cos, 100.0), 0xaf23baccU);
  EXPECT_EQ(bits_of<float>(math::tanh, 10.0), 0x998c813eU);
  EXPECT_EQ(bits_of<float>(math::erf, 4.0), 0xd716dfd6U);
  EXPECT_EQ(bits_of<float>(math::pow, 30.0), 0x99ad2207U);
}

TEST(ElementaryFunctions, OfDoubleHaveTheseBits) {
  EXPECT_EQ(bits_of<double>(math::exp, 750.0), 0x396f9760U);
  EXPECT_EQ(bits_of<double>(math::log, 4.0), 0xea3e6e1eU);
  EXPECT_EQ(bits_of<double>(math::log1p, 1.0), 0x7950292fU);
  EXPECT_EQ(bits_of<double>(math::sin, 100.0), 0xf1048388U);
  EXPECT_EQ(bits_of<double>(math::cos, 100.0), 0x47a87c90U);
  EXPECT_EQ(bits_of<double>(math::tanh, 20.0), 0x3c721e8aU);
  EXPECT_EQ(bits_of<double>(math::erf, 6.0), 0xff944515U);
  EXPECT_EQ(bits_of<double>(math::erfc, 28.0), 0x4279d9d6U);
  EXPECT_EQ(bits_of<double>(math::pow, 300.0), 0xa11dc777U);
}

}  // namespace
}  // namespace moegrad::elementary_bits_test
