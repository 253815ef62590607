// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <ostream>
#include <thread>
#include <vector>

#include "framework/runtime/random.h"
#include "framework/tensor/layout.h"
#include "ops/kernels/bf16/blocks.h"

namespace moegrad::kernels::bf16::bf16_blocks_test {
namespace {

constexpr std::uint16_t kUntouched = 0xabcd;

template <class T>
auto& at(T& values, std::int64_t i) {
  return values[static_cast<std::size_t>(i)];
}

struct Form {
  NzBlocks blocks;
  NzPairs pairs;

  std::int64_t rows() const { return blocks.batch * blocks.k; }
  std::int64_t numel() const { return blocks.numel(Dtype::kBFloat16); }
};
std::ostream& operator<<(std::ostream& out, const Form& form) {
  return out << form.blocks.batch << " of [" << form.blocks.k << ", " << form.blocks.n << "]"
             << (form.pairs.transposed ? ", transposed" : "")
             << (form.pairs.order == PairOrder::kChains ? ", chains" : ", neighbours");
}

// Calls body(position, row of the stack, column) for each position of the blocks in their order,
// word by word: Note [FRACTAL_NZ of bfloat16]. Padding has row -1.
template <class Body>
void for_each_position(const Form& form, const Body& body) {
  constexpr std::int64_t kChains[32] = {2, 0, 6, 4, 10, 8, 14, 12, 18, 16, 22, 20, 26, 24, 30, 28,
                                        3, 1, 7, 5, 11, 9, 15, 13, 19, 17, 23, 21, 27, 25, 31, 29};
  const auto [batch, k, n] = form.blocks;
  const bool transposed = form.pairs.transposed;
  const auto rows = transposed ? n : k, columns = transposed ? k : n;
  std::int64_t position = 0;
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t panel = 0; panel < (columns + 31) / 32 * 2; ++panel) {
      for (std::int64_t unit = 0; unit < (rows + 31) / 32; ++unit) {
        for (std::int64_t word = 0; word < 16; ++word) {
          for (std::int64_t i = 0; i < 32; ++i, ++position) {
            const auto place = 2 * word + i % 2;
            const auto row =
                unit * 32 + (form.pairs.order == PairOrder::kChains ? kChains[place] : place);
            const auto column = panel * 16 + i / 2;
            const bool exists = row < rows && column < columns;
            body(position, exists ? b * k + (transposed ? column : row) : -1,
                 transposed ? row : column);
          }
        }
      }
    }
  }
}

