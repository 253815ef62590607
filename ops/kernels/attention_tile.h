// SPDX-License-Identifier: Apache-2.0
#pragma once

// Code that forward and backward of attention share: Note [Blocked attention].

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

#include "framework/tensor/layout.h"
#include "ops/kernels/attention_pairs.h"
#include "ops/kernels/attention_sizes.h"
#include "ops/kernels/dropout_words.h"
#include "ops/kernels/even_cuts.h"
#include "ops/kernels/exp.h"
#include "ops/kernels/matmul_tile.h"
#include "ops/kernels/pack.h"
#include "ops/kernels/product_loops.h"
#include "ops/kernels/simd.h"

namespace moegrad::kernels {

inline constexpr std::int64_t kPanelRows = kNzBlock;  // query rows side by side in a panel

/// A block of query rows against a block of keys. Positions count from the document's start. Row r
/// is position query_begin + r / group. Rows behind the last one fill up a panel; what they give is
/// not read.
struct AttentionBlock {
  std::int64_t query_begin;
  std::int64_t rows;
  std::int64_t group;
  std::int64_t key_begin;
  std::int64_t keys;
  bool causal;
  std::int64_t window;

  /// Row r may see the keys from begin_key(r) up to end_key(r), which it may not.
  std::int64_t begin_key(std::int64_t r) const {
    return std::clamp<std::int64_t>(position(r) + 1 - window - key_begin, 0, keys);
  }
  std::int64_t end_key(std::int64_t r) const {
    return causal ? std::clamp<std::int64_t>(position(r) + 1 - key_begin, 0, keys) : keys;
  }
  /// How many keys are computed for the panel from r0 on; 0 if none of its rows may see any.
  std::int64_t keys_of_panel(std::int64_t r0) const {
    return begin_key(r0) == keys ? 0 : end_key(r0 + kPanelRows - 1);
  }
  /// Key j may be seen by the rows from first_row(j) up to end_row(j), which may not.
  std::int64_t first_row(std::int64_t j) const {
    return causal ? std::min(rows, std::max<std::int64_t>(0, key_begin + j - query_begin) * group)
                  : 0;
  }
  std::int64_t end_row(std::int64_t j) const {
    return std::max<std::int64_t>(0, key_begin + j + window - query_begin) * group;
  }

 private:
  std::int64_t position(std::int64_t r) const {
    return query_begin + std::min(r, rows - 1) / group;
  }
};

/// Allocates a scratch buffer piece by piece. Each piece starts at a cache line. Without a buffer
/// it only counts.
template <class T>
class Pieces {
 public:
  explicit Pieces(T* buffer) : buffer_(buffer) {}
  T* take(std::int64_t size) {
    const auto begin = std::exchange(taken_, taken_ + round_up(size, kAlign));
    return buffer_ == nullptr ? nullptr : buffer_ + begin;
  }
  std::int64_t taken() const { return taken_; }

 private:
  static constexpr std::int64_t kAlign = 64 / sizeof(T);
  T* buffer_;
  std::int64_t taken_ = 0;
};

/// The left operand of a product: rows cut into strips, each [depth, strip_rows].
template <class T>
struct LeftStrips {
  LeftStrips(std::int64_t rows, std::int64_t steps, T* scratch)
      : tiles(product_loops<T>().tiles),
        cuts(rows, tiles.strip_rows),
        depth(steps),
        data(scratch) {}

  const TileSet<T>& tiles;
  EvenCuts cuts;
  std::int64_t depth;
  T* data;

