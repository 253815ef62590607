// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/attention_backward.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "ops/kernels/attention_tile.h"
#include "ops/kernels/simd.h"

namespace moegrad::kernels {
namespace {

/// delta[l] = grad_out.out of the panel's row l, summed in the order of the tile's v.grad_out. So a
/// row that sees only one key gets exactly the same number, and its scores have gradient zero.
template <class T>
void output_products(std::int64_t dim, const T* out, const T* grad_out, T* delta) {
  for (std::int64_t l = 0; l < kPanelRows; l += Vec<T>::kLanes) {
    auto sum = Vec<T>::zero();
    for (auto at = l; at < dim * kPanelRows; at += kPanelRows) {
      sum = fma(Vec<T>::load(out + at), Vec<T>::load(grad_out + at), sum);
    }
    sum.store(delta + l);
  }
}

/// Transposes the panels [keys, 16] of all rows into strips along the rows, and computes
///
///     grad[j] += sum_r weights[j, r] values[r]
///
/// starting at the first panel that may see key j. values [dim rounded up / 16][rows][16].
template <class T>
void accumulate_key_gradient(const AttentionBlock& block, std::int64_t rows, std::int64_t dim,
                             const T* weights, const T* values, const LeftStrips<T>& strips,
                             T* grad, std::int64_t step) {
  const auto& tiles = strips.tiles;
  const auto strip_rows = tiles.strip_rows;
  for (std::int64_t r0 = 0; r0 < rows; r0 += kPanelRows) {
    pack_left_strips(weights + r0 * block.keys, kPanelRows, 1, strips.cuts, strip_rows, kPanelRows,
                     strips.size(), strips.data + r0 * strip_rows);
  }
  const auto most_panels = tiles.panels(strips.cuts.length(0));
  for (std::int64_t d = 0; d < dim;) {
    const auto panels = std::clamp<std::int64_t>((dim - d) / kNzBlock, 1, most_panels);
    for (std::int64_t s = 0; s < strips.cuts.count(); ++s) {
      const auto j = strips.cuts.begin(s), length = strips.cuts.length(s);
      const auto r0 = block.first_row(j) / kPanelRows * kPanelRows;
      const T* strip = strips.data + s * strips.size() + r0 * strip_rows;
      const T* panel = values + d * rows + r0 * kNzBlock;
      T* target = grad + j * step + d;
      if (r0 >= rows) continue;
      const auto multiply = tiles.tile(length, panels);
      const auto chain = Chains::one(rows - r0);
      if (dim - d >= kNzBlock) {
        multiply(strip, panel, kNzBlock * rows, chain, target, step, Start::kGoesOn, {});
      } else {
        multiply_edge_tile(multiply, length, strip, panel, chain, target, step, dim - d,
                           Start::kGoesOn);
      }
    }
    d += panels * kNzBlock;
  }
}

/// The scratch of a call. The columns of `panels` are query rows, or dimensions for sums over query
/// rows.
template <class T>
struct BackwardScratch {
  BackwardScratch(const AttentionSizes& sizes, T* scratch)
      : rows(round_up(sizes.query_block() * sizes.group(), kPanelRows)), pieces(scratch) {
    const auto dim = sizes.head_dim;
    const auto wide = round_up(dim, kNzBlock);
    gathered = pieces.take(rows * dim);
    q_panels = pieces.take(rows * dim);
    q_by_dim = pieces.take(rows * wide);
    grad_out_panels = pieces.take(rows * dim);
    grad_out_by_dim = pieces.take(rows * wide);
    grad_q_panels = pieces.take(rows * dim);
    p = pieces.take(rows * kKeyBlock);
    grad_scores = pieces.take(rows * kKeyBlock);
    k_strips = pieces.take(LeftStrips<T>::room(kKeyBlock, dim));
    v_strips = pieces.take(LeftStrips<T>::room(kKeyBlock, dim));
    k_by_dim = pieces.take(LeftStrips<T>::room(dim, kKeyBlock));
    row_strips = pieces.take(LeftStrips<T>::room(kKeyBlock, rows));
    tile = pieces.take(wide * kPanelRows);
    logsumexp = pieces.take(rows);
    delta = pieces.take(rows);
  }

