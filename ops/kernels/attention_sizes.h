// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace moegrad::kernels {

// Note [Blocked attention]
// Query head h reads key/value head h / group, group = query_heads / kv_heads. Work is cut into
// blocks of queries, at most kQueryRows rows (position, head of the group) unless one position has
// more, and blocks of kKeyBlock keys, counted from the document's first token.
//
// Every product consists of the matmul's tiles, six rows of a left operand times a panel of sixteen
// columns, but each of its sums is one chain: over a block of keys for out and grad_q, over all
// queries in ascending order for grad_k and grad_v. The sixteen columns are query rows wherever
// possible: scores [key, row] = K q^T, out^T [dim, row] = V^T p and grad_q^T = K^T grad_scores. So
// the softmax runs lane by lane without horizontal sums, and each product writes the panel that the
// next one reads. Only grad_k and grad_v, which are sums over query rows, need p and grad_scores
// transposed.
//
// A row gets the same bits whatever is packed beside it: its keys are cut at the same positions,
// and masked keys add exact zeros. Tiles that lie completely behind the queries or before their
// windows are skipped. What is masked within a tile gets the score -infinity, and its row's maximum
// begins at the lowest finite number, so that a row that has seen no key yet gets zeros, too.
//
// Dropout multiplies the weights by d = 0 or 1 / (1 - probability) after the softmax. With
// out = sum_j d_j p_j v_j, g = dL/dout and s the scores,
//
//     dL/ds_j = p_j (d_j g.v_j - g.out),   dL/dv_j = sum over rows of d_j p_j g
//
// and backward draws d again.
//
// Method: T. Dao, FlashAttention-2, arXiv:2307.08691.

inline constexpr std::int64_t kQueryRows = 128;
inline constexpr std::int64_t kKeyBlock = 96;

/// q, out [T, query_heads, head_dim]; k, v [T, kv_heads, head_dim]; logsumexp [query_heads, T].
struct AttentionSizes {
  std::int64_t tokens;
  std::int64_t query_heads;
  std::int64_t kv_heads;
  std::int64_t head_dim;

  std::int64_t group() const { return query_heads / kv_heads; }
  /// Positions in one block of queries.
  std::int64_t query_block() const { return group() < kQueryRows ? kQueryRows / group() : 1; }
};

/// Tokens [begin, end) are one document.
struct Document {
  std::int64_t begin;
  std::int64_t end;
};

}  // namespace moegrad::kernels
