// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace moegrad::kernels {

// Note [Blocked causal attention]
// Query head h reads key/value head h / group, group = query_heads / kv_heads. Work is cut into
// blocks of queries, at most kQueryRows rows (position, head of the group) unless one position has
// more, and blocks of kKeyBlock keys, counted from the document's first token.
//
// Every product consists of the matmul's tiles (Note [Matmul order]): six rows of a left operand
// times a panel of sixteen columns. The sixteen columns are query rows wherever possible: scores
// [key, row] = K q^T, out^T [dim, row] = V^T p and grad_q^T = K^T grad_scores. So the softmax runs
// lane by lane without horizontal sums, and each product writes the panel that the next one reads.
// Only grad_k and grad_v, which are sums over query rows, need p and grad_scores transposed.
//
// A row gets the same bits whatever is packed beside it: its keys are cut at the same positions,
// and masked keys add exact zeros. Tiles that are masked completely are skipped.
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

/// The number of scratch elements that one call of the functions below needs.
template <class T>
std::int64_t attention_forward_scratch(const AttentionSizes& sizes);
template <class T>
std::int64_t attention_backward_scratch(const AttentionSizes& sizes);

/// For positions t of block `query_block` of the document and query heads h of `kv_head`:
///
///     out[t, h] = sum_{j <= t} p_j v[j],   p_j = exp(scale q[t, h].k[j] - logsumexp[h, t])
///
/// by online softmax over the key blocks.
template <class T>
void attention_forward(const AttentionSizes& sizes, const T* q, const T* k, const T* v, T scale,
                       Document document, std::int64_t kv_head, std::int64_t query_block, T* out,
                       T* logsumexp, T* scratch);

template <class T>
struct AttentionGrads {
  T* q;  // overwritten
  T* k;  // added to
  T* v;  // added to; a null pointer means that the gradient is not wanted
};

/// The gradients of one document and key/value head, from grad_out and the results of forward.
template <class T>
void attention_backward(const AttentionSizes& sizes, const T* q, const T* k, const T* v,
                        const T* out, const T* logsumexp, const T* grad_out, T scale,
                        Document document, std::int64_t kv_head, const AttentionGrads<T>& grads,
                        T* scratch);

}  // namespace moegrad::kernels
