// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/bf16/pack.h"

#include <algorithm>
#include <cstring>

#include "ops/kernels/transpose_8x8.h"

namespace moegrad::kernels::bf16 {
namespace {

using Word = std::uint32_t;
// As vectors of the compiler, whose shuffles are one or two instructions on every CPU.
using Halves [[gnu::vector_size(32)]] = std::uint16_t;
constexpr std::int64_t kHalves = 16;
static_assert(kPanel == kHalves && kWords == kPanel);

// The steps in the halves of a word: the inverse of place_in_unit().
constexpr std::int64_t lower_step(PairOrder order, std::int64_t word) {
  return order == PairOrder::kNeighbours ? 2 * word : word % 8 * 4 + 2 + word / 8;
}
constexpr std::int64_t upper_step(PairOrder order, std::int64_t word) {
  return order == PairOrder::kNeighbours ? 2 * word + 1 : word % 8 * 4 + word / 8;
}

// The lanes of a step lie side by side.
void pack_by_steps(const BFloat16* data, std::int64_t step_stride, PairOrder order,
                   std::byte* unit) {
  for (std::int64_t w = 0; w < kWords; ++w, unit += kPanel * 4) {
    Halves lower, upper;
    std::memcpy(&lower, data + lower_step(order, w) * step_stride, sizeof(lower));
    std::memcpy(&upper, data + upper_step(order, w) * step_stride, sizeof(upper));
    const Halves left = __builtin_shufflevector(lower, upper, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5,
                                                21, 6, 22, 7, 23);
    const Halves right = __builtin_shufflevector(lower, upper, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28,
                                                 13, 29, 14, 30, 15, 31);
    std::memcpy(unit, &left, sizeof(left));
    std::memcpy(unit + sizeof(left), &right, sizeof(right));
  }
}

// Writes word w of row i to to(w)[i].
template <class To>
void transpose_words(const float (&rows)[kPanel][kWords], const To& to) {
  for (int i = 0; i < kPanel; i += 8) {
    for (int w = 0; w < kWords; w += 8) {
      transpose_8x8([&](int r) { return &rows[i + r][w]; }, [&](int c) { return to(w + c) + i; });
    }
  }
}

// The steps of a lane lie side by side, and so are words of kNeighbours already. Those of kChains
// are shuffled within eight steps.
void pack_by_lanes(const BFloat16* data, std::int64_t lane_stride, PairOrder order,
                   std::byte* unit) {
  float rows[kPanel][kWords];
  auto* const words = reinterpret_cast<float*>(unit);
  if (order == PairOrder::kNeighbours) {
    for (std::int64_t i = 0; i < kPanel; ++i) {
      std::memcpy(rows[i], data + i * lane_stride, sizeof(rows[i]));
    }
    return transpose_words(rows, [&](int w) { return words + w * kPanel; });
  }
  for (std::int64_t i = 0; i < kPanel; ++i) {
    for (std::int64_t half = 0; half < 2; ++half) {
      Halves steps;
      std::memcpy(&steps, data + i * lane_stride + half * kHalves, sizeof(steps));
      steps = __builtin_shufflevector(steps, steps, 2, 0, 6, 4, 3, 1, 7, 5, 10, 8, 14, 12, 11, 9,
                                      15, 13);
      std::memcpy(&rows[i][half * kHalves / 2], &steps, sizeof(steps));
    }
  }
  transpose_words(rows,
                  [&](int w) { return words + (w % 4 / 2 * 8 + w / 4 * 2 + w % 2) * kPanel; });
}

// Calls pack(data, stride) with a whole unit: that of `from`, or a copy that zeros fill up.
template <class Pack>
void with_whole_unit(const Lanes& from, std::int64_t steps, std::int64_t lanes, const Pack& pack) {
  const bool by_steps = from.lane_stride == 1;
  const auto stride = by_steps ? from.step_stride : from.lane_stride;
  if (steps == kUnit && lanes == kPanel) return pack(from.data, stride);
  BFloat16 whole[kUnit * kPanel];
  const auto width = by_steps ? kPanel : kUnit;
  const auto runs = by_steps ? steps : lanes, length = by_steps ? lanes : steps;
  for (std::int64_t i = 0; i < runs; ++i) {
    std::copy_n(from.data + i * stride, length, whole + i * width);
  }
  pack(whole, width);
}

}  // namespace

void pack_unit(const Lanes& from, std::int64_t steps, std::int64_t lanes, PairOrder order,
               std::byte* unit) {
  with_whole_unit(from, steps, lanes, [&](const BFloat16* data, std::int64_t stride) {
    from.lane_stride == 1 ? pack_by_steps(data, stride, order, unit)
                          : pack_by_lanes(data, stride, order, unit);
  });
}

void pack_unit_of_rows(const Lanes& from, std::int64_t steps, std::int64_t lanes, std::byte* unit) {
  constexpr std::int64_t kRow = kWords * 4;
  with_whole_unit(from, steps, lanes, [&](const BFloat16* data, std::int64_t stride) {
    if (from.lane_stride != 1) {
      for (std::int64_t i = 0; i < kPanel; ++i) {
        std::memcpy(unit + i * kRow, data + i * stride, kRow);
      }
    } else {
      float words[kWords][kPanel];
      pack_by_steps(data, stride, PairOrder::kNeighbours, reinterpret_cast<std::byte*>(words));
      auto* const to = reinterpret_cast<float*>(unit);
      transpose_words(words, [&](int i) { return to + i * kPanel; });
    }
  });
}

void unpack_steps(const std::byte* unit, PairOrder order, std::int64_t first_step, BFloat16* to,
                  std::int64_t to_stride) {
  for (std::int64_t w = 0; w < kWords; ++w) {
    const auto lower = lower_step(order, w) - first_step, upper = upper_step(order, w) - first_step;
    if (lower < 0 || lower >= kHalves) continue;
    const auto* const words = reinterpret_cast<const Word*>(unit) + w * kPanel;
    BFloat16 *const lower_to = to + lower * to_stride, *const upper_to = to + upper * to_stride;
    for (std::int64_t i = 0; i < kPanel; ++i) {
      lower_to[i].bits = static_cast<std::uint16_t>(words[i]);
    }
    for (std::int64_t i = 0; i < kPanel; ++i) {
      upper_to[i].bits = static_cast<std::uint16_t>(words[i] >> 16);
    }
  }
}

}  // namespace moegrad::kernels::bf16
