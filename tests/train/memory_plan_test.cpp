// SPDX-License-Identifier: Apache-2.0
#include "train/memory_plan.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "framework/distributed/launch.h"
#include "framework/distributed/parallel_dims.h"
#include "framework/runtime/arena.h"
#include "framework/runtime/rank_context.h"
#include "fsdp/state_dict.h"
#include "fsdp/step_plan.h"
#include "models/causal_lm/loss.h"
#include "nn/recompute.h"
#include "optim/adamw.h"
#include "tests/testing.h"
#include "train/train_step.h"

namespace moegrad::training::memory_plan_test {
namespace {

using namespace test;
using models::CausalLMConfig;

constexpr const char* kSets[] = {"light", "medium", "full"};
constexpr std::int64_t kMicroBatches = 2, kTokens = 96;

struct Training {
  CausalLMConfig config = CausalLMConfig::preset("tiny");
  ParallelDims dims = {};
  std::optional<Dtype> compute = std::nullopt;
  MemoryPlan plan = {};
  bool chunked_loss = false;  // its gradients are made in forward
  std::uint64_t seed = 1;     // of delays
};

struct Result {
  std::vector<double> losses, norms, entropies;
  NamedTensors parameters;
  std::int64_t peak = 0, recomputed_ops = 0, swapped_out = 0, swapped_in = 0;  // of rank 0
};

MicroBatch batch_of(std::int64_t step, std::int64_t index, std::int64_t vocabulary) {
  std::vector<std::int64_t> ids;
  for (std::int64_t i = 0; i <= kTokens; ++i) {
    ids.push_back((i * i * (7 + index) + 11 * i + 5 * step) % vocabulary);
  }
  const std::span<const std::int64_t> all(ids);
  return {.tokens = Tensor::from(all.first(kTokens), {kTokens}),
          .targets = Tensor::from(all.last(kTokens), {kTokens}),
          .documents = Documents::of_lengths({kTokens / 4, kTokens - kTokens / 4})};
}

Result train(const Training& run) {
  Result result;
  LaunchOptions launch_options;
  launch_options.jitter = {.maximum = std::chrono::microseconds(100), .seed = run.seed};
  launch(
      run.dims.ranks(),
      [&](RankContext& context) {
        const auto meshes = make_meshes(context.group(), run.dims);
        models::CausalLM model(run.config, 5);
        fsdp::Policy policy;
        policy.mixed_precision.param_dtype = run.compute;
        const auto swap = SwapSpace::make(
            {.window = run.plan.offload_window,
             .jitter = {.maximum = std::chrono::microseconds(40), .seed = run.seed}});
        set_memory_plan(model, run.plan, swap);
        const bool divides = run.dims.tp > 1;
        auto& state = shard_model(
            model, meshes, policy,
            {.sequence_parallel = divides, .token_parts = divides ? std::int64_t{run.dims.tp} : 1});
        optim::AdamW optimizer(model.named_parameters(), {.lr = 1e-3});
        fsdp::StepPlan plan(state, kMicroBatches, fsdp::accumulation_on(run.dims));
        const StepOptions options{.balance = {.z_loss_coef = 1e-3},
                                  .linear_cross_entropy = run.chunked_loss,
                                  .tensor_ranks = meshes.dense.group("tp")};
        for (std::int64_t step = 0; step < 3; ++step) {
          std::vector<MicroBatch> own;
          for (const auto index : plan.indices()) {
            own.push_back(batch_of(step, index, run.config.vocab_size));
          }
          if (step == 1) context.arena()->reset_peak();
          const auto done = train_step(model, plan, own, options, optimizer);
          if (context.rank() != 0) continue;
          result.losses.push_back(done.loss);
          result.norms.push_back(done.grad_norm);
          result.entropies.push_back(done.router_entropy);
        }
        const auto peak = context.arena()->peak(MemoryTag::kActivations);
        auto parameters = fsdp::full_state_dict(model);
        if (context.rank() != 0) return;
        result.parameters = std::move(parameters);
        result.peak = peak;
        const auto& counters = context.counters();
        result.recomputed_ops = counters.recomputed_ops;
        result.swapped_out = counters.swapped_out_bytes;
        result.swapped_in = counters.swapped_in_bytes;
      },
      launch_options);
  return result;
}

void expect_same(const Result& got, const Result& expected) {
  EXPECT_EQ(got.losses, expected.losses);
  EXPECT_EQ(got.norms, expected.norms);
  EXPECT_EQ(got.entropies, expected.entropies);
  ASSERT_EQ(got.parameters.size(), expected.parameters.size());
  for (std::size_t i = 0; i < got.parameters.size(); ++i) {
    EXPECT_TRUE(bitwise_equal(got.parameters[i].tensor, expected.parameters[i].tensor))
        << got.parameters[i].name;
  }
}

// On one rank `medium` leaves so little of a mixture that `full`, which runs all of it at once, may
// need more; not where rows come from other ranks, which only `full` asks for again.
TEST(MemoryPlan, ChangesNoBitAndEachLowersThePeak) {
  for (const auto& [preset, ep] : {std::pair{"tiny", 1}, {"tiny", 2}, {"tiny-dense", 1}}) {
    Training run{.config = CausalLMConfig::preset(preset), .dims = {.dp_shard = ep, .ep = ep}};
    run.config.num_hidden_layers = 8;  // more than logits take
    const auto plain = train(run);
    EXPECT_EQ(plain.recomputed_ops, 0);
    auto before = plain.peak;
    for (const std::string what : kSets) {
      run.plan.recompute = what;
      const auto result = train(run);
      SCOPED_TRACE(::testing::Message() << preset << ep << what);
      expect_same(result, plain);
      EXPECT_GT(result.recomputed_ops, 0);
      EXPECT_LT(result.peak, what == "full" && ep == 1 ? plain.peak : before);
      before = result.peak;
    }
  }
}

// Forward keeps less by the bytes of the results that are to be made again, and by no other.
TEST(MemoryPlan, FreesExactlyTheBytesOfWhatIsMadeAgain) {
  launch(1, [](RankContext& context) {
    const auto config = CausalLMConfig::preset("tiny");
    const auto batch = batch_of(0, 0, config.vocab_size);
    std::int64_t chosen = 0;  // bytes
    const auto kept = [&](bool recomputes) {
      models::CausalLM model(config, 5);
      const auto policy = [&](const OpResult& result) {
        const bool again = result.op == "rms_norm" || result.op == "swiglu" ||
                           (result.op == "add_rms_norm" && result.output == 1);
        if (!again) return CheckpointPolicy::kMustSave;
        chosen += result.tensor.numel() * size_of(result.tensor.dtype());
        return CheckpointPolicy::kMustRecompute;
      };
      for (auto& layer : model.layers()) {
        if (recomputes) nn::checkpoint_with(layer, policy);
      }
      const auto before = context.arena()->live()[MemoryTag::kActivations];
      const auto output = model(batch.tokens, batch.documents);
      return context.arena()->live()[MemoryTag::kActivations] - before;
    };
    const auto plain = kept(false), less = kept(true);
    EXPECT_EQ(less, plain - chosen);
    const auto rows = kTokens * config.num_experts_per_tok;
    EXPECT_EQ(chosen, 4 * config.num_hidden_layers *
                          (2 * kTokens * config.hidden_size + rows * config.moe_intermediate_size));
  });
}

// Layer 1 sends all rows to the experts of rank 0; the others send as many to each rank.
TEST(MemoryPlan, BySizeMakesAgainWhatOneRankHasTooMuchOf) {
  launch(2, [](RankContext& context) {
    const auto config = CausalLMConfig::preset("tiny");
    const auto batch = batch_of(0, context.rank(), config.vocab_size);
    const auto experts = config.num_experts, k = config.num_experts_per_tok;
    TensorList balanced, skewed;
    for (std::int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
      std::vector<std::int64_t> even, first;
      for (std::int64_t i = 0; i < kTokens * k; ++i) {
        even.push_back(i % experts);
        first.push_back(i % k);
      }
      balanced.push_back(Tensor::from(even, {kTokens, k}));
      skewed.push_back(layer == 1 ? Tensor::from(first, {kTokens, k}) : balanced.back());
    }
    const auto most = 3 * kTokens * k / 2;  // rows; each rank has two thirds of them when balanced
    enum How { kNot, kByPolicy, kByPlan, kByOtherPlan };
    const auto gradients = [&](const TensorList& chosen, How how, std::vector<std::string>& again) {
      models::CausalLM model(config, 5);
      const auto policy = [&](const OpResult& result) {
        if (result.op != "npu_gmm" || result.tensor.dim(0) <= most) {
          return CheckpointPolicy::kMustSave;
        }
        again.emplace_back(result.path);
        return CheckpointPolicy::kMustRecompute;
      };
      for (auto& layer : model.layers()) {
        if (how == kByPolicy) nn::checkpoint_with(layer, policy);
      }
      if (how == kByPlan) set_memory_plan(model, {.recompute = "adaptive"});
      if (how == kByOtherPlan) set_memory_plan(model, {.recompute = "core_attn"});
      shard_model(model, make_meshes(context.group(), {.dp_shard = 2, .ep = 2}), {});
      auto output = model(batch.tokens, batch.documents, {.replay_expert_indices = chosen});
      models::causal_lm_loss(output, batch.targets, 2 * kTokens, 0).objective.backward();
      NamedTensors grads;
      for (const auto& [name, parameter] : model.named_parameters()) {
        grads.push_back({name, parameter.grad()});
      }
      return grads;
    };
    std::vector<std::string> none, balanced_again, skewed_again;
    const auto plain = gradients(skewed, kNot, none);
    const auto before = context.counters().recomputed_ops.load();
    gradients(balanced, kByPolicy, balanced_again);
    gradients(balanced, kByPlan, balanced_again);
    EXPECT_TRUE(balanced_again.empty());
    EXPECT_EQ(context.counters().recomputed_ops, before);
    const auto adaptive = gradients(skewed, kByPolicy, skewed_again);
    if (context.rank() == 0) {  // both products; nothing reads the second's result
      EXPECT_EQ(skewed_again, std::vector<std::string>(2, "model.layers.1.mlp.experts"));
      EXPECT_EQ(context.counters().recomputed_ops, before + 1);
    } else {
      EXPECT_TRUE(skewed_again.empty());
      EXPECT_EQ(context.counters().recomputed_ops, before);
    }
    const auto after = context.counters().recomputed_ops.load();
    const auto by_plan = gradients(skewed, kByPlan, none);
    EXPECT_EQ(context.counters().recomputed_ops, after + (context.rank() == 0 ? 2 : 0));
    const auto before_other = context.counters().recomputed_ops.load();
    gradients(skewed, kByOtherPlan, none);
    EXPECT_EQ(context.counters().recomputed_ops, before_other + config.num_hidden_layers);
    for (std::size_t i = 0; i < plain.size(); ++i) {
      EXPECT_TRUE(bitwise_equal(adaptive[i].tensor, plain[i].tensor)) << plain[i].name;
      EXPECT_TRUE(bitwise_equal(by_plan[i].tensor, plain[i].tensor)) << plain[i].name;
    }
  });
}

TEST(MemoryPlan, ChangesNoBitHoweverAModelIsDivided) {
  std::vector<Training> runs{{.dims = {.dp_shard = 2}},
                             {.dims = {.dp_shard = 2, .ep = 2}},
                             {.dims = {.dp_shard = 2}, .compute = Dtype::kBFloat16},
                             {.dims = {.tp = 2, .ep = 2}},
                             {.dims = {.dp_shard = 2, .tp = 2}},
                             {.plan = {.recompute_layers = 1}}};
  for (std::size_t i = 0; i < runs.size(); ++i) {
    auto& run = runs[i];
    const auto plain = train(run);
    for (const auto* what : kSets) {
      run.plan.recompute = what;
      SCOPED_TRACE(std::to_string(i) + ", " + what);
      const auto result = train(run);
      expect_same(result, plain);
      EXPECT_GT(result.recomputed_ops, 0);
      EXPECT_LT(result.peak, plain.peak);
    }
  }
}

// Each alone, and lists of them that contain each pair that does not contradict itself.
TEST(MemoryPlan, ChangesNoBitWhateverIsOffloaded) {
  struct Case {
    MemoryPlan plan;
    bool chunked_loss = false;
  };
  constexpr std::int64_t kNarrow = 40000, kWide = 1 << 20;
  const Case cases[] = {
      {{.offload = "activations", .offload_window = 1}},
      {{.offload = "activations", .offload_window = kNarrow}, true},
      {{.recompute = "light", .offload = "activations", .offload_window = kNarrow}},
      {{.recompute = "medium", .offload = "activations", .offload_window = kNarrow}, true},
      {{.recompute = "full", .offload = "activations", .offload_window = kNarrow}},
      {{.recompute_layers = 1, .offload = "activations", .offload_window = kNarrow}, true},
      {{.recompute_layers = 4, .offload = "activations", .offload_window = 1}},
      {{.recompute = "layernorm,moe_act",
        .offload = "attn_norm,core_attn,attn_proj,mlp_norm,expert_fc1,moe_act",
        .offload_window = kNarrow}},
      {{.recompute = "core_attn,moe", .offload = "qkv_linear", .offload_window = 1}},
      {{.recompute = "model.layers.1,model.layers.*.mlp.experts,light",
        .offload = "model.layers.0.self_attn",
        .offload_window = kWide}},
  };
  for (const auto& dims :
       {ParallelDims{}, ParallelDims{.dp_shard = 2, .ep = 2}, ParallelDims{.tp = 2, .ep = 2}}) {
    for (const auto compute : {std::optional<Dtype>(), std::optional(Dtype::kBFloat16)}) {
      if (compute && dims.ranks() == 1) continue;
      Training run{.dims = dims, .compute = compute};
      run.config.num_hidden_layers = 4;
      const auto plain = train(run);
      EXPECT_EQ(plain.swapped_out, 0);
      for (const auto& [plan, chunked_loss] : cases) {
        run.plan = plan;
        run.chunked_loss = chunked_loss;
        SCOPED_TRACE(to_string(dims) + ", " + plan.recompute + ", " + plan.offload);
        const auto result = train(run);
        expect_same(result, plain);
        EXPECT_GT(result.swapped_out, 0);
        if (plan.offload_window < kWide) {
          EXPECT_GT(result.swapped_in, 0);
          EXPECT_LT(result.peak, plain.peak);
        }
      }
    }
  }
}

// Whatever the delays of collectives and copies. What is made again reads weights that are gathered
// for backward, into the layout of the grouped products, while it may already want them.
TEST(MemoryPlan, HasTheSameBitsAndOnePeakWhateverTheDelays) {
  for (const auto* recompute : {"light", "medium", "full"}) {
    Training run{
        .dims = {.dp_shard = 2, .ep = 1},
        .plan = {.recompute = recompute, .offload = "activations", .offload_window = 100000}};
    run.config.num_hidden_layers = 3;
    const auto expected = train(run);
    const std::uint64_t seeds = std::getenv("MOEGRAD_FULL") != nullptr ? 200 : 8;
    for (run.seed = 2; run.seed < 2 + seeds; ++run.seed) {
      const auto result = train(run);
      expect_same(result, expected);
      EXPECT_EQ(result.peak, expected.peak);
      EXPECT_EQ(result.swapped_in, expected.swapped_in);
    }
  }
}

// With a window of one tensor, what 16 layers hold in backward is little more than what one does.
TEST(MemoryPlan, OffloadingMakesThePeakIndependentOfTheDepth) {
  const auto peak = [](std::int64_t layers, const MemoryPlan& plan) {
    Training run{.plan = plan};
    run.config.num_hidden_layers = layers;
    return train(run).peak;
  };
  const MemoryPlan swaps{.offload = "activations", .offload_window = 1};
  const auto two = peak(2, swaps), sixteen = peak(16, swaps);
  const auto plain = peak(16, {}) - peak(2, {});
  EXPECT_LT(sixteen - two, plain / 10);
  // Layers that run again as wholes keep their input, which goes, too.
  const auto wholes = [&](std::int64_t layers, const std::string& offload) {
    return peak(layers, {.recompute_layers = layers, .offload = offload, .offload_window = 1});
  };
  EXPECT_LT(wholes(16, "activations") - wholes(2, "activations"), plain / 20);
  EXPECT_GT(wholes(16, "none") - wholes(2, "none"), plain / 12);
}

}  // namespace
}  // namespace moegrad::training::memory_plan_test
