// SPDX-License-Identifier: Apache-2.0
// Shapes: T tokens, H hidden size, Nq query heads, Nkv key and value heads, D head_dim.
#include "nn/attention.h"

#include <cmath>
#include <memory>

#include "framework/runtime/error.h"
#include "nn/dropout.h"
#include "nn/layer_size.h"
#include "nn/linear.h"
#include "ops/attention.h"
#include "ops/views.h"

namespace moegrad::nn {
namespace {

std::shared_ptr<Linear> make_projection(std::int64_t in, std::int64_t out, bool bias, Dtype dtype) {
  return std::make_shared<Linear>(
      Linear::Config{.in_features = in, .out_features = out, .bias = bias, .dtype = dtype});
}

Attention::Config valid(const Attention::Config& config) {
  detail::layer_size("Attention", "hidden_size", config.hidden_size);
  detail::layer_size("Attention", "head_dim", config.head_dim);
  check<ValueError>(
      detail::layer_size("Attention", "num_heads", config.num_heads) %
              detail::layer_size("Attention", "num_key_value_heads", config.num_key_value_heads) ==
          0,
      "Attention: num_heads must be a multiple of num_key_value_heads (",
      config.num_key_value_heads, "), got ", config.num_heads);
  check<ValueError>(0 <= config.dropout && config.dropout < 1,
                    "Attention: dropout must be in [0, 1), got ", config.dropout);
  return config;
}

}  // namespace

void for_each_tensor(SequenceContext& context, const TensorVisitor& visit) {
  visit(context.rope.cos);
  visit(context.rope.sin);
}

Attention::Attention(const Config& config)
    : config_(valid(config)),
      q_proj_(make_projection(config.hidden_size, config.num_heads * config.head_dim,
                              config.qkv_bias, config.dtype)),
      k_proj_(make_projection(config.hidden_size, config.num_key_value_heads * config.head_dim,
                              config.qkv_bias, config.dtype)),
      v_proj_(make_projection(config.hidden_size, config.num_key_value_heads * config.head_dim,
                              config.qkv_bias, config.dtype)),
      o_proj_(make_projection(config.num_heads * config.head_dim, config.hidden_size,
                              /*bias=*/false, config.dtype)) {
  register_module("q_proj", q_proj_);
  register_module("k_proj", k_proj_);
  register_module("v_proj", v_proj_);
  register_module("o_proj", o_proj_);
  if (!config.qk_norm) return;
  const RMSNorm::Config norm = {
      .dim = config.head_dim, .eps = config.rms_norm_eps, .dtype = config.dtype};
  register_module("q_norm", q_norm_.emplace(norm));
  register_module("k_norm", k_norm_.emplace(norm));
}

Tensor Attention::forward(const Tensor& x, const SequenceContext& context) {  // [T, H]
  const auto d = config_.head_dim;
  check<ShapeError>(x.ndim() == 2, "Attention: x must be [tokens, ", config_.hidden_size, "], got ",
                    x.shape());
  const auto heads = [&](const Tensor& projected) {  // [T, N * D] -> [T, N, D]
    return ops::view(projected, {projected.dim(0), projected.dim(1) / d, d});
  };
  const auto& cos = context.rope.cos;
  const auto& sin = context.rope.sin;
  const bool partial = cos.defined() && cos.ndim() == 2 && 2 * cos.dim(1) < d;
  const auto rotated = [&](std::optional<RMSNorm>& norm, const Tensor& projected) {
    if (norm && !partial) return norm->call_method(&RMSNorm::rope, projected, cos, sin);
    const Tensor normed = norm ? norm->call_method(&RMSNorm::by_heads, projected) : projected;
    return partial ? ops::partial_rope(normed, context.rope) : ops::rope(normed, context.rope);
  };
  const Tensor q = rotated(q_norm_, heads(q_proj_(x)));  // [T, Nq, D]
  const Tensor k = rotated(k_norm_, heads(k_proj_(x)));  // [T, Nkv, D]
  const Tensor v = heads(v_proj_(x));                    // [T, Nkv, D]
  const double scale = 1.0 / std::sqrt(static_cast<double>(d));
  const auto mask = config_.causal ? ops::AttentionMask::kCausal : ops::AttentionMask::kFull;
  const Tensor y =
      ops::attention(q, k, v, context.documents, scale,
                     {.mask = mask, .dropout = attention_dropout(*this, config_.dropout)});
  return o_proj_(ops::view(y, {y.dim(0), y.dim(1) * d}));  // [T, H]
}

}  // namespace moegrad::nn
