// SPDX-License-Identifier: Apache-2.0
#pragma once

// Parity: a sharded model trains like the same model unsharded on one rank. Equality is bitwise
// (class E1), since the reference sums the ranks' gradients along the tree of Note [Reduction
// order], whereas PyTorch compares with a tolerance of 1.3e-6, 1e-5.

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "framework/autograd/gradient_sum.h"
#include "framework/distributed/launch.h"
#include "framework/distributed/shard_runs.h"
#include "fsdp/fully_shard.h"
#include "ops/elementwise.h"
#include "ops/reduce.h"
#include "ops/views.h"
#include "optim/adamw.h"
#include "tests/fsdp/conformance/models.h"
#include "tests/testing.h"

namespace moegrad::test {

/// What rank `leaf` feeds its model: seed 42 + rank + 1.
inline Tensor leaf_input(const Shape& shape, int iteration, int leaf) {
  return randn(shape, static_cast<std::uint64_t>(42 + leaf + 1 + 1000 * iteration),
               Dtype::kFloat32);
}

/// Likewise int64 tokens [n], below `vocabulary`.
inline Tensor leaf_tokens(std::int64_t n, std::int64_t vocabulary, int iteration, int leaf) {
  const Random random(static_cast<std::uint64_t>(42 + leaf + 1 + 1000 * iteration), "tokens");
  std::vector<std::int64_t> tokens;
  for (std::int64_t i = 0; i < n; ++i) {
    tokens.push_back(random.integer(static_cast<std::uint64_t>(i), vocabulary));
  }
  return Tensor::from(tokens, {n});
}

/// A loss whose cotangent is as random as the output.
inline Tensor square_loss(const Tensor& output) { return ops::sum(ops::square(output)); }

/// What is trained. A leaf is one backward of one iteration, at its place in the tree: with one
/// micro-batch per rank, leaf r is rank r's.
template <class Model>
struct Training {
  std::function<std::unique_ptr<Model>()> make;
  std::function<Tensor(Model& model, int iteration, int leaf)> loss;
  int iterations = 10;
};

/// A transformer that is fed random tokens.
inline Training<Transformer> transformer(const Transformer::Config& config) {
  return {.make = [=] { return std::make_unique<Transformer>(config); },
          .loss =
              [=](Transformer& model, int iteration, int leaf) {
                return square_loss(model(leaf_tokens(7, config.vocabulary, iteration, leaf)));
              }};
}

/// Clears gradients, in another form each iteration: the optimizer drops them, the model does, or
/// they are overwritten with zeros.
inline void zero_grad(nn::Module& model, optim::Optimizer& optimizer, int iteration) {
  if (iteration % 3 == 0) return optimizer.zero_grad();
  if (iteration % 3 == 1) return model.zero_grad();
  for (const auto& parameter : model.named_parameters()) {
    if (Tensor grad = parameter.tensor.grad(); grad.defined()) fill_(grad, 0.0);
  }
}

/// Names and values after an iteration; a gradient is undefined where there was none.
struct Snapshot {
  NamedTensors parameters;
  TensorList gradients;
};

inline Snapshot snapshot(const nn::Module& model) {
  Snapshot now;
  for (const auto& [name, tensor] : model.named_parameters()) {
    now.parameters.push_back({name, clone(tensor.detach())});
    now.gradients.push_back(tensor.grad().defined() ? clone(tensor.grad()) : Tensor());
  }
  return now;
}

/// A run of the reference.
struct Trace {
  std::vector<std::vector<double>> loss;  // [iteration][leaf]
  std::vector<Snapshot> after;            // [iteration]: gradients, and parameters as updated
};

/// Trains the whole model on one rank, on all leaves in turn. `before_step` runs ahead of the
/// optimizer, on the summed gradients.
template <class Model>
Trace train_reference(const Training<Model>& training, int leaves,
                      const std::function<void(Model&)>& before_step = {}) {
  Trace trace;
  const auto model = training.make();
  const auto parameters = model->named_parameters();
  TensorList tensors;
  for (const auto& parameter : parameters) tensors.push_back(parameter.tensor);
  optim::AdamW optimizer(parameters, {.lr = 1e-2});
  GradientSum tree(tensors);
  for (int iteration = 0; iteration < training.iterations; ++iteration) {
    TensorList before;  // zeros, if cleared in that form
    for (const auto& tensor : tensors) {
      before.push_back(tensor.grad());
      tensor.set_grad(Tensor());
    }
    auto& losses = trace.loss.emplace_back();
    for (int leaf = 0; leaf < leaves; ++leaf) {
      const Tensor loss = training.loss(*model, iteration, leaf);
      losses.push_back(loss.item());
      loss.backward();
      tree.push();
    }
    tree.finish();
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (!before[i].defined()) continue;
      if (const Tensor sum = tensors[i].grad(); sum.defined()) add_(before[i], sum);
      tensors[i].set_grad(before[i]);
    }
    if (before_step) before_step(*model);
    optimizer.step();
    trace.after.push_back(snapshot(*model));
    zero_grad(*model, optimizer, iteration);
  }
  return trace;
}

