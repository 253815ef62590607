// SPDX-License-Identifier: Apache-2.0
// What each item of a plan's lists takes, and which lists are refused.

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "framework/distributed/launch.h"
#include "framework/runtime/program.h"
#include "framework/runtime/rank_context.h"
#include "models/causal_lm/loss.h"
#include "nn/recompute.h"
#include "tests/testing.h"
#include "train/memory_plan.h"

namespace moegrad::training::memory_plan_items_test {
namespace {

using namespace test;
using models::CausalLMConfig;

// A dense layer, and a mixture; tiny-qwen2-moe has a shared expert, tiny norms of queries and keys.
CausalLMConfig both_layers(const std::string& preset) {
  auto config = CausalLMConfig::preset(preset);
  config.num_hidden_layers = 2;
  config.mlp_only_layers = {0};
  return config;
}

// Trains on one micro-batch.
void go_there_and_back(models::CausalLM& model) {
  std::vector<std::int64_t> ids;
  for (std::int64_t i = 0; i <= 96; ++i) ids.push_back(i * i % model.config().vocab_size);
  const std::span<const std::int64_t> all(ids);
  const Tensor tokens = Tensor::from(all.first(96), {96}),
               targets = Tensor::from(all.last(96), {96});
  auto output = model(tokens, Documents::of_lengths({24, 72}));
  models::causal_lm_loss(output, targets, targets.numel(), 0).objective.backward();
}

TEST(MemoryPlanItems, EachItemOfRecomputeRunsAgainWhatItNames) {
  using Count = std::map<std::string, int>;
  launch(1, [](RankContext& context) {
    const auto again = [&](const std::string& item,
                           const CausalLMConfig& config = both_layers("tiny-qwen2-moe")) {
      models::CausalLM model(config, 5);
      set_memory_plan(model, {.recompute = item});
      context.spans().start(2);
      go_there_and_back(model);
      context.spans().stop();
      Count ops;
      constexpr std::string_view kAgain = "forward again ";
      for (const auto& span : context.spans().spans()) {
        if (span.name.starts_with(kAgain)) ++ops[span.name.substr(kAgain.size())];
      }
      return ops;
    };
    const Count light = {{"rms_norm", 2},     {"add_rms_norm", 2}, {"rope", 4},
                         {"permute_rows", 1}, {"swiglu", 1},       {"silu", 2}};
    auto medium = light;
    medium["linear"] = 5;
    medium["npu_gmm"] = 1;
    EXPECT_EQ(again("none"), Count());
    EXPECT_EQ(again("light"), light);
    EXPECT_EQ(again("medium"), medium);
    EXPECT_EQ(again("layernorm"), (Count{{"rms_norm", 2}, {"add_rms_norm", 2}}));
    EXPECT_EQ(again("moe_act"), (Count{{"swiglu", 1}}));
    EXPECT_EQ(again("core_attn"), (Count{{"attention", 2}}));
    EXPECT_EQ(again("adaptive"), Count());
    EXPECT_EQ(again("light", both_layers("tiny"))["rms_norm_rope"], 4);
    // What runs again as a whole makes its results again in its turn.
    EXPECT_EQ(again("moe")["permute_rows"], 0);
    EXPECT_EQ(again("light,moe")["permute_rows"], 1);
  });
}

bool is_recomputed(nn::Module& module) {
  try {
    nn::recompute(module);
  } catch (const Error&) {
    return true;  // refused a second time
  }
  return false;
}

TEST(MemoryPlanItems, EachItemOfRecomputeMakesWholesOfWhatItNames) {
  const auto wholes = [](const MemoryPlan& plan) {
    models::CausalLM model(both_layers("tiny-qwen2-moe"), 5);
    set_memory_plan(model, plan);
    std::set<std::string> paths;
    for (const auto& [path, module] : model.named_modules()) {
      if (is_recomputed(*module)) paths.insert(path);
    }
    return paths;
  };
  using Paths = std::set<std::string>;
  const std::string dense = "model.layers.0.mlp", mixture = "model.layers.1.mlp",
                    shared = "model.layers.1.mlp.shared_expert";
  EXPECT_EQ(wholes({.recompute = "medium,adaptive,layernorm,core_attn,moe_act"}), Paths());
  EXPECT_EQ(wholes({.recompute = "full"}), (Paths{dense, mixture}));
  EXPECT_EQ(wholes({.recompute = "mlp"}), (Paths{dense}));
  EXPECT_EQ(wholes({.recompute = "moe"}), (Paths{mixture}));
  EXPECT_EQ(wholes({.recompute = "shared_experts"}), (Paths{shared}));
  EXPECT_EQ(wholes({.recompute = "model.layers.*.self_attn"}),
            (Paths{"model.layers.0.self_attn", "model.layers.1.self_attn"}));
  EXPECT_EQ(wholes({.recompute_layers = 1}), (Paths{"model.layers.0"}));
  EXPECT_EQ(wholes({.recompute = "mlp", .recompute_layers = 1}), (Paths{"model.layers.0", dense}));
}

TEST(MemoryPlanItems, EachItemOfOffloadSendsWhatItNames) {
  using Paths = std::set<std::string>;
  launch(1, [](RankContext&) {
    const auto sent = [](const MemoryPlan& plan,
                         const CausalLMConfig& config = both_layers("tiny")) {
      models::CausalLM model(config, 5);
      Paths paths;
      SwapOptions options{.window = 1};
      options.next = [&](const SwappedTensor& used, std::span<const SwappedTensor* const> away) {
        paths.insert(used.path);
        for (const auto* each : away) paths.insert(each->path);
        return in_tape_order(used, away);
      };
      set_memory_plan(model, plan, SwapSpace::make(options));
      go_there_and_back(model);
      return paths;
    };
    const auto in_both = [](const Paths& parts) {
      Paths paths;
      for (const std::string layer : {"model.layers.0", "model.layers.1"}) {
        for (const auto& part : parts) paths.insert(part.empty() ? layer : layer + '.' + part);
      }
      return paths;
    };
    EXPECT_EQ(sent({}), Paths());
    EXPECT_EQ(sent({.offload = "attn_norm"}), in_both({""}));
    // What is saved last does not leave, and of one tensor alone nobody asks what comes next.
    const auto sent_too = [&](const std::string& item) {
      auto paths = sent({.offload = item + ",attn_norm"});
      for (const auto& path : in_both({""})) EXPECT_EQ(paths.erase(path), 1U);
      return paths;
    };
    EXPECT_EQ(sent_too("qkv_linear"), in_both({"input_layernorm"}));
    EXPECT_EQ(sent_too("core_attn"),
              in_both({"self_attn.q_norm", "self_attn.k_norm", "self_attn.v_proj"}));
    EXPECT_EQ(sent_too("attn_proj"), in_both({"self_attn"}));
    EXPECT_EQ(sent_too("mlp_norm"), in_both({"post_attention_layernorm"}));
    EXPECT_EQ(sent_too("expert_fc1"), (Paths{"model.layers.1.mlp.dispatcher"}));
    EXPECT_EQ(sent_too("moe_act"), (Paths{"model.layers.1.mlp.experts"}));
    EXPECT_EQ(sent_too("model.layers.1.self_attn.q_norm"),
              (Paths{"model.layers.1.self_attn.q_norm"}));
    auto all =
        in_both({"", "input_layernorm", "post_attention_layernorm", "self_attn", "self_attn.q_norm",
                 "self_attn.k_norm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"});
    all.merge(Paths{"model.layers.0.mlp", "model.layers.0.mlp.gate_proj",
                    "model.layers.0.mlp.up_proj", "model.layers.1.mlp.dispatcher",
                    "model.layers.1.mlp.experts"});
    EXPECT_EQ(sent({.offload = "activations"}), all);
    auto deep = both_layers("tiny");
    deep.num_hidden_layers = 11;
    for (const auto& path : sent({.offload = "model.layers.1"}, deep)) {
      EXPECT_TRUE((path + '.').starts_with("model.layers.1.")) << path;
    }
    // Layers that run again keep their inputs alone, which the model's own policy sends.
    EXPECT_EQ(sent({.recompute_layers = 2, .offload = "attn_norm"}), in_both({""}));
    EXPECT_EQ(sent({.recompute_layers = 2, .offload = "activations"}), in_both({""}));
  });
}

TEST(MemoryPlanItems, HasASwapSpaceOfItsWindow) {
  launch(1, [](RankContext& context) {
    const auto brought_back = [&](std::int64_t window) {
      models::CausalLM model(both_layers("tiny"), 5);
      set_memory_plan(model, {.offload = "activations", .offload_window = window});
      const auto before = context.counters().swapped_in_bytes.load();
      go_there_and_back(model);
      return context.counters().swapped_in_bytes - before;
    };
    EXPECT_EQ(brought_back(1 << 30), 0);
    EXPECT_GT(brought_back(1 << 17), 0);
    EXPECT_GT(brought_back(1), brought_back(1 << 17));
  });
}

TEST(MemoryPlanItems, RefusesWhatItCannotMean) {
  const auto refusal = [](const MemoryPlan& plan, const std::string& preset = "tiny-qwen2-moe") {
    models::CausalLM model(CausalLMConfig::preset(preset), 1);
    return message_of<UsageError>([&] { set_memory_plan(model, plan); });
  };
  EXPECT_EQ(refusal({.recompute = "some"}),
            "--recompute: 'some' must be one of none, light, medium, full, adaptive, layernorm, "
            "core_attn, moe_act, mlp, moe, shared_experts, or the path of a module, such as "
            "model.layers.0.mlp or model.layers.*.mlp, in which * is any name between dots");
  EXPECT_EQ(refusal({.offload = "model.layers.9.mlp"}),
            "--offload: 'model.layers.9.mlp' must be one of none, activations, attn_norm, "
            "qkv_linear, core_attn, attn_proj, mlp_norm, expert_fc1, moe_act, or the path of a "
            "module, such as model.layers.0.mlp or model.layers.*.mlp, in which * is any name "
            "between dots");
  EXPECT_EQ(refusal({.recompute = "none,light"}),
            "--recompute: must be none alone, or other items, got 'none,light'");
  for (const auto* list : {"", ",", "light,", ",light", "light,,moe"}) {
    EXPECT_EQ(
        refusal({.recompute = list}),
        std::string("--recompute: must be items with commas between them, got '") + list + "'");
  }
  EXPECT_EQ(refusal({.recompute = "light", .offload = "qkv_linear"}),
            "--recompute light and --offload qkv_linear: both take the result of rms_norm in "
            "input_layernorm");
  EXPECT_EQ(refusal({.recompute = "medium", .offload = "attn_proj,moe_act"}),
            "--recompute medium and --offload moe_act: both take the result of npu_gmm in "
            "mlp.experts");
  EXPECT_EQ(refusal({.recompute = "moe", .offload = "model.layers.*.mlp.experts"}),
            "--offload: model.layers.0.mlp.experts is part of model.layers.0.mlp, which "
            "--recompute runs again as a whole and which keeps its input alone");
  EXPECT_EQ(refusal({.offload = "model.layers.*.mlp,lm_head"}),
            "--offload: a path must be that of a module in a layer, got lm_head");
  const std::string kinds =
      ": mlp is for dense MLPs, moe for mixtures, shared_experts for what all tokens of a mixture "
      "go "
      "through";
  EXPECT_EQ(refusal({.recompute = "mlp"}),
            "--recompute: mlp names no module of this model" + kinds);
  EXPECT_EQ(refusal({.recompute = "moe"}, "tiny-dense"),
            "--recompute: moe names no module of this model" + kinds);
  EXPECT_EQ(refusal({.recompute = "shared_experts"}, "tiny"),
            "--recompute: shared_experts names no module of this model" + kinds);
  EXPECT_EQ(refusal({.recompute = "adaptive"}, "tiny-dense"),
            "--recompute: adaptive needs experts, which this model does not have");
  const std::string nothing =
      " takes nothing of this model: no layer has such a module, or all of them run again as "
      "wholes";
  EXPECT_EQ(refusal({.recompute = "light,moe_act"}, "tiny-dense"),
            "--recompute: moe_act" + nothing);
  EXPECT_EQ(refusal({.offload = "attn_norm,expert_fc1"}, "tiny-dense"),
            "--offload: expert_fc1" + nothing);
  EXPECT_EQ(refusal({.recompute = "moe", .offload = "moe_act"}), "--offload: moe_act" + nothing);
  EXPECT_EQ(refusal({.recompute = "model.layers.*", .offload = "core_attn"}),
            "--offload: core_attn" + nothing);
  EXPECT_EQ(refusal({.recompute_layers = CausalLMConfig::preset("tiny-qwen2-moe").num_hidden_layers,
                     .offload = "mlp_norm"}),
            "--offload: mlp_norm" + nothing);
}

}  // namespace
}  // namespace moegrad::training::memory_plan_items_test
