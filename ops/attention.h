// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "framework/tensor/documents.h"
#include "framework/tensor/tensor.h"

namespace moegrad::ops {

/// Causal softmax attention with grouped query heads over packed documents:
///
///     out[t, h] = sum_{j in document of t, j <= t} p_j v[j, g(h)]
///     p = softmax_j(scale * q[t, h] . k[j, g(h)]),   g(h) = h / (Nq / Nkv)
///
/// q [T, Nq, D]; k, v [T, Nkv, D]; returns [T, Nq, D]. No [T, T] matrix is formed, and a document
/// gives the same bits alone as packed among others.
///
/// Errors: ShapeError for ranks or sizes that do not fit, DtypeError for mixed dtypes, ValueError
/// unless the documents have T tokens.
///
/// References: Milakov & Gimelshein, "Online normalizer calculation for softmax", 2018; Dao et al.,
/// "FlashAttention", 2022, for the backward pass that recomputes p from the logsumexp.
Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, const Documents& documents,
                 double scale);

}  // namespace moegrad::ops
