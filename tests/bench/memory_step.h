// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>

#include "framework/autograd/swap_space.h"
#include "framework/runtime/rank_context.h"
#include "models/causal_lm/loss.h"
#include "models/causal_lm/model.h"
#include "optim/adamw.h"
#include "train/data/micro_batch.h"
#include "train/memory_plan.h"

namespace moegrad::bench {

/// What a model does for memory.
struct MemoryTools {
  training::MemoryPlan plan = {};
  enum class Loss : std::uint8_t {
    kWhole,
    kChunkedTwice,  // ops::linear_cross_entropy, which makes the logits again in backward
    kChunked        // its gradients are made in forward
  } loss = Loss::kWhole;
};

/// Seconds of a step's parts.
struct PartTimes {
  double forward = 0, backward = 0, optimizer = 0;
  double total() const { return forward + backward + optimizer; }
};

/// Training steps of a model on one rank and one micro-batch, at a learning rate of zero, so that
/// each computes the same.
class MemoryStep {
 public:
  MemoryStep(const models::CausalLMConfig& config, const MemoryTools& tools,
             const training::MicroBatch& batch, std::shared_ptr<SwapSpace> swap = nullptr)
      : model_(config, /*seed=*/1),
        batch_(batch),
        optimizer_(model_.named_parameters(), {.lr = 0, .weight_decay = 0}) {
    training::set_memory_plan(model_, tools.plan, std::move(swap));
    if (tools.loss != MemoryTools::Loss::kWhole) forward_.targets = batch.targets;
    if (tools.loss == MemoryTools::Loss::kChunked) forward_.grad_ce_sum = 1.0 / targets();
  }

  models::CausalLM& model() { return model_; }
  double loss() const { return loss_; }

  PartTimes run() {
    using Clock = std::chrono::steady_clock;
    auto begin = Clock::now();
    const auto seconds = [&] {
      const auto now = Clock::now();
      return std::chrono::duration<double>(now - std::exchange(begin, now)).count();
    };
    PartTimes time;
    optimizer_.zero_grad();
    auto output = model_(batch_.tokens, batch_.documents, forward_);
    const auto loss = models::causal_lm_loss(output, batch_.targets, batch_.targets.numel(), 0);
    loss_ = loss.ce_sum.item() / targets();
    time.forward = seconds();
    output = {};  // as train_step does
    loss.objective.backward();
    time.backward = seconds();
    optimizer_.step();
    time.optimizer = seconds();
    return time;
  }

 private:
  double targets() const { return static_cast<double>(batch_.targets.numel()); }

  models::CausalLM model_;
  const training::MicroBatch& batch_;
  models::CausalLM::ForwardOptions forward_;
  optim::AdamW optimizer_;
  double loss_ = 0;
};

}  // namespace moegrad::bench
