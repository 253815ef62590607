// SPDX-License-Identifier: Apache-2.0
#include "framework/tensor/box.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

namespace moegrad::box_test {
namespace {

constexpr std::int64_t kNone = -1;

// The numbers of a box's elements in a whole tensor of that shape, row-major.
std::vector<std::int64_t> numbers(const Shape& whole, const Box& box) {
  std::vector<std::int64_t> found;
  for (std::int64_t n = 0; n < whole.numel(); ++n) {
    bool inside = true;
    std::int64_t rest = n;
    for (auto dim = whole.ndim() - 1; dim >= 0; --dim) {
      const auto at = rest % whole[dim];
      rest /= whole[dim];
      inside = inside && box.begin[dim] <= at && at < box.begin[dim] + box.shape[dim];
    }
    if (inside) found.push_back(n);
  }
  return found;
}

// All boxes of a tensor, empty ones included.
std::vector<Box> boxes_of(const Shape& whole) {
  std::vector<Box> boxes = {{}};
  for (const auto size : whole) {
    std::vector<Box> longer;
    for (const auto& box : boxes) {
      for (std::int64_t begin = 0; begin <= size; ++begin) {
        for (std::int64_t end = begin; end <= size; ++end) {
          longer.push_back(box);
          longer.back().begin.push_back(begin);
          longer.back().shape.push_back(end - begin);
        }
      }
    }
    boxes = longer;
  }
  return boxes;
}

TEST(Box, CopiesWhatTwoPartsOfATensorHaveInCommon) {
  for (const auto& whole : {Shape{}, Shape{5}, Shape{3, 4}, Shape{2, 3, 2}}) {
    const auto boxes = boxes_of(whole);
    for (const auto& source : boxes) {
      for (const auto& target : boxes) {
        const auto from = numbers(whole, source);
        std::vector<std::int64_t> to(numbers(whole, target).size(), kNone);
        copy_overlap(source, reinterpret_cast<const std::byte*>(from.data()), target,
                     reinterpret_cast<std::byte*>(to.data()), sizeof(std::int64_t));
        auto expected = numbers(whole, target);
        bool any = false;
        for (auto& n : expected) {
          const bool common = std::ranges::find(from, n) != from.end();
          any = any || common;
          if (!common) n = kNone;
        }
        ASSERT_EQ(to, expected) << source.shape << " from " << source.begin << " to "
                                << target.shape << " from " << target.begin;
        ASSERT_EQ(overlap(source, target), any);
      }
    }
  }
}

TEST(Box, OfAWholeTensorBeginsAtZero) {
  EXPECT_EQ(whole_box({3, 0}), (Box{.begin = {0, 0}, .shape = {3, 0}}));
  EXPECT_EQ(whole_box({}), Box());
}

}  // namespace
}  // namespace moegrad::box_test
