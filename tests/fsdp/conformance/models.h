// SPDX-License-Identifier: Apache-2.0
#pragma once

// Small models for the conformance tests, all of float32. Their weights come from the global index
// of each element, so every rank makes the same model.

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "framework/autograd/checkpoint.h"
#include "framework/tensor/meta.h"
#include "nn/attention.h"
#include "nn/embedding.h"
#include "nn/init.h"
#include "nn/linear.h"
#include "nn/moe.h"
#include "nn/rms_norm.h"
#include "ops/elementwise.h"
#include "ops/linear.h"
#include "tests/testing.h"

namespace moegrad::test {

/// normal(0, 0.3) for every parameter; a shard gets its part of the same numbers, one without bytes
/// nothing.
inline void init_random(nn::Module& module, std::uint64_t seed = 1) {
  if (meta_enabled()) return;
  for (const auto& slot : module.parameter_slots()) nn::init_normal(slot, seed, 0.3);
}

/// y = x W^T + b.      x: [..., in]   W: [out, in]   b: [out]   y: [..., out]
class Affine final : public nn::Callable<Affine> {
 public:
  Affine(std::int64_t in, std::int64_t out)
      : weight(Tensor::zeros({out, in})), bias(Tensor::zeros({out})) {
    register_parameter("weight", weight);
    register_parameter("bias", bias);
  }
  Tensor forward(const Tensor& x) { return ops::add(ops::linear(x, weight), bias); }

  Tensor weight, bias;
};

/// y = out_proj(relu(in_proj(x))), with biases.
class Mlp final : public nn::Callable<Mlp> {
 public:
  Mlp(std::int64_t in, std::int64_t hidden, std::int64_t out)
      : in_proj(in, hidden), out_proj(hidden, out) {
    register_module("in_proj", in_proj);
    register_module("out_proj", out_proj);
  }
  Tensor forward(const Tensor& x) { return out_proj(ops::relu(in_proj(x))); }

  Affine in_proj, out_proj;
};

/// MLPs "0", "1", ..., one after the other; layer i takes dims[i] to dims[i + 1].
class MlpStack final : public nn::Callable<MlpStack> {
 public:
  explicit MlpStack(const std::vector<std::int64_t>& dims) {
    for (std::size_t i = 0; i + 1 < dims.size(); ++i) {
      layers.push_back(std::make_unique<Mlp>(dims[i], 2 * dims[i], dims[i + 1]));
      register_module(std::to_string(i), *layers.back());
    }
    init_random(*this);
  }
  Tensor forward(const Tensor& x) {
    Tensor y = x;
    for (auto& layer : layers) y = (*layer)(y);
    return y;
  }
  Mlp& operator[](std::size_t i) { return *layers[i]; }

  std::vector<std::unique_ptr<Mlp>> layers;
};

/// What forward keeps of a block: all, or its input alone; then the block may call checkpoint()
/// itself, within its hooks, or its owner does so around them.
enum class Recompute : std::uint8_t { kNone, kInsideHooks, kAroundHooks };

/// x + attention(norm(x)), then x + mlp(norm(x)).      [T, D] -> [T, D]
class TransformerBlock final : public nn::Callable<TransformerBlock> {
 public:
  TransformerBlock(std::int64_t dim, bool recompute)
      : attention_norm({.dim = dim}),
        attention({.hidden_size = dim, .num_heads = 2, .num_key_value_heads = 1, .head_dim = 4}),
        mlp_norm({.dim = dim}),
        mlp(dim, 2 * dim, dim),
        recompute_(recompute) {
    register_module("attention_norm", attention_norm);
    register_module("attention", attention);
    register_module("mlp_norm", mlp_norm);
    register_module("mlp", mlp);
  }
  Tensor forward(const Tensor& x, const nn::SequenceContext& context) {
    const auto body = [this, context](const TensorList& in) -> TensorList {
      const Tensor attended = in[0] + attention(attention_norm(in[0]), context);
      return {attended + mlp(mlp_norm(attended))};
    };
    return recompute_ ? checkpoint(body, {x})[0] : body({x})[0];
  }

