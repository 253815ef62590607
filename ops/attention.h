// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "framework/tensor/documents.h"
#include "framework/tensor/tensor.h"

namespace moegrad::ops {

/// Which tokens j of its document a token t attends to.
enum class AttentionMask : std::uint8_t {
  kCausal,         // j <= t
  kFull,           // all
  kSlidingWindow,  // t - window < j <= t
};

struct AttentionOptions {
  AttentionMask mask = AttentionMask::kCausal;
  std::int64_t window = 0;  // of kSlidingWindow, at least 1
  /// Where it is false, token t does not attend to j, whatever the mask says: bool [T, T], or
  /// [Nq, T, T] with one for each query head. Undefined: true everywhere.
  Tensor allowed = {};
  /// Drops the weights that ops::attention_dropout drops, before they weigh the values.
  struct Dropout {
    double p = 0;
    std::uint64_t seed = 0;
    std::string purpose = {};
    Tensor ids = {};  // int64 [T]
  };
  std::optional<Dropout> dropout = std::nullopt;
};

/// Softmax attention with grouped query heads over packed documents:
///
///     out[t, h] = sum_j p_j v[j, g(h)]
///     p = softmax_j(scale * q[t, h] . k[j, g(h)]),   g(h) = h / (Nq / Nkv)
///
/// over the tokens j of t's document that t attends to. A token that attends to none gets zeros and
/// gives no gradient. q [T, Nq, D]; k, v [T, Nkv, D]; returns [T, Nq, D]. A document gives the same
/// bits alone as packed among others.
///
/// q, k and v are float32, float64 or bfloat16, and so is the result; bfloat16 is widened, computed
/// with in float32, and the result rounded once.
///
/// No [T, T] matrix is formed, whatever the options: it takes memory in proportion to T, and time
/// in proportion to T * window with a window.
///
/// Errors: ShapeError for ranks or sizes that do not fit, DtypeError for other and mixed dtypes, an
/// `allowed` that is not bool and ids that are not int64, ValueError unless the documents have T
/// tokens, for a window below 1, a probability outside [0, 1) and ids outside [0, 2^32).
///
/// References: Milakov & Gimelshein, "Online normalizer calculation for softmax", 2018; Dao et al.,
/// "FlashAttention", 2022, for the backward pass that recomputes p from the logsumexp.
Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, const Documents& documents,
                 double scale, const AttentionOptions& options = {});

}  // namespace moegrad::ops