/// This rank's part of `whole`, laid out as `local`.
inline Tensor part_of(const Tensor& whole, const Tensor& local) {
  if (!local.shard_spec()) return whole;
  const Tensor part = clone(shard_view(whole, *local.shard_spec()));
  part.set_shard_spec(local.shard_spec());
  return part;
}

/// check_sharded_parity: the model's parameters have the reference's names, and are their shards;
/// so are the gradients.
inline void check_sharded_parity(const Snapshot& reference, const nn::Module& model) {
  const auto local = model.named_parameters();
  EXPECT_EQ(local.size(), reference.parameters.size());
  for (std::size_t i = 0; i < local.size() && i < reference.parameters.size(); ++i) {
    const auto& [name, tensor] = local[i];
    EXPECT_EQ(name, reference.parameters[i].name);
    EXPECT_TRUE(bitwise_equal(tensor.detach(), part_of(reference.parameters[i].tensor, tensor)))
        << name;
    const auto& gradient = reference.gradients[i];
    EXPECT_EQ(tensor.grad().defined(), gradient.defined()) << "gradient of " << name;
    if (!tensor.grad().defined() || !gradient.defined()) continue;
    EXPECT_TRUE(tensor.is_contiguous() && tensor.grad().is_contiguous()) << name;
    EXPECT_TRUE(bitwise_equal(tensor.grad(), part_of(gradient, tensor))) << "gradient of " << name;
  }
}

/// Trains `model`, which has been sharded, on one leaf per iteration, and compares each iteration's
/// loss, gradients and parameters with the reference's. `before_step` runs ahead of the optimizer.
template <class Model>
void compare_training(Model& model, const Training<Model>& training, const Trace& reference,
                      int leaf, const std::function<void()>& before_step = {}) {
  optim::AdamW optimizer(model.named_parameters(), {.lr = 1e-2});
  for (int iteration = 0; iteration < training.iterations; ++iteration) {
    SCOPED_TRACE(::testing::Message() << "iteration " << iteration << " of leaf " << leaf);
    const auto i = static_cast<std::size_t>(iteration);
    const Tensor loss = training.loss(model, iteration, leaf);
    EXPECT_EQ(loss.item(), reference.loss[i][static_cast<std::size_t>(leaf)]);
    loss.backward();
    if (before_step) before_step();
    optimizer.step();
    check_sharded_parity(reference.after[i], model);
    zero_grad(model, optimizer, iteration);
  }
}

/// The same on `world_size` ranks, one leaf each; `shard(model, rank)` calls fully_shard.
template <class Model, class Shard>
void expect_parity(int world_size, const Training<Model>& training, const Shard& shard) {
  const auto reference = train_reference(training, world_size);
  launch(world_size, [&](RankContext& rank) {
    const auto model = training.make();
    shard(*model, rank);
    compare_training(*model, training, reference, rank.rank());
  });
}

}  // namespace moegrad::test