  /// The number of elements for `rows` rows and `depth` steps.
  static std::int64_t room(std::int64_t rows, std::int64_t depth) {
    return round_up(rows, product_loops<T>().tiles.strip_rows) * depth;
  }
  std::int64_t size() const { return depth * tiles.strip_rows; }
  /// Row i at step p comes from source[i * row_stride + p * depth_stride].
  void pack(const T* source, std::int64_t row_stride, std::int64_t depth_stride) {
    pack_left_strips(source, row_stride, depth_stride, cuts, tiles.strip_rows, depth, size(), data);
  }
};

/// c[i, 0 : 16] = sum_p a[i, p] panel[p, 0 : 16] over `depth` steps, for the strips whose first row
/// is before row `rows`. Each sum is one chain; with `resume` it starts from c.
template <class T>
void multiply_panel(const LeftStrips<T>& a, std::int64_t rows, const T* panel, std::int64_t depth,
                    T* c, bool resume) {
  const auto chain = Chains::one(depth);
  const auto start = resume ? Start::kGoesOn : Start::kZero;
  for (std::int64_t s = 0; s < a.cuts.count() && a.cuts.begin(s) < rows; ++s) {
    a.tiles.tile(a.cuts.length(s))(a.data + s * a.size(), panel, 0, chain,
                                   c + a.cuts.begin(s) * kNzBlock, kNzBlock, start, {});
  }
}

/// In the panel [keys_of_panel(r0), 16] of rows r0 ..., sets the scores of keys that a row may not
/// see for their positions to -infinity.
template <class T>
void mask_positions(const AttentionBlock& block, std::int64_t r0, T* panel) {
  const auto keys = block.keys_of_panel(r0);
  for (auto j = block.end_key(r0); j < keys; ++j) {
    const auto first = std::min(kPanelRows, block.first_row(j) - r0);
    std::fill_n(panel + j * kPanelRows, first, -std::numeric_limits<T>::infinity());
  }
  const auto before_windows = std::min(keys, block.begin_key(r0 + kPanelRows - 1));
  for (std::int64_t j = 0; j < before_windows; ++j) {
    const auto end = std::clamp<std::int64_t>(block.end_row(j) - r0, 0, kPanelRows);
    std::fill_n(panel + j * kPanelRows + end, kPanelRows - end,
                -std::numeric_limits<T>::infinity());
  }
}

/// panel[i, l] *= factors[i, l] for panels [count, 16].
template <class T>
void scale_elements(const T* factors, std::int64_t count, T* panel) {
  for (std::int64_t at = 0; at < count * kPanelRows; at += Vec<T>::kLanes) {
    (Vec<T>::load(panel + at) * Vec<T>::load(factors + at)).store(panel + at);
  }
}

/// panel[i, l] = exp(panel[i, l] - shift[l]) for a panel [count, 16], and sum[l] += their sum.
template <class T>
void exp_panel(const T* shift, std::int64_t count, T* panel, T* sum) {
  for (std::int64_t l = 0; l < kPanelRows; l += Vec<T>::kLanes) {
    const auto down = Vec<T>::load(shift + l);
    auto total = Vec<T>::load(sum + l);
    for (auto at = l; at < count * kPanelRows; at += kPanelRows) {
      const auto p = exp(Vec<T>::load(panel + at) - down);
      p.store(panel + at);
      total = total + p;
    }
    total.store(sum + l);
  }
}

/// The rows of one query block of one key/value head inside q, out and their gradients
/// [T, query_heads, head_dim].
struct QueryRows {
  const AttentionSizes& sizes;
  const AttentionPairs& pairs;
  Document document;
  std::int64_t kv_head;
  std::int64_t begin;  // position
  std::int64_t rows;

  /// The block of keys that the first key is in that row r may see.
  std::int64_t first_block(std::int64_t r) const {
    const auto key = begin + r / sizes.group() + 1 - pairs.window;
    return std::max<std::int64_t>(0, key) / kKeyBlock * kKeyBlock;
  }
  /// The end of the keys that any of the rows may see.
  std::int64_t key_end() const {
    return pairs.causal ? begin + rows / sizes.group() : document.end - document.begin;
  }
  /// The block of these rows and up to kKeyBlock keys from key_begin on, as far as key_end().
  AttentionBlock against(std::int64_t key_begin) const {
    return {.query_begin = begin,
            .rows = rows,
            .group = sizes.group(),
            .key_begin = key_begin,
            .keys = std::min(kKeyBlock, key_end() - key_begin),
            .causal = pairs.causal,
            .window = pairs.window};
  }
  /// visit(r, token, head) for rows r0 ... r1 - 1.
  template <class Visit>
  void for_rows(std::int64_t r0, std::int64_t r1, const Visit& visit) const {
    const auto group = sizes.group();
    auto token = document.begin + begin + r0 / group;
    auto member = r0 % group;
    for (auto r = r0; r < std::min(r1, rows); ++r) {
      visit(r, token, kv_head * group + member);
      if (++member == group) {
        member = 0;
        ++token;
      }
    }
  }
  std::int64_t offset(std::int64_t token, std::int64_t head) const {
    return (token * sizes.query_heads + head) * sizes.head_dim;
  }