  std::int64_t rows;
  Pieces<T> pieces;
  T *gathered, *q_panels, *q_by_dim, *grad_out_panels, *grad_out_by_dim, *grad_q_panels, *p,
      *grad_scores, *k_strips, *v_strips, *k_by_dim, *row_strips, *tile, *logsumexp, *delta;
};

/// Packs what a query block needs: q (scaled) and grad_out in both orientations, logsumexp, delta.
template <class T>
void load_queries(const QueryRows& queries, std::int64_t rows, const T* q, T scale, const T* out,
                  const T* grad_out, const T* logsumexp, const BackwardScratch<T>& space) {
  const auto dim = queries.sizes.head_dim;
  const auto by_dim = [&](T* panels) {
    pack_right_panels<T>({space.gathered, RightForm::kRows, dim}, 0, rows, 0, dim, dim, panels);
  };
  T* const out_panels = space.grad_q_panels;  // free until grad_q is begun
  queries.gather(out, T(1), space.gathered);
  pack_rows_as_columns(space.gathered, rows, dim, out_panels);
  queries.gather(grad_out, T(1), space.gathered);
  pack_rows_as_columns(space.gathered, rows, dim, space.grad_out_panels);
  by_dim(space.grad_out_by_dim);
  queries.gather(q, scale, space.gathered);
  pack_rows_as_columns(space.gathered, rows, dim, space.q_panels);
  by_dim(space.q_by_dim);
  for (std::int64_t r0 = 0; r0 < rows; r0 += kPanelRows) {
    output_products(dim, out_panels + r0 * dim, space.grad_out_panels + r0 * dim, space.delta + r0);
  }
  queries.for_rows(0, rows, [&](std::int64_t r, std::int64_t token, std::int64_t head) {
    space.logsumexp[r] = logsumexp[head * queries.sizes.tokens + token];
  });
  // Makes p zero in the rows that fill up a panel. Otherwise it could be infinite times zero.
  std::fill(space.logsumexp + queries.rows, space.logsumexp + rows,
            std::numeric_limits<T>::infinity());
}

/// With p = exp(score - logsumexp) and d from dropout: d p and, if wanted,
/// grad_scores = p * (d v.grad_out - delta) of the panel [keys, 16] of rows r0 ...; zero for masked
/// keys.
template <class T>
void score_gradients(const QueryRows& queries, const AttentionBlock& block, std::int64_t r0,
                     const LeftStrips<T>& k_strips, const LeftStrips<T>* v_strips,
                     const BackwardScratch<T>& space) {
  const auto dim = queries.sizes.head_dim;
  const auto keys = block.keys_of_panel(r0);
  const auto masked = (block.keys - keys) * kPanelRows;
  const bool drops = queries.pairs.random_of_head != nullptr;
  T factors[kKeyBlock * kPanelRows];
  if (drops) queries.draw_dropout(block, r0, factors);
  T* const p = space.p + r0 * block.keys;
  multiply_panel(k_strips, keys, space.q_panels + r0 * dim, dim, p, false);
  queries.mask_panel(block, r0, p);
  T sums[kPanelRows] = {};
  exp_panel(space.logsumexp + r0, keys, p, sums);
  std::fill_n(p + keys * kPanelRows, masked, T(0));
  if (v_strips != nullptr) {
    T* const grad = space.grad_scores + r0 * block.keys;
    multiply_panel(*v_strips, keys, space.grad_out_panels + r0 * dim, dim, grad, false);
    if (drops) scale_elements(factors, keys, grad);
    for (std::int64_t l = 0; l < kPanelRows; l += Vec<T>::kLanes) {
      const auto delta = Vec<T>::load(space.delta + r0 + l);
      for (auto at = l; at < keys * kPanelRows; at += kPanelRows) {
        (Vec<T>::load(p + at) * (Vec<T>::load(grad + at) - delta)).store(grad + at);
      }
    }
    std::fill_n(grad + keys * kPanelRows, masked, T(0));
  }
  if (drops) scale_elements(factors, keys, p);
}

}  // namespace

template <class T>
std::int64_t attention_backward_scratch(const AttentionSizes& sizes) {
  return BackwardScratch<T>(sizes, nullptr).pieces.taken();
}

// q is scaled when it is loaded. So grad_scores are the gradients of the scaled products, grad_k
// needs no scaling, and grad_q is scaled at the end.
template <class T>
void attention_backward(const AttentionSizes& sizes, const AttentionPairs& pairs, const T* q,
                        const T* k, const T* v, const T* out, const T* logsumexp, const T* grad_out,
                        T scale, Document document, std::int64_t kv_head,
                        const AttentionGrads<T>& grads, T* scratch) {
  const BackwardScratch<T> space(sizes, scratch);
  const auto dim = sizes.head_dim;
  const auto key_step = sizes.kv_heads * dim;
  const auto length = document.end - document.begin;
  for (std::int64_t query_begin = 0; query_begin < length; query_begin += sizes.query_block()) {
    const auto query_end = std::min(query_begin + sizes.query_block(), length);
    const QueryRows queries{sizes,   pairs,       document,
                            kv_head, query_begin, (query_end - query_begin) * sizes.group()};
    const auto rows = round_up(queries.rows, kPanelRows);
    load_queries(queries, rows, q, scale, out, grad_out, logsumexp, space);

    for (auto key_begin = queries.first_block(0); key_begin < queries.key_end();
         key_begin += kKeyBlock) {
      const auto block = queries.against(key_begin);
      const auto offset = (document.begin + key_begin) * key_step + kv_head * dim;
      LeftStrips<T> k_strips(block.keys, dim, space.k_strips);
      LeftStrips<T> v_strips(block.keys, dim, space.v_strips);
      LeftStrips<T> k_by_dim(dim, block.keys, space.k_by_dim);
      const LeftStrips<T> row_strips(block.keys, rows, space.row_strips);
      const bool want_scores = grads.q != nullptr || grads.k != nullptr;
      k_strips.pack(k + offset, key_step, 1);
      if (want_scores) v_strips.pack(v + offset, key_step, 1);
      for (std::int64_t r0 = 0; r0 < rows; r0 += kPanelRows) {
        score_gradients(queries, block, r0, k_strips, want_scores ? &v_strips : nullptr, space);
      }
      if (grads.q != nullptr) {
        k_by_dim.pack(k + offset, 1, key_step);
        for (std::int64_t r0 = 0; r0 < rows; r0 += kPanelRows) {
          const auto keys = block.keys_of_panel(r0);
          if (keys == 0) continue;
          multiply_panel(k_by_dim, dim, space.grad_scores + r0 * block.keys, keys,
                         space.grad_q_panels + r0 * dim, key_begin > queries.first_block(r0));
        }
      }
      if (grads.k != nullptr) {
        accumulate_key_gradient(block, rows, dim, space.grad_scores, space.q_by_dim, row_strips,
                                grads.k + offset, key_step);
      }
      if (grads.v != nullptr) {
        accumulate_key_gradient(block, rows, dim, space.p, space.grad_out_by_dim, row_strips,
                                grads.v + offset, key_step);
      }
    }
    for (std::int64_t r0 = 0; grads.q != nullptr && r0 < rows; r0 += kPanelRows) {
      T* panel = space.grad_q_panels + r0 * dim;
      for (std::int64_t i = 0; i < dim * kPanelRows; ++i) panel[i] *= scale;
      queries.scatter_panel(panel, r0, space.tile, grads.q);
    }
  }
}

template std::int64_t attention_backward_scratch<float>(const AttentionSizes&);
template std::int64_t attention_backward_scratch<double>(const AttentionSizes&);
template void attention_backward<float>(const AttentionSizes&, const AttentionPairs&, const float*,
                                        const float*, const float*, const float*, const float*,
                                        const float*, float, Document, std::int64_t,
                                        const AttentionGrads<float>&, float*);
template void attention_backward<double>(const AttentionSizes&, const AttentionPairs&,
                                         const double*, const double*, const double*, const double*,
                                         const double*, const double*, double, Document,
                                         std::int64_t, const AttentionGrads<double>&, double*);

}  // namespace moegrad::kernels
