// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "ops/kernels/attention.h"
#include "ops/kernels/attention_tile.h"
#include "ops/kernels/exp.h"

namespace moegrad::kernels {
namespace {

/// The running softmax of the query rows over the key blocks seen so far, per row.
template <class T>
struct OnlineSoftmax {
  T* max;         // of the scores
  T* sum;         // of exp(score - max)
  T* correction;  // exp(old max - new max): what earlier sums have to be scaled by
};

/// Replaces the scores [key, row] of one block by exp(score - max), masked ones by zero.
template <class T>
void online_softmax(const AttentionBlock& block, std::int64_t row, T* scores,
                    const OnlineSoftmax<T>& state) {
  std::copy_n(state.max, block.rows, state.correction);
  for (std::int64_t j = 0; j < block.keys; ++j) {
    const T* s = scores + j * row;
    for (auto r = block.first_row(j); r < block.rows; ++r) {
      state.max[r] = s[r] > state.max[r] ? s[r] : state.max[r];
    }
  }
  for (std::int64_t r = 0; r < block.rows; ++r) {
    state.correction[r] = exp(state.correction[r] - state.max[r]);
    state.sum[r] *= state.correction[r];
  }
  for (std::int64_t j = 0; j < block.keys; ++j) {
    T* s = scores + j * row;
    const auto first = block.first_row(j);
    std::fill(s, s + first, T(0));
    for (auto r = first; r < block.rows; ++r) {
      s[r] = exp(s[r] - state.max[r]);
      state.sum[r] += s[r];
    }
  }
}

/// output[r] = output[r] * correction[r] + sum_j p[j, r] v[j]
template <class T>
void accumulate_output(const AttentionBlock& block, const AttentionStrides& strides, const T* p,
                       const T* v, const T* correction, T* output) {
  for (std::int64_t d0 = 0; d0 < strides.dim; d0 += kTileColumns) {
    for (std::int64_t r0 = 0; r0 < block.rows; r0 += kTileRows) {
      const auto keys = block.visible_keys(r0 + kTileRows - 1);
      tile_product(
          p + r0, 1, strides.row, v + d0, strides.dim, keys,
          [&](std::int64_t r, std::int64_t d, Vec<T> sum) {
            T* target = output + (r0 + r) * strides.dim + d0 + d;
            fma(Vec<T>::load(target), Vec<T>::broadcast(correction[r0 + r]), sum).store(target);
          });
    }
  }
}

}  // namespace

std::int64_t attention_forward_scratch(const AttentionSizes& sizes) {
  const AttentionStrides strides(sizes);
  return strides.row * (2 * strides.dim + kKeyBlock + 3) + 2 * kKeyBlock * strides.dim;
}

template <class T>
void attention_forward(const AttentionSizes& sizes, const T* q, const T* k, const T* v, T scale,
                       Document document, std::int64_t kv_head, std::int64_t query_block, T* out,
                       T* logsumexp, T* scratch) {
  const AttentionStrides strides(sizes);
  const auto dim = sizes.head_dim;
  const auto group = sizes.group();
  const auto query_begin = query_block * sizes.query_block();
  const auto query_end = std::min(query_begin + sizes.query_block(), document.end - document.begin);
  const auto rows = (query_end - query_begin) * group;
  const auto head = kv_head * group;
  const auto row_offset = [&](std::int64_t r) {
    const auto token = document.begin + query_begin + r / group;
    return (token * sizes.query_heads + head + r % group) * dim;
  };

  T* const q_t = scratch;                                // [dim, row]
  T* const output = q_t + strides.dim * strides.row;     // [row, dim]
  T* const scores = output + strides.row * strides.dim;  // [key, row]
  T* const k_rows = scores + kKeyBlock * strides.row;    // [key, dim]
  T* const v_rows = k_rows + kKeyBlock * strides.dim;    // [key, dim]
  T* const state_rows = v_rows + kKeyBlock * strides.dim;
  const OnlineSoftmax<T> state{state_rows, state_rows + strides.row, state_rows + 2 * strides.row};

  for (std::int64_t r = 0; r < rows; ++r) {
    std::copy_n(q + row_offset(r), dim, output + r * strides.dim);
  }
  transpose_rows(output, strides.dim, rows, dim, strides.row, q_t);
  std::fill_n(output, strides.row * strides.dim, T(0));
  std::fill_n(scores, kKeyBlock * strides.row, T(0));
  std::fill_n(state.max, strides.row, -std::numeric_limits<T>::infinity());
  std::fill_n(state.sum, strides.row, T(0));
  std::fill_n(state.correction, strides.row, T(0));

  for (std::int64_t key_begin = 0; key_begin < query_end; key_begin += kKeyBlock) {
    const AttentionBlock block{.query_begin = query_begin,
                               .rows = rows,
                               .group = group,
                               .key_begin = key_begin,
                               .keys = std::min(kKeyBlock, query_end - key_begin)};
    const auto offset = ((document.begin + key_begin) * sizes.kv_heads + kv_head) * dim;
    pack_rows(k + offset, sizes.kv_heads * dim, block.keys, dim, strides.dim, k_rows);
    pack_rows(v + offset, sizes.kv_heads * dim, block.keys, dim, strides.dim, v_rows);
    block_scores(block, strides, dim, k_rows, q_t, scale, scores);
    online_softmax(block, strides.row, scores, state);
    accumulate_output(block, strides, scores, v_rows, state.correction, output);
  }

  for (std::int64_t r = 0; r < rows; ++r) {
    T* target = out + row_offset(r);
    for (std::int64_t d = 0; d < dim; ++d) target[d] = output[r * strides.dim + d] / state.sum[r];
    const auto token = document.begin + query_begin + r / group;
    logsumexp[(head + r % group) * sizes.tokens + token] = state.max[r] + std::log(state.sum[r]);
  }
}

template void attention_forward<float>(const AttentionSizes&, const float*, const float*,
                                       const float*, float, Document, std::int64_t, std::int64_t,
                                       float*, float*, float*);
template void attention_forward<double>(const AttentionSizes&, const double*, const double*,
                                        const double*, double, Document, std::int64_t, std::int64_t,
                                        double*, double*, double*);

}  // namespace moegrad::kernels