  /// For each of the document's keys, whether a query is allowed to see it.
  const bool* allowed(std::int64_t token, std::int64_t head) const {
    return pairs.allowed + head * pairs.allowed_head_step + token * sizes.tokens + document.begin;
  }
  /// Whether there are keys that a query may see for its position, and it is allowed none.
  bool sees_none(std::int64_t token, std::int64_t head) const {
    if (pairs.allowed == nullptr) return false;
    const auto position = token - document.begin;
    const bool* const keys = allowed(token, head);
    const auto end = pairs.causal ? position + 1 : document.end - document.begin;
    return std::none_of(keys + std::max<std::int64_t>(0, position + 1 - pairs.window), keys + end,
                        [](bool seen) { return seen; });
  }
  /// mask_positions, and the same for what is not allowed.
  template <class T>
  void mask_panel(const AttentionBlock& block, std::int64_t r0, T* panel) const {
    mask_positions(block, r0, panel);
    if (pairs.allowed == nullptr) return;
    const auto end = block.keys_of_panel(r0);
    for_rows(r0, r0 + kPanelRows, [&](std::int64_t r, std::int64_t token, std::int64_t head) {
      const bool* const keys = allowed(token, head) + block.key_begin;
      for (std::int64_t j = 0; j < end; ++j) {
        if (!keys[j]) panel[j * kPanelRows + r - r0] = -std::numeric_limits<T>::infinity();
      }
    });
  }
  /// What dropout multiplies the weights of a panel by; 0 in the rows that fill it up.
  template <class T>
  void draw_dropout(const AttentionBlock& block, std::int64_t r0, T* factors) const {
    const auto keys = block.keys_of_panel(r0);
    const auto threshold = dropout_threshold(pairs.dropout);
    const auto kept = static_cast<T>(1.0 / (1.0 - pairs.dropout));
    std::fill_n(factors, keys * kPanelRows, T(0));
    for_rows(r0, r0 + kPanelRows, [&](std::int64_t r, std::int64_t token, std::int64_t head) {
      for_each_word_of_pairs(pairs.random_of_head[head], pairs.ids[token],
                             pairs.ids + document.begin + block.key_begin, keys,
                             [&](std::int64_t j, std::uint32_t word) {
                               if (word >= threshold) factors[j * kPanelRows + r - r0] = kept;
                             });
    });
  }

  /// target[r] = factor * source row r, zero for the rows that fill up the last panel.
  template <class T>
  void gather(const T* source, T factor, T* target) const {
    const auto dim = sizes.head_dim;
    for_rows(0, rows, [&](std::int64_t r, std::int64_t token, std::int64_t head) {
      const T* row = source + offset(token, head);
      for (std::int64_t d = 0; d < dim; ++d) target[r * dim + d] = factor * row[d];
    });
    std::fill(target + rows * dim, target + round_up(rows, kPanelRows) * dim, T(0));
  }

  /// Writes the panel [head_dim, 16] of rows r0 ... to its rows of `target`. It uses
  /// `tile` [head_dim rounded up to 16, 16] as scratch.
  template <class T>
  void scatter_panel(const T* panel, std::int64_t r0, T* tile, T* target) const {
    const auto dim = sizes.head_dim;
    pack_right_panels<T>({panel, RightForm::kColumns, kPanelRows}, 0, kPanelRows, 0, dim, dim,
                         tile);
    for_rows(r0, r0 + kPanelRows, [&](std::int64_t r, std::int64_t token, std::int64_t head) {
      for (std::int64_t d = 0; d < dim; d += kNzBlock) {
        std::copy_n(tile + (d + r - r0) * kNzBlock, std::min(kNzBlock, dim - d),
                    target + offset(token, head) + d);
      }
    });
  }
};

/// panels[r / 16][d][r % 16] = rows[r, d]
template <class T>
void pack_rows_as_columns(const T* rows, std::int64_t count, std::int64_t dim, T* panels) {
  pack_right_panels<T>({rows, RightForm::kColumns, dim}, 0, dim, 0, count, count, panels);
}

}  // namespace moegrad::kernels
