// SPDX-License-Identifier: Apache-2.0
// Training steps of a model in which a layer with dropout has replaced a part.
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "framework/autograd/dropout_ids.h"
#include "framework/tensor/fill.h"
#include "nn/attention.h"
#include "nn/dropout.h"
#include "nn/sequential.h"
#include "optim/adamw.h"
#include "tests/fsdp/models.h"
#include "train/data/windowed_data.h"
#include "train/evaluate.h"
#include "train/train_step.h"

namespace moegrad::training::dropout_step_test {
namespace {

using namespace test;

constexpr std::int64_t kMicroBatches = 4;

models::CausalLMConfig config() {
  auto config = test::sharded_toy_config();
  config.vocab_size = 256;
  return config;
}

WindowedData windows() {
  std::string text;
  while (text.size() < 4000) text += "the quick brown fox jumps over the lazy dog; ";
  return {TextData(text, "fox", 16),
          {.micro_batches = kMicroBatches, .sequences = 1, .validation_sequences = 2}};
}

void drop_outputs_of_attention(models::CausalLM& model) {
  for (std::size_t i = 0; i < model.layers().size(); ++i) {
    const auto path = "model.layers." + std::to_string(i) + ".self_attn.o_proj";
    auto projection = model.part<Tensor(const Tensor&)>(path);
    auto both = std::make_shared<nn::Sequential>();
    both->push_back(std::move(projection));
    both->push_back(std::make_shared<nn::Dropout>(nn::Dropout::Config{.p = 0.5}));
    model.replace(path, nn::TensorModule(both));
  }
}

using SelfAttention = nn::AnyModule<Tensor(const Tensor&, const nn::SequenceContext&)>;

void drop_within_attention(models::CausalLM& model) {
  const auto& config = model.config();
  for (std::size_t i = 0; i < model.layers().size(); ++i) {
    model.replace("model.layers." + std::to_string(i) + ".self_attn",
                  SelfAttention(std::make_shared<nn::Attention>(
                      nn::Attention::Config{.hidden_size = config.hidden_size,
                                            .num_heads = config.num_attention_heads,
                                            .num_key_value_heads = config.num_key_value_heads,
                                            .head_dim = config.head_dim,
                                            .dropout = 0.5,
                                            .dtype = config.dtype})));
  }
  model.init_weights(1);
}

using Drop = void (*)(models::CausalLM&);

struct Run {
  std::vector<double> losses, norms;
};

Run run(Drop drop, int ranks, bool recomputed, std::uint64_t seed) {
  Run result;
  const auto data = windows();
  launch(ranks, [&](RankContext& context) {
    models::CausalLM model(config(), 1);
    drop(model);
    if (recomputed) recompute_layers(model, std::ssize(model.layers()));
    auto& state = shard_model(model, DeviceMesh::flat(context.group()), {});
    optim::AdamW optimizer(decay_matrices(model.named_parameters(), 1e-2, 0.1), {});
    fsdp::StepPlan plan(state, kMicroBatches);
    for (int step = 0; step < 3; ++step) {
      const auto done = train_step(model, plan, plan.own(step_batches(data, step)),
                                   {.seed = seed, .step = step}, optimizer);
      if (context.rank() != 0) continue;
      result.losses.push_back(done.loss);
      result.norms.push_back(done.grad_norm);
    }
  });
  return result;
}

TEST(DropoutStep, HasTheBitsOfOneRankOnSeveralRecomputedOrNot) {
  for (const Drop drop : {drop_outputs_of_attention, drop_within_attention}) {
    const auto expected = run(drop, 1, false, 7);
    for (const int ranks : {1, 2, 3, 4}) {
      for (const bool recomputed : {false, true}) {
        const auto other = run(drop, ranks, recomputed, 7);
        EXPECT_EQ(other.losses, expected.losses) << ranks << " ranks, recomputed " << recomputed;
        EXPECT_EQ(other.norms, expected.norms) << ranks << " ranks, recomputed " << recomputed;
      }
    }
    EXPECT_NE(run(drop, 1, false, 8).losses, expected.losses);
  }
}

void expect_masks_of_their_own(Drop drop) {
  const auto data = windows();
  launch(1, [&](RankContext& context) {
    models::CausalLM model(config(), 1);
    drop(model);
    auto& state = shard_model(model, DeviceMesh::flat(context.group()), {});
    optim::AdamW optimizer(decay_matrices(model.named_parameters(), 0, 0), {});
    fsdp::StepPlan plan(state, kMicroBatches);
    const std::vector same(kMicroBatches, step_batches(data, 0)[0]);
    TensorList logits;
    const StepForward forward = [&](models::CausalLM& whole, const auto&, const MicroBatch& batch,
                                    const models::CausalLM::ForwardOptions& options) {
      auto output = whole(batch.tokens, batch.documents, options);
      logits.push_back(clone(output.logits.detach()));
      return output;
    };
    for (const std::int64_t step : {0, 1, 0}) {
      train_step(model, plan, same, {.seed = 7, .step = step}, optimizer, forward);
    }
    ASSERT_EQ(logits.size(), 12U);
    for (std::size_t i = 0; i < 8; ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        EXPECT_FALSE(bitwise_equal(logits[i], logits[j])) << i << " and " << j;
      }
    }
    for (std::size_t i = 0; i < 4; ++i) {
      EXPECT_TRUE(bitwise_equal(logits[i], logits[8 + i])) << i;
    }
  });
}

TEST(DropoutStep, EachMicroBatchAndStepHasMasksOfItsOwn) {
  for (const Drop drop : {drop_outputs_of_attention, drop_within_attention}) {
    expect_masks_of_their_own(drop);
  }
}

TEST(DropoutStep, NeedsTheNumberOfTheStepAndNoGuard) {
  const auto data = windows();
  launch(1, [&](RankContext& context) {
    models::CausalLM model(config(), 1);
    drop_outputs_of_attention(model);
    auto& state = shard_model(model, DeviceMesh::flat(context.group()), {});
    optim::AdamW optimizer(decay_matrices(model.named_parameters(), 0, 0), {});
    fsdp::StepPlan plan(state, kMicroBatches);
    const auto step = [&](const StepOptions& options) {
      train_step(model, plan, step_batches(data, 0), options, optimizer);
    };
    EXPECT_THAT(message_of<Error>([&] { step({}); }),
                ::testing::StartsWith("Dropout: training needs a DropoutIdsGuard with the seed"));
    state.reset_iter_state();
    {
      const DropoutIdsGuard guard({.seed = 1, .step = 0});
      EXPECT_EQ(message_of<Error>([&] { step({.step = 1}); }),
                "train_step: must not be called within a DropoutIdsGuard, since all micro-batches "
                "would have the same ids; give options.seed and options.step instead");
    }
    EXPECT_NO_THROW(step({.step = 1}));
    EXPECT_NO_THROW(evaluate(model, data, state.ranks()));  // drops nothing
  });
}

TEST(DropoutStep, ForwardTakesItsIdsFromItsOptionsBeforeAGuard) {
  models::CausalLM model(config(), 1);
  drop_outputs_of_attention(model);
  const auto batch = step_batches(windows(), 0)[0];
  const auto logits = [&](const std::optional<DropoutIds>& ids) {
    return model(batch.tokens, batch.documents, {.dropout_ids = ids}).logits;
  };
  const DropoutIds first = {.seed = 1, .step = 2}, second = {.seed = 1, .step = 3};
  const Tensor of_first = logits(first), of_second = logits(second);
  EXPECT_FALSE(bitwise_equal(of_first, of_second));
  EXPECT_EQ(DropoutIdsGuard::current(), nullptr);
  const DropoutIdsGuard guard(second);
  EXPECT_TRUE(bitwise_equal(logits(std::nullopt), of_second));
  EXPECT_TRUE(bitwise_equal(logits(first), of_first));
}

}  // namespace
}  // namespace moegrad::training::dropout_step_test
