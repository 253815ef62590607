// SPDX-License-Identifier: Apache-2.0
// Models under tensor parallelism: the gradient of every parameter, one by one, against one rank.
#include <fnmatch.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "framework/autograd/engine.h"
#include "framework/distributed/launch.h"
#include "framework/distributed/parallel_dims.h"
#include "framework/distributed/shard_runs.h"
#include "framework/runtime/rank_context.h"
#include "models/causal_lm/loss.h"
#include "models/causal_lm/model.h"
#include "parallel/expert/expert_parallel.h"
#include "parallel/tensor/check_division.h"
#include "parallel/tensor/parallelize_module.h"
#include "tests/ops/indices.h"
#include "tests/testing.h"
#include "train/tensor_plan.h"

namespace moegrad::parallel::models_test {
namespace {

using namespace test;
using models::CausalLM;
using models::CausalLMConfig;

/// Losses and gradients of one backward.
struct Results {
  double objective = 0;
  std::map<std::string, Tensor> gradients;
};

struct Job {
  CausalLMConfig config;
  std::int64_t tokens = 512;
  bool linear_cross_entropy = false;
  std::optional<Dtype> compute = std::nullopt;
  bool experts = false;  // on ranks of their own
};

Tensor ids(std::int64_t vocabulary, std::int64_t n, std::int64_t factor) {
  std::vector<std::int64_t> values;
  for (std::int64_t i = 0; i < n; ++i) values.push_back((i * i * factor + i) % vocabulary);
  return indices_of(values, {n});
}

Results results_of(CausalLM& model, const Job& run,
                   const std::shared_ptr<ProcessGroup>& tensor_ranks = nullptr) {
  const auto vocabulary = run.config.vocab_size;
  const Tensor tokens = ids(vocabulary, run.tokens, 7), targets = ids(vocabulary, run.tokens, 3);
  CausalLM::ForwardOptions options;
  if (run.linear_cross_entropy) options.targets = targets;
  const auto documents = Documents::of_lengths({run.tokens / 3, run.tokens - run.tokens / 3});
  const auto output = model(tokens, documents, options);
  const auto loss = models::causal_lm_loss(output, targets, run.tokens, 0.01,
                                           {.z_loss_coef = 0.1, .token_ranks = tensor_ranks});
  loss.objective.backward();
  Results results{.objective = loss.objective.item(), .gradients = {}};
  for (const auto& [name, parameter] : model.named_parameters()) {
    results.gradients[name] = clone(parameter.grad());
  }
  return results;
}

Results of_one_rank(const Job& run) {
  CausalLM model(run.config, 5);
  model.compute_in(run.compute);
  return results_of(model, run);
}

using Compare = std::function<void(const std::string& name, const Tensor& got, const Tensor& is)>;

void on_ranks(const Job& run, int ranks, const training::TensorPlanOptions& options,
              const Results& expected, const Compare& compare) {
  launch(ranks, [&](RankContext& context) {
    const auto meshes = make_meshes(context.group(), {.tp = ranks, .ep = run.experts ? ranks : 1});
    CausalLM model(run.config, 5);
    model.compute_in(run.compute);
    if (run.experts) expert_parallel(model, meshes.expert);
    auto own = options;
    own.expert_parallel = run.experts;
    parallelize_module(model, meshes.dense["tp"], training::tensor_plan(run.config, own));
    const auto got = results_of(model, run, meshes.dense.group("tp"));
    compare("objective", Tensor::full({}, got.objective, Dtype::kFloat64),
            Tensor::full({}, expected.objective, Dtype::kFloat64));
    for (const auto& [name, parameter] : model.named_parameters()) {
      const auto& spec = parameter.shard_spec();
      ASSERT_EQ(spec != nullptr, ranks > 1) << name;
      const auto& whole = expected.gradients.at(name);
      compare(name, got.gradients.at(name), spec ? clone(shard_view(whole, *spec)) : whole);
    }
    if (ranks > 1) check_replicated_gradients(model, meshes.dense["tp"]);
  });
}

void same_bits(const std::string& name, const Tensor& got, const Tensor& is) {
  EXPECT_TRUE(bitwise_equal(got, is)) << name;
}

CausalLMConfig dense(std::int64_t width) {
  auto config = CausalLMConfig::preset("tiny-dense");
  config.vocab_size = config.hidden_size = config.intermediate_size = width;
  config.num_hidden_layers = 2;
  config.head_dim = 64;
  config.num_attention_heads = width / 64;
  config.num_key_value_heads = width / 64;
  return config;
}

std::vector<training::TensorPlanOptions> plans() {
  if (kSanitized) return {{.sequence_parallel = true, .loss_parallel = true}};
  return {{.sequence_parallel = false, .loss_parallel = true},
          {.sequence_parallel = true, .loss_parallel = true},
          {.sequence_parallel = true, .loss_parallel = false},
          {.sequence_parallel = false, .loss_parallel = false}};
}

TEST(TensorParallelModels, DenseOnesHaveTheBitsOfOneRank) {
  for (const bool linear_cross_entropy : {false, true}) {
    if (kSanitized && !linear_cross_entropy) continue;
    const Job run{.config = dense(512), .linear_cross_entropy = linear_cross_entropy};
    const auto expected = of_one_rank(run);
    for (const auto& options : plans()) {
      for (const int ranks : {1, 2, 4}) {
        if (kSanitized && ranks != 2) continue;
        SCOPED_TRACE(std::to_string(ranks) + " ranks" +
                     (options.sequence_parallel ? ", sequence" : "") +
                     (options.loss_parallel ? ", loss" : ""));
        on_ranks(run, ranks, options, expected, same_bits);
      }
    }
  }
}

TEST(TensorParallelModels, InBFloat16DenseOnesHaveTheBitsOfOneRank) {
  auto config = dense(1024);
  config.num_hidden_layers = 1;
  const Job run{
      .config = config, .tokens = 1024, .linear_cross_entropy = true, .compute = Dtype::kBFloat16};
  const auto expected = of_one_rank(run);
  for (const bool sequence : {false, true}) {
    on_ranks(run, 2, {.sequence_parallel = sequence}, expected, same_bits);
  }
}

void close(const std::string& name, const Tensor& got, const Tensor& is) {
  EXPECT_TRUE(all_close(got, is, 1e-12, 1e-12)) << name;
}

// A small model of each kind, in float64. Experts are chosen by whole tokens, so that no choice
// depends on the ranks.
TEST(TensorParallelModels, AllKindsHaveTheGradientsOfOneRank) {
  for (const auto* const preset :
       {"tiny-dense", "tiny", "tiny-qwen2-moe", "tiny-mixtral", "tiny-glm4-moe"}) {
    auto config = CausalLMConfig::preset(preset);
    config.dtype = Dtype::kFloat64;
    config.num_hidden_layers = 2;
    config.router_jitter_noise = 0;
    for (const bool tied : {false, true}) {
      config.tie_word_embeddings = tied;
      const Job run{.config = config, .tokens = 48, .linear_cross_entropy = tied};
      const auto expected = of_one_rank(run);
      for (const auto& options : plans()) {
        for (const int ranks : {2, 4}) {
          for (const bool experts : {false, true}) {
            if (experts && config.num_moe_layers() == 0) continue;
            SCOPED_TRACE(std::string(preset) + ", " + std::to_string(ranks) + " ranks" +
                         (options.sequence_parallel ? ", sequence" : "") +
                         (options.loss_parallel ? ", loss" : "") + (experts ? ", experts" : ""));
            Job job = run;
            job.experts = experts;
            on_ranks(job, ranks, options, expected, close);
          }
        }
      }
    }
  }
}

// Norms of heads sum over whole tokens, and experts over parts of them on one rank, too.
TEST(TensorParallelModels, NeitherNormsOfHeadsNorExpertsAreListedAsInexact) {
  launch(2, [](RankContext& context) {
    const auto mesh = make_meshes(context.group(), {.tp = 2}).dense["tp"];
    const auto config = CausalLMConfig::preset("tiny");
    CausalLM model(config, 5);
    parallelize_module(model, mesh, training::tensor_plan(config, {.sequence_parallel = true}));
    const auto inexact = inexact_sums(model, mesh, 8);
    const auto lists = [&](const char* pattern) {
      return std::ranges::any_of(
          inexact, [&](const auto& text) { return ::fnmatch(pattern, text.c_str(), 0) == 0; });
    };
    EXPECT_TRUE(lists("*.input_layernorm: sums over 8 tokens") &&
                lists("*.gate: sums over 8 tokens"));
    EXPECT_FALSE(lists("*.?_norm:*") || lists("*.experts:*"));
  });
}

// Gradients are the same with both, so no other test shows which it is.
TEST(TensorParallelModels, TheHeadGathersLogitsWhereNoLossTakesParts) {
  for (const bool parts : {false, true}) {
    const auto plan =
        training::tensor_plan(CausalLMConfig::preset("tiny"), {.loss_parallel = parts});
    EXPECT_EQ(plan.back().first, "lm_head");
    EXPECT_EQ(std::get<ColwiseParallel>(plan.back().second).output_layouts,
              parts ? Shard(-1) : Replicate());
  }
}

/// The parameters whose gradients a plan gets wrong on two ranks.
std::set<std::string> wrong_under(const Job& run, const Results& expected,
                                  const ParallelPlan& plan) {
  std::set<std::string> wrong;
  std::mutex mutex;
  launch(2, [&](RankContext& context) {
    const auto meshes = make_meshes(context.group(), {.tp = 2});
    CausalLM model(run.config, 5);
    parallelize_module(model, meshes.dense["tp"], plan);
    const auto got = results_of(model, run, meshes.dense.group("tp"));
    for (const auto& [name, parameter] : model.named_parameters()) {
      const Tensor is = clone(shard_view(expected.gradients.at(name), *parameter.shard_spec()));
      const std::lock_guard lock(mutex);
      if (!all_close(got.gradients.at(name), is, 1e-9, 1e-11)) wrong.insert(name);
    }
  });
  return wrong;
}

// Losses do not show any of these.
TEST(TensorParallelModels, EachForgottenOrDoubledSumIsFoundByTheParametersName) {
  for (const auto* const preset : {"tiny", "tiny-qwen2-moe"}) {
    auto config = CausalLMConfig::preset(preset);
    config.dtype = Dtype::kFloat64;
    config.num_hidden_layers = 2;
    const Job run{.config = config, .tokens = 48};
    const auto expected = of_one_rank(run);
    const auto whole = training::tensor_plan(config, {.sequence_parallel = true});
    EXPECT_TRUE(wrong_under(run, expected, whole).empty());
    int planted = 0;
    // A module below `path` has a gradient that is wrong.
    const auto expect_found = [&](const std::string& path, const ParallelPlan& plan) {
      const auto wrong = wrong_under(run, expected, plan);
      EXPECT_TRUE(std::ranges::any_of(wrong, [&](const auto& name) {
        return ::fnmatch((path + ".*").c_str(), name.c_str(), 0) == 0;
      })) << path;
      ++planted;
    };
    for (std::size_t i = 0; i < whole.size(); ++i) {
      if (!std::holds_alternative<SequenceParallel>(whole[i].second)) continue;
      auto plan = whole;
      plan.erase(plan.begin() + static_cast<std::ptrdiff_t>(i));
      expect_found(whole[i].first, plan);
    }
    // What all ranks have alike, added over them.
    for (const auto* const path : {"model.norm", "model.layers.0.input_layernorm",
                                   "model.layers.1.post_attention_layernorm"}) {
      auto plan = training::tensor_plan(config, {.sequence_parallel = false});
      plan.emplace_back(path, SequenceParallel{});
      expect_found(path, plan);
    }
    // An embedding and a head that each rank takes for whole ones of its own tokens.
    for (const auto* const path : {"model.embed_tokens", "lm_head"}) {
      auto plan = training::tensor_plan(config, {.sequence_parallel = false});
      std::erase_if(plan, [&](const auto& entry) { return entry.first == path; });
      plan.emplace_back(path, SequenceParallel{});
      expect_found(path, plan);
    }
    EXPECT_GE(planted, 14);
  }
}

}  // namespace
}  // namespace moegrad::parallel::models_test
