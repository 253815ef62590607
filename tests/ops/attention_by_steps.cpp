// SPDX-License-Identifier: Apache-2.0
// Shapes: T tokens, L tokens of one document, Nq query heads, Nkv key/value heads, D head
// dimension.
#include "tests/ops/attention_by_steps.h"

#include <limits>

#include "framework/tensor/fill.h"
#include "ops/copies.h"
#include "ops/dropout.h"
#include "ops/elementwise.h"
#include "ops/indexing.h"
#include "ops/masks.h"
#include "ops/matmul.h"
#include "ops/softmax.h"
#include "ops/split_cat.h"
#include "ops/views.h"

namespace moegrad::test {
namespace {

using namespace ops;

// bool [L, L]: whether token t attends to token j.
Tensor visible(std::int64_t length, const AttentionOptions& options) {
  Tensor mask = Tensor::empty({length, length}, Dtype::kBool);
  auto* at = mask.mutable_data<bool>().data();
  for (std::int64_t t = 0; t < length; ++t) {
    for (std::int64_t j = 0; j < length; ++j) {
      const bool causal = options.mask == AttentionMask::kFull || j <= t;
      const bool near = options.mask != AttentionMask::kSlidingWindow || j > t - options.window;
      *at++ = causal && near;
    }
  }
  return mask;
}

// [L, N, D] -> [Nq, L, D]
Tensor by_heads(const Tensor& x, std::int64_t query_heads) {
  return permute(repeat_interleave(x, query_heads / x.dim(1), 1), {1, 0, 2});
}

// Attends in one document that begins at token `begin`: q [L, Nq, D], k and v [L, Nkv, D].
Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, double scale, std::int64_t begin,
              const AttentionOptions& options) {
  const auto length = q.dim(0), heads = q.dim(1);
  Tensor mask = visible(length, options);
  if (options.allowed.defined()) {
    const Tensor rows = narrow(options.allowed, -2, begin, length);
    mask = logical_and(mask, narrow(rows, -1, begin, length));  // [L, L] or [Nq, L, L]
  }
  const Tensor hidden = logical_not(mask);
  const Tensor scores =
      matmul(by_heads(q, heads), transpose(by_heads(k, heads), 1, 2)) * scale;  // [Nq, L, L]
  const Tensor p = softmax(masked_fill(scores, hidden, -std::numeric_limits<double>::infinity()));
  // A row without anything visible is NaN so far.
  Tensor weights = masked_fill(p, hidden, 0);
  if (options.dropout) {
    const auto& [probability, seed, purpose, ids] = *options.dropout;
    const Tensor own = ids.defined() ? moegrad::clone(ids.slice(0, begin, begin + length))
                                     : Tensor::arange(begin, begin + length);
    weights = attention_dropout(weights, probability, seed, purpose, own);
  }
  return permute(matmul(weights, by_heads(v, heads)), {1, 0, 2});  // [L, Nq, D]
}

}  // namespace

Tensor attention_by_steps(const Tensor& q, const Tensor& k, const Tensor& v,
                          const Documents& documents, double scale,
                          const AttentionOptions& options) {
  TensorList results;
  const auto& offsets = documents.offsets();
  for (std::size_t i = 1; i < offsets.size(); ++i) {
    const auto begin = offsets[i - 1], length = offsets[i] - begin;
    if (length == 0) continue;
    const auto part = [&](const Tensor& x) { return narrow(x, 0, begin, length); };
    results.push_back(attend(part(q), part(k), part(v), scale, begin, options));
  }
  if (results.empty()) return mul(q, 0.0);
  return contiguous(cat(results, 0));
}

}  // namespace moegrad::test
