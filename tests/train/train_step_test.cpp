// SPDX-License-Identifier: Apache-2.0
#include "train/train_step.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string_view>
#include <utility>

#include "framework/autograd/function.h"
#include "framework/distributed/collectives.h"
#include "framework/runtime/grad_mode.h"
#include "framework/runtime/random.h"
#include "ops/aux_loss.h"
#include "ops/cross_entropy.h"
#include "ops/elementwise.h"
#include "ops/reduce.h"
#include "optim/adamw.h"
#include "optim/sgd.h"
#include "tests/fsdp/models.h"
#include "train/data/packed_data.h"
#include "train/data/windowed_data.h"
#include "train/evaluate.h"
#include "train/sample.h"

namespace moegrad::training::train_step_test {
namespace {

using test::message_of;

TEST(KnownWords, CountsWholeWordsOfLetters) {
  const std::string corpus = "In the beginning God created the heaven and the earth.";
  EXPECT_EQ(known_words("the heaven, and... earth7God", corpus), 1.0);
  EXPECT_EQ(known_words("the heav and xyz", corpus), 0.5);
  EXPECT_EQ(known_words("123 .,", corpus), 0.0);
}

class SmallRun : public ::testing::Test {
 protected:
  static models::CausalLMConfig config() {
    auto config = test::sharded_toy_config();
    config.vocab_size = 256;
    return config;
  }
  static TextData data() {
    std::string text;
    while (text.size() < 4000) text += "the quick brown fox jumps over the lazy dog; ";
    return TextData(text, "fox", 16);
  }
};

/// What this rank trains of a model.
struct Training {
  template <class Meshes>
  Training(const models::CausalLMConfig& config, const Meshes& meshes, std::int64_t micro_batches,
           fsdp::Accumulation accumulation = fsdp::Accumulation::kKeepUntilLast, double lr = 1e-2)
      : model(config, 1),
        plan(shard_model(model, meshes, {}), micro_batches, accumulation),
        optimizer(decay_matrices(model.named_parameters(), lr, 0.1), {}) {}

  /// One step on the micro-batches of all ranks.
  StepResult step(const std::vector<MicroBatch>& all, const StepOptions& options = {},
                  const StepForward& forward = run_model) {
    return train_step(model, plan, plan.own(all), options, optimizer, forward);
  }

