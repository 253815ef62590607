// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "ops/kernels/attention_pairs.h"
#include "ops/kernels/attention_sizes.h"

namespace moegrad::kernels {

/// Elements of scratch that one call of attention_backward needs.
template <class T>
std::int64_t attention_backward_scratch(const AttentionSizes& sizes);

template <class T>
struct AttentionGrads {
  T* q;  // overwritten
  T* k;  // added to, as is v
  T* v;  // a null pointer: not wanted
};

/// Gradients of one document and key/value head from grad_out and what forward left.
template <class T>
void attention_backward(const AttentionSizes& sizes, const AttentionPairs& pairs, const T* q,
                        const T* k, const T* v, const T* out, const T* logsumexp, const T* grad_out,
                        T scale, Document document, std::int64_t kv_head,
                        const AttentionGrads<T>& grads, T* scratch);

}  // namespace moegrad::kernels
