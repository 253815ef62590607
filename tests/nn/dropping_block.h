// SPDX-License-Identifier: Apache-2.0
#pragma once

// A block with dropout in all places, and runs of it on some of a step's tokens. Shapes: T tokens,
// H features.

#include <cstdint>
#include <vector>

#include "framework/autograd/dropout_ids.h"
#include "nn/attention.h"
#include "nn/dropout.h"
#include "nn/init.h"
#include "nn/linear.h"
#include "ops/elementwise.h"
#include "ops/rope.h"
#include "tests/testing.h"

namespace moegrad::test {

inline constexpr std::int64_t kTokens = 8, kHidden = 6;

// Attention and a feed-forward layer that both drop.
class DroppingBlock final : public nn::Callable<DroppingBlock> {
 public:
  DroppingBlock()
      : attention_({.hidden_size = kHidden,
                    .num_heads = 2,
                    .num_key_value_heads = 1,
                    .head_dim = 4,
                    .dropout = 0.3,
                    .dtype = Dtype::kFloat64}),
        dropout_({.p = 0.4}),
        up_({.in_features = kHidden, .out_features = 12, .bias = true, .dtype = Dtype::kFloat64}),
        inner_dropout_({.p = 0.5}),
        down_({.in_features = 12, .out_features = kHidden, .dtype = Dtype::kFloat64}) {
    register_module("attention", attention_);
    register_module("dropout", dropout_);
    register_module("up", up_);
    register_module("inner_dropout", inner_dropout_);
    register_module("down", down_);
    nn::init_weights(*this, 1, 0.5);
  }

  Tensor forward(const Tensor& x, const nn::SequenceContext& context) {
    const Tensor h = x + dropout_(attention_(x, context));
    return h + down_(inner_dropout_(ops::relu(up_(h))));
  }

 private:
  nn::Attention attention_;
  nn::Dropout dropout_;
  nn::Linear up_;
  nn::Dropout inner_dropout_;
  nn::Linear down_;
};

// Documents of two tokens, so that any two tokens may be a micro-batch.
inline nn::SequenceContext context_of(std::int64_t tokens) {
  const auto documents =
      Documents::of_lengths(std::vector<std::int64_t>(static_cast<std::size_t>(tokens / 2), 2));
  return {.documents = documents,
          .rope = ops::rope_table(documents.positions(), 4, 100, Dtype::kFloat64)};
}

struct Dropped {
  Tensor y;     // [T, H]
  Tensor grad;  // of x
};

inline Tensor rows_of(const Tensor& x, std::int64_t begin, std::int64_t end) {
  return clone(x.detach().slice(0, begin, end));
}

// Tokens [begin, end) of the step's batch.
inline Dropped run_dropping(DroppingBlock& block, std::int64_t begin, std::int64_t end,
                            std::int64_t step = 3) {
  const Tensor x = rows_of(randn({kTokens, kHidden}, 1), begin, end).set_requires_grad(true);
  const Tensor y = [&] {
    const DropoutIdsGuard guard({.seed = 5, .step = step, .token_ids = Tensor::arange(begin, end)});
    return block(x, context_of(end - begin));
  }();
  // Backward runs under other ids: what it computes again has those of forward.
  const DropoutIdsGuard others({.seed = 6, .step = step + 1});
  y.backward(rows_of(randn({kTokens, kHidden}, 2), begin, end));
  return {y.detach(), x.grad()};
}

inline Dropped run_whole() {
  DroppingBlock block;
  return run_dropping(block, 0, kTokens);
}

}  // namespace moegrad::test
