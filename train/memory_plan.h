// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "framework/autograd/swap_space.h"
#include "models/causal_lm/model.h"
#include "train/config/train_config.h"

namespace moegrad::training {

/// Sets it for all layers (nn::checkpoint_with, nn::recompute). Call it once, before the model is
/// sharded. What is offloaded goes to `swap`, by default a new one of the plan's window. UsageError
/// for an item that is none of these or takes nothing of this model, for a path that matches no
/// module, for "none" with others, and where the lists contradict each other.
void set_memory_plan(models::CausalLM& model, const MemoryPlan& plan,
                     std::shared_ptr<SwapSpace> swap = nullptr);

}  // namespace moegrad::training
