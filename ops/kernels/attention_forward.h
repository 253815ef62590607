// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "ops/kernels/attention_pairs.h"
#include "ops/kernels/attention_sizes.h"

namespace moegrad::kernels {

/// Elements of scratch that one call of attention_forward needs.
template <class T>
std::int64_t attention_forward_scratch(const AttentionSizes& sizes);

/// For positions t of block `query_block` of the document and query heads h of `kv_head`:
///
///     out[t, h] = sum_j d_j p_j v[j],   p_j = exp(scale q[t, h].k[j] - logsumexp[h, t])
///
/// over the keys j that it sees, with d_j from dropout, by online softmax over the key blocks. For
/// a query that sees none, out is 0 and logsumexp infinity.
template <class T>
void attention_forward(const AttentionSizes& sizes, const AttentionPairs& pairs, const T* q,
                       const T* k, const T* v, T scale, Document document, std::int64_t kv_head,
                       std::int64_t query_block, T* out, T* logsumexp, T* scratch);

}  // namespace moegrad::kernels
