// SPDX-License-Identifier: Apache-2.0
#include "train/memory_budget.h"

#include <algorithm>
#include <cstddef>
#include <string_view>

#include "framework/runtime/program.h"
#include "train/rank_memory.h"

namespace moegrad::training {
namespace {

std::string_view options_that_shrink(MemoryTag tag) {
  switch (tag) {
    case MemoryTag::kActivations:
      return "--recompute, --recompute-layers, --offload, --linear-cross-entropy, --dtype bf16, or "
             "a smaller "
             "--batch with more --micro-batches";
    case MemoryTag::kParameters:
      return "a larger --world-size, --expert-parallel, --reshard true, or a smaller --prefetch";
    case MemoryTag::kGradients:
      return "a larger --world-size";
    case MemoryTag::kOptimizer:
      return "a larger --world-size, or another --optimizer";
    case MemoryTag::kCommunication:
      return "--wire-dtype and --reduce-dtype as --dtype";
    case MemoryTag::kCheckpoint:
      return "a larger --world-size";
  }
  return "";
}

}  // namespace

void check_memory_budget(const TrainConfig& options) {
  const auto budget = options.memory.budget;
  if (budget == 0) return;
  const auto memory = rank_memory(options);
  const auto held = memory.parameters + memory.optimizer + memory.gradients;
  check<UsageError>(held <= budget, "--memory-budget: must be at least ", held,
                    " bytes for the parameters (", memory.parameters, "), the optimizer's state (",
                    memory.optimizer, ") and gradients (", memory.gradients, ") of rank 0, got ",
                    budget);
}

std::string what_shrinks(const MemoryUse& live) {
  std::string text;
  const auto tags = live.tags();
  for (std::size_t i = 0; i < std::min<std::size_t>(3, tags.size()); ++i) {
    text.append("; to shrink ").append(to_string(tags[i])).append(": ");
    text.append(options_that_shrink(tags[i]));
  }
  return text;
}

}  // namespace moegrad::training
