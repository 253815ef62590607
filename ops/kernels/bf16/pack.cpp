// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/bf16/pack.h"

#include <algorithm>
#include <cstring>

#include "ops/kernels/bf16/tile.h"
#include "ops/kernels/transpose_8x8.h"

namespace moegrad::kernels::bf16 {
namespace {

using Word = std::uint32_t;

// words[w, i] = steps 2 w and 2 w + 1 of lane i; the lanes of a step lie side by side.
void pair_steps(const BFloat16* data, std::int64_t step_stride, Word (&words)[kWords][kPanel]) {
  for (std::int64_t w = 0; w < kWords; ++w) {
    const BFloat16* const first = data + 2 * w * step_stride;
    const BFloat16* const second = first + step_stride;
    for (std::int64_t i = 0; i < kPanel; ++i) {
      words[w][i] = first[i].bits | Word{second[i].bits} << 16;
    }
  }
}

// turned[w, i] = lanes[i, w]
void transpose_words(const float (&lanes)[kPanel][kWords], float (&turned)[kWords][kPanel]) {
  for (int row = 0; row < kPanel; row += 8) {
    for (int column = 0; column < kWords; column += 8) {
      transpose_8x8([&](int r) { return &lanes[row + r][column]; }, &turned[column][row], kPanel);
    }
  }
}

// The same where the steps of a lane lie side by side, and so are words already.
void turn_lanes(const BFloat16* data, std::int64_t lane_stride, Word (&words)[kWords][kPanel]) {
  float lanes[kPanel][kWords], turned[kWords][kPanel];
  for (std::int64_t i = 0; i < kPanel; ++i) {
    std::memcpy(lanes[i], data + i * lane_stride, sizeof(lanes[i]));
  }
  transpose_words(lanes, turned);
  std::memcpy(words, turned, sizeof(words));
}

void order_by_chains(const Word (&words)[kWords][kPanel], Word (&chains)[kWords][kPanel]) {
  for (std::int64_t w = 0; w < kWords / 2; ++w) {
    for (std::int64_t i = 0; i < kPanel; ++i) {
      const Word earlier = words[2 * w][i], later = words[2 * w + 1][i];
      chains[w][i] = earlier << 16 | (later & 0xffffU);
      chains[kWords / 2 + w][i] = (earlier & 0xffff0000U) | later >> 16;
    }
  }
}

}  // namespace

void pack_panel(const Lanes& from, std::int64_t steps, std::int64_t lanes, PairOrder order,
                std::byte* panel) {
  for (std::int64_t p = 0; p < steps; p += kUnit, panel += kUnitBytes) {
    const BFloat16* data = from.data + p * from.step_stride;
    auto step_stride = from.step_stride, lane_stride = from.lane_stride;
    BFloat16 whole[kUnit * kPanel];
    const auto count = std::min(kUnit, steps - p);
    if (count < kUnit || lanes < kPanel) {
      const bool by_steps = lane_stride == 1;
      const auto to_step = by_steps ? kPanel : 1, to_lane = by_steps ? 1 : kUnit;
      for (std::int64_t s = 0; s < count; ++s) {
        for (std::int64_t i = 0; i < lanes; ++i) {
          whole[s * to_step + i * to_lane] = data[s * step_stride + i * lane_stride];
        }
      }
      data = whole;
      step_stride = to_step;
      lane_stride = to_lane;
    }
    Word words[kWords][kPanel], chains[kWords][kPanel];
    lane_stride == 1 ? pair_steps(data, step_stride, words) : turn_lanes(data, lane_stride, words);
    if (order == PairOrder::kNeighbours) {
      std::memcpy(panel, words, sizeof(words));
    } else {
      order_by_chains(words, chains);
      std::memcpy(panel, chains, sizeof(chains));
    }
  }
}

void pack_rows(const Lanes& from, std::int64_t steps, std::int64_t lanes, std::byte* panel) {
  static_assert(kWords == kPanel);
  for (std::int64_t p = 0; p < steps; p += kUnit, panel += kUnitBytes) {
    const BFloat16* const data = from.data + p * from.step_stride;
    const auto count = std::min(kUnit, steps - p);
    if (from.step_stride == 1) {
      constexpr std::int64_t kRow = kWords * 4;
      if (count < kUnit || lanes < kPanel) std::memset(panel, 0, kUnitBytes);
      for (std::int64_t i = 0; i < lanes; ++i) {
        const BFloat16* const row = data + i * from.lane_stride;
        if (count == kUnit) {
          std::memcpy(panel + i * kRow, row, kRow);
        } else {
          std::memcpy(panel + i * kRow, row, static_cast<std::size_t>(count) * sizeof(BFloat16));
        }
      }
    } else {
      float words[kWords][kPanel], rows[kPanel][kWords];
      pack_panel({data, from.step_stride, 1}, count, lanes, PairOrder::kNeighbours,
                 reinterpret_cast<std::byte*>(words));
      transpose_words(words, rows);
      std::memcpy(panel, rows, sizeof(rows));
    }
  }
}

}  // namespace moegrad::kernels::bf16
