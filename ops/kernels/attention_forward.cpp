// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/attention_forward.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "framework/runtime/math/elementary.h"
#include "ops/kernels/attention_tile.h"
#include "ops/kernels/simd.h"

namespace moegrad::kernels {
namespace {

/// The running softmax of a panel's rows over the key blocks so far.
template <class T>
struct OnlineSoftmax {
  T* max;  // of the scores
  T* sum;  // of exp(score - max)
};

/// Replaces the scores [keys, 16] by exp(score - max). `correction` becomes exp(old max - max), the
/// factor that corrects earlier sums. Returns whether any sum needs the correction.
template <class T>
bool online_softmax(std::int64_t keys, const OnlineSoftmax<T>& state, T* scores, T* correction) {
  bool corrected = false;
  for (std::int64_t l = 0; l < kPanelRows; l += Vec<T>::kLanes) {
    auto max = Vec<T>::load(state.max + l);
    for (auto at = l; at < keys * kPanelRows; at += kPanelRows) {
      max = larger(Vec<T>::load(scores + at), max);
    }
    exp(Vec<T>::load(state.max + l) - max).store(correction + l);
    max.store(state.max + l);
  }
  for (std::int64_t l = 0; l < kPanelRows; ++l) {
    state.sum[l] *= correction[l];
    corrected |= correction[l] != T(1);
  }
  exp_panel(state.max, keys, scores, state.sum);
  return corrected;
}

template <class T>
void scale_columns(const T* factors, std::int64_t rows, T* panel) {
  constexpr auto kLanes = Vec<T>::kLanes;
  for (std::int64_t l = 0; l < kPanelRows; l += kLanes) {
    const auto factor = Vec<T>::load(factors + l);
    for (auto at = l; at < rows * kPanelRows; at += kPanelRows) {
      (Vec<T>::load(panel + at) * factor).store(panel + at);
    }
  }
}

/// Drops weights of the panel [keys, 16] of rows r0 ....
template <class T>
void drop_weights(const QueryRows& queries, const AttentionBlock& block, std::int64_t r0,
                  T* weights) {
  T factors[kKeyBlock * kPanelRows];
  queries.draw_dropout(block, r0, factors);
  scale_elements(factors, block.keys_of_panel(r0), weights);
}

/// The scratch of a call. The depth of v_strips runs over keys, the depth of k_strips over
/// dimensions.
template <class T>
struct ForwardScratch {
  ForwardScratch(const AttentionSizes& sizes, T* scratch)
      : rows(round_up(sizes.query_block() * sizes.group(), kPanelRows)), pieces(scratch) {
    const auto dim = sizes.head_dim;
    q_rows = pieces.take(rows * dim);
    q_panels = pieces.take(rows * dim);
    out_panels = pieces.take(rows * dim);
    scores = pieces.take(kKeyBlock * kPanelRows);
    tile = pieces.take(round_up(dim, kNzBlock) * kPanelRows);
    k_strips = pieces.take(LeftStrips<T>::room(kKeyBlock, dim));
    v_strips = pieces.take(LeftStrips<T>::room(dim, kKeyBlock));
    max = pieces.take(rows);
    sum = pieces.take(rows);
    correction = pieces.take(kPanelRows);
  }

  std::int64_t rows;
  Pieces<T> pieces;
  T *q_rows, *q_panels, *out_panels, *scores, *tile, *k_strips, *v_strips, *max, *sum, *correction;
};

}  // namespace

template <class T>
std::int64_t attention_forward_scratch(const AttentionSizes& sizes) {
  return ForwardScratch<T>(sizes, nullptr).pieces.taken();
}

template <class T>
void attention_forward(const AttentionSizes& sizes, const AttentionPairs& pairs, const T* q,
                       const T* k, const T* v, T scale, Document document, std::int64_t kv_head,
                       std::int64_t query_block, T* out, T* logsumexp, T* scratch) {
  const ForwardScratch<T> space(sizes, scratch);
  const auto dim = sizes.head_dim;
  const auto query_begin = query_block * sizes.query_block();
  const auto query_end = std::min(query_begin + sizes.query_block(), document.end - document.begin);
  const QueryRows queries{sizes,   pairs,       document,
                          kv_head, query_begin, (query_end - query_begin) * sizes.group()};
  const auto rows = round_up(queries.rows, kPanelRows);
  queries.gather(q, scale, space.q_rows);
  pack_rows_as_columns(space.q_rows, rows, dim, space.q_panels);
  std::fill_n(space.max, rows, std::numeric_limits<T>::lowest());
  std::fill_n(space.sum, rows, T(0));

  const auto key_step = sizes.kv_heads * dim;
  for (auto key_begin = queries.first_block(0); key_begin < queries.key_end();
       key_begin += kKeyBlock) {
    const auto block = queries.against(key_begin);
    const auto offset = (document.begin + key_begin) * key_step + kv_head * dim;
    LeftStrips<T> k_strips(block.keys, dim, space.k_strips);
    LeftStrips<T> v_strips(dim, block.keys, space.v_strips);
    k_strips.pack(k + offset, key_step, 1);
    v_strips.pack(v + offset, 1, key_step);
    for (std::int64_t r0 = 0; r0 < rows; r0 += kPanelRows) {
      const auto keys = block.keys_of_panel(r0);
      if (keys == 0) continue;
      const bool first = key_begin == queries.first_block(r0);
      T* out_panel = space.out_panels + r0 * dim;
      multiply_panel(k_strips, keys, space.q_panels + r0 * dim, dim, space.scores, false);
      queries.mask_panel(block, r0, space.scores);
      const bool corrected =
          online_softmax<T>(keys, {space.max + r0, space.sum + r0}, space.scores, space.correction);
      if (corrected && !first) scale_columns(space.correction, dim, out_panel);
      if (pairs.random_of_head != nullptr) drop_weights(queries, block, r0, space.scores);
      multiply_panel(v_strips, dim, space.scores, keys, out_panel, !first);
    }
  }

  queries.for_rows(0, rows, [&](std::int64_t r, std::int64_t token, std::int64_t head) {
    if (space.sum[r] == T(0) && queries.sees_none(token, head)) {
      space.sum[r] = std::numeric_limits<T>::infinity();
    }
  });
  for (std::int64_t r0 = 0; r0 < rows; r0 += kPanelRows) {
    T* out_panel = space.out_panels + r0 * dim;
    for (std::int64_t l = 0; l < kPanelRows; ++l) space.correction[l] = 1 / space.sum[r0 + l];
    scale_columns(space.correction, dim, out_panel);
    queries.scatter_panel(out_panel, r0, space.tile, out);
  }
  queries.for_rows(0, rows, [&](std::int64_t r, std::int64_t token, std::int64_t head) {
    logsumexp[head * sizes.tokens + token] = space.max[r] + math::log(space.sum[r]);
  });
}

template std::int64_t attention_forward_scratch<float>(const AttentionSizes&);
template std::int64_t attention_forward_scratch<double>(const AttentionSizes&);
template void attention_forward<float>(const AttentionSizes&, const AttentionPairs&, const float*,
                                       const float*, const float*, float, Document, std::int64_t,
                                       std::int64_t, float*, float*, float*);
template void attention_forward<double>(const AttentionSizes&, const AttentionPairs&, const double*,
                                        const double*, const double*, double, Document,
                                        std::int64_t, std::int64_t, double*, double*, double*);

}  // namespace moegrad::kernels