  nn::RMSNorm attention_norm;
  nn::Attention attention;
  nn::RMSNorm mlp_norm;
  Mlp mlp;

 private:
  bool recompute_;
};

/// Token and position embeddings, blocks, norm and output; int64 tokens [T <= 16] -> logits [T, V].
class Transformer final : public nn::Callable<Transformer> {
 public:
  struct Config {
    std::int64_t vocabulary = 11;
    std::int64_t dim = 8;
    std::size_t blocks = 3;
    bool tied = false;  // output and token embedding share their weight
    Recompute recompute = Recompute::kNone;
  };

  explicit Transformer(const Config& config)
      : tok_embeddings({.num_embeddings = config.vocabulary, .embedding_dim = config.dim}),
        pos_embeddings({.num_embeddings = 16, .embedding_dim = config.dim}),
        norm({.dim = config.dim}),
        output(config.tied ? tok_embeddings.weight()
                           : Tensor::zeros({config.vocabulary, config.dim})),
        recompute_(config.recompute) {
    register_module("tok_embeddings", tok_embeddings);
    register_module("pos_embeddings", pos_embeddings);
    for (std::size_t i = 0; i < config.blocks; ++i) {
      blocks.push_back(std::make_unique<TransformerBlock>(
          config.dim, config.recompute == Recompute::kInsideHooks));
      register_module("blocks." + std::to_string(i), *blocks.back());
    }
    register_module("norm", norm);
    register_module("output", output);
    init_random(*this);
  }

  Tensor forward(const Tensor& tokens) {
    const auto documents = Documents::one(tokens.numel());
    const Tensor places = documents.positions();
    const nn::SequenceContext context{.documents = documents,
                                      .rope = ops::rope_table(places, 4, 1e4, Dtype::kFloat32)};
    Tensor hidden = tok_embeddings(tokens) + pos_embeddings(places);
    for (auto& block : blocks) hidden = run(*block, hidden, context);
    return output(norm(hidden));
  }

  nn::Embedding tok_embeddings, pos_embeddings;
  std::vector<std::unique_ptr<TransformerBlock>> blocks;
  nn::RMSNorm norm;
  nn::Linear output;

 private:
  Tensor run(TransformerBlock& block, const Tensor& hidden, const nn::SequenceContext& context) {
    if (recompute_ != Recompute::kAroundHooks) return block(hidden, context);
    return checkpoint(
        [&block, context](const TensorList& in) -> TensorList { return {block(in[0], context)}; },
        {hidden})[0];
  }

  Recompute recompute_;
};

/// x + moe(norm(x)), with four stacked experts.      [T, D] -> [T, D]
class MoeBlock final : public nn::Callable<MoeBlock> {
 public:
  explicit MoeBlock(std::int64_t dim)
      : norm({.dim = dim}),
        moe({.hidden_size = dim, .intermediate_size = 6, .num_experts = 4, .top_k = 2}) {
    register_module("norm", norm);
    register_module("moe", moe);
  }
  Tensor forward(const Tensor& x) { return x + moe(norm(x)).hidden; }

  nn::RMSNorm norm;
  nn::MoE moe;
};

/// An MLP, blocks of experts, an MLP.      [T, 6] -> [T, 5]
class MoeNet final : public nn::Callable<MoeNet> {
 public:
  explicit MoeNet(std::size_t num_blocks = 2) : first(6, 7, 8), last(8, 9, 5) {
    register_module("first", first);
    for (std::size_t i = 0; i < num_blocks; ++i) {
      blocks.push_back(std::make_unique<MoeBlock>(8));
      register_module("blocks." + std::to_string(i), *blocks.back());
    }
    register_module("last", last);
    init_random(*this);
  }
  Tensor forward(const Tensor& x) {
    Tensor hidden = first(x);
    for (auto& block : blocks) hidden = (*block)(hidden);
    return last(hidden);
  }

  Mlp first;
  std::vector<std::unique_ptr<MoeBlock>> blocks;
  Mlp last;
};

}  // namespace moegrad::test
