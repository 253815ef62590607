// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "framework/tensor/tensor.h"

namespace moegrad::ops {

/// Causal softmax attention with grouped query heads over packed documents:
///
///     out[t, h] = sum_{j in document of t, j <= t} p_j v[j, g(h)]
///     p = softmax_j(scale * q[t, h] . k[j, g(h)]),   g(h) = h / (Nq / Nkv)
///
/// q [T, Nq, D]; k, v [T, Nkv, D]; returns [T, Nq, D]. Document i is tokens [cu_seqlens[i],
/// cu_seqlens[i + 1]); it may be empty. No [T, T] matrix is formed. A document gives the same bits
/// alone and packed among others.
///
/// Errors: ShapeError for ranks or sizes that do not fit, DtypeError for mixed dtypes, ValueError
/// for cu_seqlens that do not rise from 0 to T.
///
/// References: Milakov & Gimelshein, "Online normalizer calculation for softmax", 2018; Dao et al.,
/// "FlashAttention", 2022, for the backward pass that recomputes p from the logsumexp.
Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v,
                 const std::vector<std::int64_t>& cu_seqlens, double scale);

}  // namespace moegrad::ops