template <class Body>
void for_random_forms(int cases, const Body& body) {
  for (int i = 0; i < cases; ++i) {
    const Random random(static_cast<std::uint64_t>(i), "bf16_blocks_test");
    std::uint64_t draws = 0;
    const auto upto = [&](std::int64_t most) { return random.integer(draws++, most + 1); };
    const NzBlocks blocks{1 + upto(2), 1 + upto(69), 1 + upto(69)};
    for (const auto order : {PairOrder::kNeighbours, PairOrder::kChains}) {
      for (const bool transposed : {false, true}) {
        const Form form{blocks, {order, transposed}};
        SCOPED_TRACE(testing::Message() << form);
        body(form, upto);
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

// Row-major, all different as long as there are not too many.
std::vector<BFloat16> numbers(std::int64_t count) {
  std::vector<BFloat16> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i].bits = static_cast<std::uint16_t>(i % 0x7f00);
  }
  return values;
}

std::vector<BFloat16> untouched(std::int64_t count) {
  BFloat16 value;
  value.bits = kUntouched;
  return std::vector<BFloat16>(static_cast<std::size_t>(count), value);
}

// Whether the blocks hold stack(row, column) where is_written(row, column), and nothing elsewhere.
template <class Stack, class IsWritten>
void expect_blocks(const Form& form, const std::vector<BFloat16>& packed, const Stack& stack,
                   const IsWritten& is_written) {
  std::int64_t wrong = 0;
  for_each_position(form, [&](std::int64_t i, std::int64_t row, std::int64_t column) {
    const auto expected =
        row >= 0 && is_written(row, column) ? stack(row, column).bits : kUntouched;
    wrong += at(packed, i).bits != expected;
  });
  ASSERT_EQ(wrong, 0);
}

TEST(Bf16Blocks, TakeRowsThatBeginAndEndAnywhere) {
  for_random_forms(60, [](const Form& form, const auto& upto) {
    const auto n = form.blocks.n, ld = n + upto(3);
    const auto begin = upto(form.rows()), end = begin + upto(form.rows() - begin);
    const auto rows = numbers(form.rows() * ld);
    auto packed = untouched(form.numel());
    slice_rows_to_pairs(rows.data() + begin * ld, ld, begin, end - begin, form.blocks, form.pairs,
                        packed.data());
    expect_blocks(
        form, packed, [&](std::int64_t r, std::int64_t c) { return at(rows, r * ld + c); },
        [&](std::int64_t r, std::int64_t) { return begin <= r && r < end; });
  });
}

TEST(Bf16Blocks, TakeColumnsThatBeginAndEndAnywhere) {
  for_random_forms(60, [](const Form& form, const auto& upto) {
    const auto begin = upto(form.blocks.n), count = upto(form.blocks.n - begin);
    const auto columns = numbers(form.rows() * count);
    auto packed = untouched(form.numel());
    slice_columns_to_pairs(columns.data(), begin, count, form.blocks, form.pairs, packed.data());
    expect_blocks(
        form, packed,
        [&](std::int64_t r, std::int64_t c) { return at(columns, r * count + c - begin); },
        [&](std::int64_t, std::int64_t c) { return begin <= c && c < begin + count; });
  });
}

TEST(Bf16Blocks, GiveRowsBack) {
  for_random_forms(60, [](const Form& form, const auto& upto) {
    const auto n = form.blocks.n, ld = n + upto(3);
    const auto begin = upto(form.rows()), end = begin + upto(form.rows() - begin);
    const auto rows = numbers(form.rows() * n);
    auto packed = untouched(form.numel());
    slice_rows_to_pairs(rows.data(), n, 0, form.rows(), form.blocks, form.pairs, packed.data());
    auto back = untouched((end - begin) * ld);
    rows_from_pairs(packed.data(), form.blocks, form.pairs, begin, end - begin, back.data(), ld);
    for (std::int64_t i = 0; i < (end - begin) * ld; ++i) {
      const auto r = begin + i / ld, c = i % ld;
      ASSERT_EQ(at(back, i).bits, c < n ? at(rows, r * n + c).bits : kUntouched) << r << " " << c;
    }
  });
}

TEST(Bf16Blocks, HaveZerosAsPadding) {
  for_random_forms(30, [](const Form& form, const auto&) {
    auto packed = untouched(form.numel());
    pairs_zero_padding(form.blocks, form.pairs, packed.data());
    for_each_position(form, [&](std::int64_t i, std::int64_t row, std::int64_t) {
      ASSERT_EQ(at(packed, i).bits, row < 0 ? 0 : kUntouched);
    });
  });
}

// Ties, NaN and infinities among them.
TEST(Bf16Blocks, RoundFloats) {
  for_random_forms(30, [](const Form& form, const auto& upto) {
    const auto n = form.blocks.n;
    std::vector<float> floats;
    std::vector<BFloat16> rounded;
    for (std::int64_t i = 0; i < form.rows() * n; ++i) {
      constexpr float kSpecial[] = {1.00390625F,
                                    1.01171875F,
                                    -0.0F,
                                    3.4e38F,
                                    std::numeric_limits<float>::infinity(),
                                    std::numeric_limits<float>::quiet_NaN()};
      floats.push_back(i % 7 < 6 ? kSpecial[i % 7] : static_cast<float>(i) * 1.7F);
      rounded.emplace_back(floats.back());
    }
    const auto begin = upto(form.rows()), count = upto(form.rows() - begin);
    auto packed = untouched(form.numel()), expected = packed;
    slice_rows_to_pairs(floats.data() + begin * n, n, begin, count, form.blocks, form.pairs,
                        packed.data());
    slice_rows_to_pairs(rounded.data() + begin * n, n, begin, count, form.blocks, form.pairs,
                        expected.data());
    ASSERT_EQ(packed, expected);
    const auto first = upto(n), width = upto(n - first);
    slice_columns_to_pairs(floats.data(), first, width, form.blocks, form.pairs, packed.data());
    slice_columns_to_pairs(rounded.data(), first, width, form.blocks, form.pairs, expected.data());
    ASSERT_EQ(packed, expected);
  });
}

// Large enough, and where the blocks begin at a multiple of 32 bytes, to be written past the
// caches.
TEST(Bf16Blocks, TakeLargeMatrices) {
  for (const bool transposed : {false, true}) {
    const Form form{{2, 1'040, 2'050}, {PairOrder::kChains, transposed}};
    const auto n = form.blocks.n, begin = std::int64_t{5}, end = form.rows() - 40;
    const auto rows = numbers(form.rows() * n);
    for (const std::int64_t offset : {0, 8}) {
      auto room = untouched(form.numel() + 32);
      const auto bytes_to_line = (32 - std::bit_cast<std::uintptr_t>(room.data()) % 32) % 32;
      BFloat16* const packed = room.data() + bytes_to_line / sizeof(BFloat16) + offset;
      slice_rows_to_pairs(rows.data() + begin * n, n, begin, end - begin, form.blocks, form.pairs,
                          packed);
      expect_blocks(
          form, {packed, packed + form.numel()},
          [&](std::int64_t r, std::int64_t c) { return at(rows, r * n + c); },
          [&](std::int64_t r, std::int64_t) { return begin <= r && r < end; });
    }
  }
}

// Each thread finds its rows as it wrote them, though the other's are in the same words.
TEST(Bf16Blocks, TakeRowsFromSeveralThreads) {
  for (const std::int64_t apart : {1, 2}) {  // rows of a word
    const Form form{{1, 40, 70}, {apart == 1 ? PairOrder::kNeighbours : PairOrder::kChains}};
    const auto n = form.blocks.n;
    auto packed = untouched(form.numel());
    const auto count_lost = [&](std::int64_t first) {
      constexpr std::int64_t kRepeats = 300;
      const auto values = numbers(n + kRepeats);
      std::vector<BFloat16> back(static_cast<std::size_t>(n));
      std::int64_t lost = 0;
      for (std::int64_t repeat = 0; repeat < kRepeats; ++repeat) {
        const auto row = values.begin() + repeat;
        for (std::int64_t r = 0; r < form.rows(); ++r) {
          if (r / apart % 2 != first) continue;
          slice_rows_to_pairs(&*row, n, r, 1, form.blocks, form.pairs, packed.data());
        }
        for (std::int64_t r = 0; r < form.rows(); ++r) {
          if (r / apart % 2 != first) continue;
          rows_from_pairs(packed.data(), form.blocks, form.pairs, r, 1, back.data(), n);
          lost += !std::equal(back.begin(), back.end(), row);
        }
      }
      return lost;
    };
    std::int64_t lost = 0;
    std::thread other([&] { lost = count_lost(1); });
    EXPECT_EQ(count_lost(0), 0);
    other.join();
    EXPECT_EQ(lost, 0);
  }
}

}  // namespace
}  // namespace moegrad::kernels::bf16::bf16_blocks_test
