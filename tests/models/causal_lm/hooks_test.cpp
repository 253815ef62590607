// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>
#include <vector>

#include "models/causal_lm/model.h"
#include "nn/recompute.h"
#include "tests/models/causal_lm/toy_models.h"
#include "tests/testing.h"

namespace moegrad::models::causal_lm_hooks_test {
namespace {

using namespace test;

TEST(CausalLMHooks, RunAroundModulesInForwardAndBackward) {
  auto config = toy_config();
  config.num_hidden_layers = 1;
  CausalLM model(config);
  std::vector<std::string> events;
  for (const auto& [name, module] : model.named_modules()) {
    if (name != "" && name != "model.layers.0" && name != "model.layers.0.mlp.experts") continue;
    const auto note = [&events, path = name.empty() ? "root" : name](const std::string& what) {
      return [&events, path, what](nn::Module&) { events.push_back(what + " " + path); };
    };
    module->register_forward_pre_hook(note("before"));
    module->register_forward_hook(note("after"));
    module->register_backward_pre_hook(note("enter"));
    module->register_backward_hook(note("leave"));
  }
  for (const std::int64_t recompute : {0, 1}) {
    events.clear();
    if (recompute == 1) nn::recompute(model.layers()[0]);
    gradients_of(model, toy_batch(config.vocab_size));
    std::vector<std::string> expected = {"before root",
                                         "before model.layers.0",
                                         "before model.layers.0.mlp.experts",
                                         "after model.layers.0.mlp.experts",
                                         "after model.layers.0",
                                         "after root",
                                         "enter root",
                                         "enter model.layers.0"};
    if (recompute == 1) {
      expected.insert(expected.end(),
                      {"before model.layers.0.mlp.experts", "after model.layers.0.mlp.experts"});
    }
    expected.insert(expected.end(),
                    {"enter model.layers.0.mlp.experts", "leave model.layers.0.mlp.experts",
                     "leave model.layers.0", "leave root"});
    EXPECT_EQ(events, expected);
  }
}

// Fused ops too run in the modules whose weights they read: fully_shard gathers by these hooks.
TEST(CausalLMHooks, EveryWeightIsReadInACallOfItsModule) {
  const auto config = toy_config();
  CausalLM model(config);
  std::vector<std::string> events, expected;
  for (const auto& [name, module] : model.named_modules()) {
    const auto slots = module->parameter_slots();
    const bool has_weights = std::ranges::any_of(slots, [](const auto& slot) {
      return slot.name.find('.') == std::string::npos;  // of its own
    });
    if (!has_weights) continue;
    for (const auto* what : {"before ", "after ", "enter ", "leave "}) {
      expected.push_back(what + name);
    }
    const auto note = [&events, path = name](const std::string& what) {
      return [&events, path, what](nn::Module&) { events.push_back(what + path); };
    };
    module->register_forward_pre_hook(note("before "));
    module->register_forward_hook(note("after "));
    module->register_backward_pre_hook(note("enter "));
    module->register_backward_hook(note("leave "));
  }
  gradients_of(model, toy_batch(config.vocab_size));
  std::ranges::sort(events);
  std::ranges::sort(expected);
  EXPECT_EQ(events, expected);
}

}  // namespace
}  // namespace moegrad::models::causal_lm_hooks_test