  models::CausalLM model;
  fsdp::StepPlan plan;
  optim::AdamW optimizer;
};

TEST_F(SmallRun, MatricesDecayAndVectorsDoNot) {
  const models::CausalLM model(config(), 1);
  const auto groups = decay_matrices(model.named_parameters(), 1e-2, 0.1);
  ASSERT_EQ(groups.size(), 2U);
  EXPECT_EQ(groups[0].weight_decay, 0.1);
  EXPECT_EQ(groups[1].weight_decay, 0);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(groups[i].lr, 1e-2);
    EXPECT_FALSE(groups[i].parameters.empty());
    for (const auto& [name, parameter] : groups[i].parameters) {
      EXPECT_EQ(parameter.ndim(), i == 0 ? 2 : 1) << name;
    }
  }
}

TEST_F(SmallRun, ValidationAndSampleAreTheSameOnEveryWorldSize) {
  const WindowedData text(data(), {.sequences = 2, .validation_sequences = 10});
  std::vector<double> losses;
  std::vector<std::string> samples;
  for (const auto& dims :
       {ParallelDims{}, ParallelDims{.dp_shard = 2}, ParallelDims{.dp_shard = 3},
        ParallelDims{.dp_shard = 2, .ep = 2}, ParallelDims{.dp_shard = 4, .ep = 2},
        ParallelDims{.dp_shard = 4, .ep = 4}}) {
    launch(dims.ranks(), [&](RankContext& context) {
      models::CausalLM model(config(), 1);
      auto& state = shard_model(model, make_meshes(context.group(), dims), {});
      const double loss = evaluate(model, text, state.ranks());
      const std::int64_t sent = context.counters().rows_sent;
      const auto continuation = sample(model, "the q", 12, 16, 0.8, 5, state.ranks());
      // The ranks that draw nothing have no tokens of their own.
      const bool sends = context.counters().rows_sent > sent;
      EXPECT_EQ(sends, dims.ep > 1 && context.rank() == 0) << to_string(dims);
      EXPECT_EQ(continuation.size(), 12U);
      if (context.rank() != 0) return;
      losses.push_back(loss);
      samples.push_back(continuation);
    });
    EXPECT_EQ(losses.back(), losses.front()) << to_string(dims);
    EXPECT_EQ(samples.back(), samples.front()) << to_string(dims);
  }
  EXPECT_NEAR(losses[0], std::log(256.0), 1.0);
}

TEST_F(SmallRun, SamplesBytesOfAModelOfBytesAlone) {
  auto other = config();
  other.vocab_size = 257;
  launch(1, [&](RankContext&) {
    models::CausalLM model(other, 1);
    EXPECT_EQ(
        message_of<ValueError>([&] { sample(model, "the q", 1, 16, 0, 5, {}); }),
        "sample: the model's ids must be bytes (a vocab_size of 256), got a vocab_size of 257");
  });
}

// Held-out data of one's own: batches of which some targets are masked, from no source of tokens.
class MaskedBatches final : public ValidationData {
 public:
  std::int64_t validation_batches() const override { return 3; }
  MicroBatch validation_batch(std::int64_t index) const override {
    std::vector<std::int64_t> tokens, targets;
    for (std::int64_t i = 0; i < 6; ++i) {
      tokens.push_back(40 * index + 7 * i);
      targets.push_back(i <= index ? 40 * index + i : -100);
    }
    return {.tokens = Tensor::from(tokens, {6}),
            .targets = Tensor::from(targets, {6}),
            .documents = Documents::of_lengths({6})};
  }
};

TEST_F(SmallRun, EvaluatesHeldOutDataOfOnesOwnByItsTargets) {
  const MaskedBatches data;
  std::vector<double> losses;
  for (const int ranks : {1, 2, 4}) {
    launch(ranks, [&](RankContext& context) {
      models::CausalLM model(config(), 1);
      fsdp::GroupRanks spread;
      if (ranks > 1) {
        spread = shard_model(model, make_meshes(context.group(), {.dp_shard = ranks}), {}).ranks();
      }
      const double loss = evaluate(model, data, spread);
      if (context.rank() == 0) losses.push_back(loss);
    });
    EXPECT_EQ(losses.back(), losses.front()) << ranks;
  }
  launch(1, [&](RankContext&) {
    models::CausalLM model(config(), 1);
    const NoGradGuard no_grad;
    double sum = 0;  // over 1 + 2 + 3 targets
    for (std::int64_t i = 0; i < 3; ++i) {
      const auto batch = data.validation_batch(i);
      const auto logits = model(batch.tokens).logits;
      sum += ops::cross_entropy(logits, batch.targets, {.denominator = 1.0}).item();
    }
    EXPECT_DOUBLE_EQ(losses[0], sum / 6);
  });
}

// Two micro-batches on four ranks: two of them only join in.
TEST_F(SmallRun, RanksWithoutAMicroBatchSendNoTokens) {
  const WindowedData windows(data(), {.micro_batches = 2, .sequences = 2});
  std::vector<StepResult> results;
  for (const auto& dims :
       {ParallelDims{}, ParallelDims{.dp_shard = 4}, ParallelDims{.dp_shard = 4, .ep = 2},
        ParallelDims{.dp_shard = 4, .ep = 4}, ParallelDims{.dp_shard = 6, .ep = 2}}) {
    launch(dims.ranks(), [&](RankContext& context) {
      Training training(config(), make_meshes(context.group(), dims), 2,
                        fsdp::accumulation_on(dims));
      StepResult last;
      for (int step = 0; step < 3; ++step) last = training.step(step_batches(windows, step));
      EXPECT_EQ(context.counters().rows_sent > 0, dims.ep > 1 && !training.plan.turns()[0].idle);
      if (context.rank() == 0) results.push_back(std::move(last));
    });
    const auto &first = results.front(), &last = results.back();
    EXPECT_EQ(last.tokens, first.tokens) << to_string(dims);
    EXPECT_EQ(last.tokens_per_expert, first.tokens_per_expert) << to_string(dims);
    EXPECT_EQ(last.loss, first.loss) << to_string(dims);
    EXPECT_EQ(last.grad_norm, first.grad_norm) << to_string(dims);
    EXPECT_EQ(last.router_entropy, first.router_entropy) << to_string(dims);
    EXPECT_EQ(last.model_flops, first.model_flops) << to_string(dims);
  }
}

TEST_F(SmallRun, ValidationSumsItsSequencesInTheirOrderOnEveryWorldSize) {
  const Random random(3, "validation text");
  std::string text;
  while (text.size() < 20000) {
    text += static_cast<char>('a' + static_cast<int>(26 * random.uniform(text.size())));
  }
  constexpr std::int64_t kSequences = 50;
  const WindowedData data(TextData(text, "letters", 16),
                          {.sequences = 1, .validation_sequences = kSequences});
  auto wide = config();  // sums of a few float32 values are exact in float64, in any order
  wide.dtype = Dtype::kFloat64;
  std::vector<double> sums;
  double targets = 0;
  launch(1, [&](RankContext& context) {
    const NoGradGuard no_grad;
    models::CausalLM model(wide, 1);
    shard_model(model, DeviceMesh::flat(context.group()), {});
    for (std::int64_t i = 0; i < data.validation_batches(); ++i) {
      const auto batch = data.validation_batch(i);
      const auto output = model(batch.tokens, batch.documents);
      sums.push_back(ops::cross_entropy(output.logits, batch.targets, {.denominator = 1.0}).item());
      targets += static_cast<double>(ops::count_targets(batch.targets));
    }
  });
  ASSERT_EQ(std::ssize(sums), kSequences);
  double sum = 0;
  for (const auto term : sums) sum += term;
  int others = 0;  // world sizes whose sums of sums have other bits: without any, nothing is shown
  for (const int world_size : {1, 2, 3, 4, 5}) {
    double loss = 0;
    launch(world_size, [&](RankContext& context) {
      models::CausalLM model(wide, 1);
      auto& state = shard_model(model, DeviceMesh::flat(context.group()), {});
      const double own = evaluate(model, data, state.ranks());
      if (context.rank() == 0) loss = own;
    });
    EXPECT_EQ(loss, sum / targets) << world_size;
    const auto each = (sums.size() + static_cast<std::size_t>(world_size) - 1) /
                      static_cast<std::size_t>(world_size);
    double of_ranks = 0;
    for (std::size_t begin = 0; begin < sums.size(); begin += each) {
      double part = 0;
      for (auto i = begin; i < std::min(sums.size(), begin + each); ++i) part += sums[i];
      of_ranks += part;
    }
    others += of_ranks / targets != sum / targets ? 1 : 0;
  }
  EXPECT_GT(others, 0);
}

TEST_F(SmallRun, ValidationIsTheMeanOverTheTargetsOfPackedDocuments) {
  std::string text;
  DocumentOffsets documents = {0};
  for (int d = 0; d < 60; ++d) {
    text += std::string(static_cast<std::size_t>(3 + d % 11), static_cast<char>('a' + d % 26));
    documents.push_back(std::ssize(text));
  }
  const PackedData data(TokenSource::text(text, "letters"), documents,
                        {.budget = 12, .validation_batches = 3});
  ASSERT_EQ(data.validation_batches(), 3);
  launch(2, [&](RankContext& context) {
    models::CausalLM model(config(), 1);
    auto& state = shard_model(model, DeviceMesh::flat(context.group()), {});
    double sum = 0;
    std::int64_t targets = 0;
    for (std::int64_t i = 0; i < 3; ++i) {
      const NoGradGuard no_grad;
      const auto batch = data.validation_batch(i);
      const auto output = model(batch.tokens, batch.documents);
      sum += ops::cross_entropy(output.logits, batch.targets, {.denominator = 1.0}).item();
      targets += ops::count_targets(batch.targets);
      EXPECT_LT(ops::count_targets(batch.targets), batch.tokens.numel());
    }
    EXPECT_EQ(evaluate(model, data, state.ranks()), sum / static_cast<double>(targets));
  });
}

TEST_F(SmallRun, LossOfATrainingStepFalls) {
  const auto text = data();
  launch(2, [&](RankContext& context) {
    Training training(config(), DeviceMesh::flat(context.group()), 2);
    std::vector<double> losses;
    for (std::int64_t step = 0; step < 40; ++step) {
      const auto result = training.step(
          {text.training_batch(1, step, 0, 2, 2), text.training_batch(1, step, 1, 2, 2)});
      losses.push_back(result.ce);
      std::int64_t routed = 0;
      for (const auto count : result.tokens_per_expert[0]) routed += count;
      EXPECT_EQ(routed, 2 * 2 * 16 * 2);
    }
    EXPECT_LT(losses.back(), 0.6 * losses.front());
  });
}

TEST_F(SmallRun, RanksThatDoNotDivideTheMicroBatchesComputeTheSameStep) {
  struct Step {
    double loss = 0, grad_norm = 0;
    std::vector<std::vector<std::int64_t>> tokens_per_expert;
  };
  const auto text = data();
  const auto second_step = [&](int replicas, int shards, std::int64_t micro_batches,
                               fsdp::Accumulation accumulation) {
    Step second;
    launch(replicas * shards, [&](RankContext& context) {
      auto wide = config();
      wide.dtype = Dtype::kFloat64;
      const DeviceMesh mesh(context.group(), {{"replicate", replicas}, {"shard", shards}});
      Training training(wide, mesh, micro_batches, accumulation);
      StepResult result;
      for (std::int64_t step = 0; step < 2; ++step) {
        std::vector<MicroBatch> batches;
        for (std::int64_t i = 0; i < micro_batches; ++i) {
          batches.push_back(text.training_batch(1, step, i, micro_batches, 1));
        }
        result = training.step(batches);
      }
      EXPECT_EQ(all_reduce<std::int64_t>(*context.group(), std::ssize(result.expert_indices),
                                         ReduceOp::kSum),
                micro_batches);
      if (context.rank() == 0) second = {result.loss, result.grad_norm, result.tokens_per_expert};
    });
    return second;
  };
  for (const std::int64_t micro_batches : {1, 4, 5}) {
    const auto expected = second_step(1, 1, micro_batches, fsdp::Accumulation::kKeepUntilLast);
    for (const auto accumulation :
         {fsdp::Accumulation::kKeepUntilLast, fsdp::Accumulation::kReduceEach,
          fsdp::Accumulation::kScatterEach, fsdp::Accumulation::kReducePairs}) {
      for (const auto& [replicas, shards] : {std::pair{1, 3}, std::pair{2, 2}, std::pair{3, 2}}) {
        const auto found = second_step(replicas, shards, micro_batches, accumulation);
        EXPECT_NEAR(found.loss, expected.loss, 1e-12 * expected.loss);
        EXPECT_NEAR(found.grad_norm, expected.grad_norm, 1e-11 * expected.grad_norm);
        EXPECT_EQ(found.tokens_per_expert, expected.tokens_per_expert);
      }
    }
  }
}

// The floating-point operations of all matrix products and of attention on the tape of `root`.
double product_flops(const Tensor& root) {
  const std::set<std::string_view> products = {"attention", "linear", "npu_gmm", "grouped_matmul"};
  std::set<const Function*> seen;
  std::vector<const Function*> waiting = {root.grad_fn().get()};
  double total = 0;
  while (!waiting.empty()) {
    const auto* function = waiting.back();
    waiting.pop_back();
    if (function == nullptr || !seen.insert(function).second) continue;
    if (products.contains(function->name())) total += function->flops();
    for (const auto& edge : function->edges()) waiting.push_back(edge.function.get());
  }
  return total;
}

TEST_F(SmallRun, ModelFlopsAreThreeTimesTheProductsOfForward) {
  models::CausalLM model(config(), 1);
  MicroBatch batch = data().training_batch(1, 0, 0, 1, 3);
  batch.documents = Documents::of_lengths({5, 0, 30, 13});
  const auto output = model(batch.tokens, batch.documents);
  const double counted = 3 * product_flops(ops::sum(output.logits));
  EXPECT_GT(counted, 1e6);
  EXPECT_EQ(models::training_flops(model.config(), batch.documents), counted);
}

TEST_F(SmallRun, FiguresOfAStepAreTheSameBitsOnEveryWorldSize) {
  const auto text = data();
  std::vector<StepResult> results;
  double entropy = 0, flops = 0;
  std::int64_t layers = 0;
  for (const int world_size : {1, 2, 4}) {
    launch(world_size, [&](RankContext& context) {
      Training training(config(), DeviceMesh::flat(context.group()), 4);
      std::vector<MicroBatch> batches;
      for (std::int64_t i = 0; i < 4; ++i) batches.push_back(text.training_batch(1, 0, i, 4, 1));
      batches[1].targets.mutable_data<std::int64_t>()[0] = -100;  // so fewer targets than tokens
      if (world_size == 1) {
        for (const auto& batch : batches) {
          const NoGradGuard no_grad;
          const auto output = training.model(batch.tokens, batch.documents);
          layers = std::ssize(output.router_logits);
          for (const auto& logits : output.router_logits) entropy += ops::router_entropy(logits);
          flops += models::training_flops(config(), batch.documents);
        }
      }
      auto result = training.step(batches);
      if (context.rank() == 0) results.push_back(std::move(result));
    });
  }
  ASSERT_GT(layers, 1);
  EXPECT_NEAR(results[0].router_entropy, entropy / static_cast<double>(layers * results[0].tokens),
              1e-12);
  EXPECT_LT(results[0].router_entropy, std::log(static_cast<double>(config().num_experts)));
  EXPECT_GT(results[0].router_entropy, 0.5);
  EXPECT_EQ(results[0].model_flops, flops);
  for (const auto& result : results) {
    EXPECT_EQ(result.router_entropy, results[0].router_entropy);
    EXPECT_EQ(result.model_flops, flops);
  }
}

TEST_F(SmallRun, RecomputesTheFirstLayers) {
  models::CausalLM model(config(), 1);
  ASSERT_EQ(model.layers().size(), 2U);
  recompute_layers(model, 0);
  EXPECT_TRUE(model.layers()[0].extensions().empty());
  recompute_layers(model, 1);
  EXPECT_EQ(model.layers()[0].extensions().size(), 1U);
  EXPECT_TRUE(model.layers()[1].extensions().empty());
}

TEST_F(SmallRun, AStepRunsTheModelAsItsOptionsSay) {
  launch(1, [&](RankContext& context) {
    Training training(config(), DeviceMesh::flat(context.group()), 2,
                      fsdp::Accumulation::kKeepUntilLast,
                      /*lr=*/0);
    const WindowedData windows(data(), {.micro_batches = 2, .sequences = 1});
    const auto expected = training.step(step_batches(windows, 0));
    std::vector<Tensor> seen;
    const StepForward forward = [&](models::CausalLM& whole, const auto&, const MicroBatch& batch,
                                    const models::CausalLM::ForwardOptions& options) {
      seen.push_back(batch.tokens);
      EXPECT_TRUE(options.targets.defined());
      EXPECT_EQ(options.grad_ce_sum, 1.0 / 32);  // of two micro-batches
      return whole(batch.tokens, batch.documents, options);
    };
    const auto result =
        training.step(step_batches(windows, 0), {.linear_cross_entropy = true}, forward);
    EXPECT_EQ(seen.size(), 2U);
    EXPECT_EQ(result.loss, expected.loss);
    EXPECT_EQ(result.grad_norm, expected.grad_norm);
  });
}

// The number of targets, 29 or 53, is no power of two, so that the gradients which forward makes
// are rounded as backward rounds them, or not at all.
TEST_F(SmallRun, AStepHasTheSameBitsWithGradientsOfTheHeadMadeInForward) {
  std::vector<MicroBatch> batches;
  for (const auto& lengths : {std::vector<std::int64_t>{9, 7}, std::vector<std::int64_t>{13, 3}}) {
    std::vector<std::int64_t> tokens, targets;
    for (std::int64_t i = 0; i < 16; ++i) {
      tokens.push_back(std::ssize(batches) + i * i % 97);
      targets.push_back(i % 7 == 5 || i == 15 ? -100 : i * 11 % 256);
    }
    batches.push_back({.tokens = Tensor::from(tokens, {16}),
                       .targets = Tensor::from(targets, {16}),
                       .documents = Documents::of_lengths(lengths)});
  }
  const auto losses = [&](const ParallelDims& dims, std::optional<Dtype> compute, bool recomputed,
                          bool linear) {
    std::vector<double> found;
    launch(dims.ranks(), [&](RankContext& context) {
      models::CausalLM model(config(), 1);
      if (recomputed) recompute_layers(model, 2);
      fsdp::Policy policy;
      policy.mixed_precision.param_dtype = compute;
      const auto meshes = make_meshes(context.group(), dims);
      fsdp::StepPlan plan(shard_model(model, meshes, policy), 2, fsdp::accumulation_on(dims));
      optim::AdamW optimizer(model.named_parameters(), {.lr = 1e-2});
      for (int step = 0; step < 3; ++step) {
        const auto done = train_step(
            model, plan, plan.own(batches),
            {.linear_cross_entropy = linear, .tensor_ranks = meshes.dense.group("tp")}, optimizer);
        if (context.rank() != 0) continue;
        found.push_back(done.loss);
        found.push_back(done.grad_norm);
      }
    });
    return found;
  };
  for (const ParallelDims& dims :
       {ParallelDims{}, {.dp_shard = 2}, {.dp_shard = 2, .ep = 2}, {.tp = 2}}) {
    for (const std::optional<Dtype> compute : {std::optional<Dtype>(), {Dtype::kBFloat16}}) {
      for (const bool recomputed : {false, true}) {
        EXPECT_EQ(losses(dims, compute, recomputed, true), losses(dims, compute, recomputed, false))
            << to_string(dims) << (compute ? ", bfloat16" : "") << (recomputed ? ", again" : "");
      }
    }
  }
}

// Each micro-batch takes the experts of the next one, so that no choice of a router is right.
TEST_F(SmallRun, RunsTheForwardThatItIsGivenWithTheTurnOfTheMicroBatch) {
  const WindowedData windows(data(), {.micro_batches = 4, .sequences = 1});
  std::vector<TensorList> choices;
  std::vector<double> losses;
  const StepForward replaying = [&](models::CausalLM& model, const auto& turn,
                                    const MicroBatch& batch,
                                    models::CausalLM::ForwardOptions options) {
    options.replay_expert_indices = choices[static_cast<std::size_t>(turn.index + 1) % 4];
    return model(batch.tokens, batch.documents, options);
  };
  for (const int world_size : {1, 1, 2, 4}) {
    launch(world_size, [&](RankContext& context) {
      Training training(config(), DeviceMesh::flat(context.group()), 4);
      const auto result = training.step(step_batches(windows, 0), {},
                                        choices.empty() ? StepForward(run_model) : replaying);
      if (context.rank() != 0) return;
      losses.push_back(result.loss);
      if (losses.size() == 1) choices = result.expert_indices;
    });
  }
  EXPECT_NE(losses[1], losses[0]);
  EXPECT_EQ(losses[2], losses[1]);
  EXPECT_EQ(losses[3], losses[1]);
}

TEST_F(SmallRun, TokensOfAStepAreThoseOfAllMicroBatchesWhateverTheirLength) {
  const auto text = data();
  for (const int world_size : {1, 2}) {
    launch(world_size, [&](RankContext& context) {
      Training training(config(), DeviceMesh::flat(context.group()), 2);
      const auto result =
          training.step({text.training_batch(1, 0, 0, 2, 1), text.training_batch(1, 0, 1, 2, 3)});
      EXPECT_EQ(result.tokens, 4 * 16);
    });
  }
}

TEST_F(SmallRun, EvaluationRecordsNoTape) {
  const WindowedData windows(data(), {.sequences = 1, .validation_sequences = 2});
  launch(1, [&](RankContext& context) {
    models::CausalLM model(config(), 1);
    auto& state = shard_model(model, DeviceMesh::flat(context.group()), {});
    std::vector<bool> modes;
    const auto hook =
        model.register_forward_hook([&](nn::Module&) { modes.push_back(grad_enabled()); });
    evaluate(model, windows, state.ranks());
    EXPECT_EQ(modes, std::vector<bool>(2, false));
  });
}

TEST_F(SmallRun, AStepNeedsAMicroBatchForEachTurn) {
  launch(1, [&](RankContext& context) {
    Training training(config(), DeviceMesh::flat(context.group()), 2);
    EXPECT_EQ(message_of<ValueError>(
                  [&] { train_step(training.model, training.plan, {}, {}, training.optimizer); }),
              "train_step: must be given a micro-batch for each of 2 turns, got 0");
  });
}

TEST_F(SmallRun, AMaximumNormOfZeroClipsNothing) {
  std::vector<TensorList> after;
  for (const double limit : {0.0, 1e30, 1e-3}) {
    launch(1, [&](RankContext& context) {
      models::CausalLM model(config(), 1);
      auto& state = shard_model(model, DeviceMesh::flat(context.group()), {});
      // Adam's first step does not depend on the size of a gradient; stochastic descent's does.
      optim::SGD optimizer(model.named_parameters(), {.lr = 0.1});
      fsdp::StepPlan plan(state, 2);
      const WindowedData windows(data(), {.micro_batches = 2, .sequences = 1});
      train_step(model, plan, step_batches(windows, 0), {.max_grad_norm = limit}, optimizer);
      const NoGradGuard no_grad;
      after.emplace_back();
      for (const auto& [name, tensor] : model.named_parameters())
        after.back().push_back(clone(tensor));
    });
  }
  bool clipped = false;
  for (std::size_t i = 0; i < after[0].size(); ++i) {
    EXPECT_TRUE(test::bitwise_equal(after[0][i], after[1][i])) << i;
    clipped = clipped || !test::bitwise_equal(after[0][i], after[2][i]);
  }
  EXPECT_TRUE(clipped);
}

TEST_F(SmallRun, AStepWhoseLossIsNotFiniteChangesNoBitOfTheState) {
  launch(2, [&](RankContext& context) {
    Training training(config(), DeviceMesh::flat(context.group()), 2);
    const WindowedData windows(data(), {.micro_batches = 2, .sequences = 1});
    double of_gradient = 1;  // what the gradient of the logits is multiplied by
    const auto step = [&](double factor) {
      const StepForward forward = [&](models::CausalLM& whole, const auto&, const MicroBatch& batch,
                                      const models::CausalLM::ForwardOptions& options) {
        auto output = whole(batch.tokens, batch.documents, options);
        output.logits = output.logits * factor;
        output.logits.register_hook([&](const Tensor& grad) { return grad * of_gradient; });
        return output;
      };
      return training.step(step_batches(windows, 0), {}, forward);
    };
    const auto values = [&] {
      const NoGradGuard no_grad;
      TensorList all;
      for (const auto& tensors :
           {training.model.named_parameters(), training.optimizer.state_dict()})
        for (const auto& [name, tensor] : tensors) all.push_back(clone(tensor));
      return all;
    };
    EXPECT_TRUE(step(1).is_finite());
    const auto before = values();
    const auto expect_unchanged = [&] {
      const auto after = values();
      ASSERT_EQ(after.size(), before.size());
      for (std::size_t i = 0; i < before.size(); ++i) {
        EXPECT_TRUE(test::bitwise_equal(after[i], before[i])) << i;
      }
    };
    EXPECT_FALSE(step(HUGE_VAL).is_finite());
    expect_unchanged();
    of_gradient = HUGE_VAL;
    const auto result = step(1);
    EXPECT_TRUE(std::isfinite(result.loss));
    EXPECT_FALSE(result.is_finite());
    expect_unchanged();
  });
}

TEST(Sample, NeedsAPrompt) {
  models::CausalLM model(test::sharded_toy_config(), 1);
  EXPECT_EQ(message_of<ValueError>([&] { sample(model, "", 1, 8, 1.0, 1, {}); }),
            "--prompt: must not be empty");
}

}  // namespace
}  // namespace moegrad::training::train_step_test
