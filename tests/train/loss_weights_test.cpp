// SPDX-License-Identifier: Apache-2.0
#include "train/loss_weights.h"

#include <cmath>
#include <vector>

#include "framework/distributed/parallel_dims.h"
#include "models/causal_lm/loss.h"
#include "ops/cross_entropy.h"
#include "ops/views.h"
#include "optim/adamw.h"
#include "tests/fsdp/models.h"
#include "tests/testing.h"
#include "train/train_step.h"

namespace moegrad::training::loss_weights_test {
namespace {

using namespace test;

MicroBatch batch_of(const std::vector<std::int64_t>& targets,
                    const std::vector<std::int64_t>& lengths) {
  std::vector<std::int64_t> tokens;
  for (std::size_t i = 0; i < targets.size(); ++i) tokens.push_back(static_cast<std::int64_t>(i));
  const auto count = std::ssize(targets);
  return {.tokens = Tensor::from(tokens, {count}),
          .targets = Tensor::from(targets, {count}),
          .documents = Documents::of_lengths(lengths)};
}

TEST(LossWeights, DependOnTheTargetsOfADocument) {
  const auto batch = batch_of({5, 6, -100, 1, -100, -100, -100, -100, -100}, {3, 0, 4, 2});
  const double root = 1 / std::sqrt(2.0);
  const auto expect = [&](LossWeights weights, double first, double sum) {
    const Tensor expected = Tensor::from<double>({first, first, 0, 1, 0, 0, 0, 0, 0}, {9});
    EXPECT_TRUE(bitwise_equal(target_weights(weights, batch, Dtype::kFloat64), expected));
    EXPECT_TRUE(bitwise_equal(target_weights(weights, batch, Dtype::kFloat32),
                              to_dtype(expected, Dtype::kFloat32)));
    EXPECT_EQ(sum_of_target_weights(weights, batch), sum);
  };
  expect(LossWeights::kToken, 1, 3);
  expect(LossWeights::kSequence, 0.5, 2);
  expect(LossWeights::kSqrt, root, 2 * root + 1);
  EXPECT_EQ(sum_of_target_weights(LossWeights::kSqrt, no_tokens()), 0);
  EXPECT_EQ(message_of<ValueError>([] {
              target_weights(LossWeights::kSqrt, batch_of({1, 2}, {1}), Dtype::kFloat32);
            }),
            "target_weights: documents must have the 2 tokens of the targets, got 1");
}

// Two micro-batches of documents with 6, 2, 1 and with 0, 4 and 7 targets.
std::vector<MicroBatch> two_batches() {
  std::vector<MicroBatch> batches;
  for (const auto& targets : {std::vector<std::int64_t>{3, 1, 4, 1, 5, 9, 2, 6, -100, 5, -100},
                              std::vector<std::int64_t>{-100, 2, 7, 1, 8, 2, 8, 1, 8, 2, 8, 4}}) {
    const bool first = batches.empty();
    batches.push_back(batch_of(
        targets, first ? std::vector<std::int64_t>{6, 3, 2} : std::vector<std::int64_t>{1, 4, 7}));
  }
  return batches;
}

// Mean of -log p over documents, in which a document counts as the sum of its weights.
double expected_ce(models::CausalLM& model, LossWeights weights) {
  double sum = 0, total = 0;
  for (const auto& batch : two_batches()) {
    const Tensor logits = model(batch.tokens, batch.documents).logits.detach();
    const auto& offsets = batch.documents.offsets();
    for (std::size_t d = 0; d + 1 < offsets.size(); ++d) {
      const auto count = offsets[d + 1] - offsets[d];
      const Tensor targets = ops::narrow(batch.targets, 0, offsets[d], count);
      const auto n = static_cast<double>(ops::count_targets(targets));
      if (n == 0) continue;
      const double mean =
          ops::cross_entropy(ops::narrow(logits, 0, offsets[d], count), targets).item();
      const double weight = weights == LossWeights::kToken      ? n
                            : weights == LossWeights::kSequence ? 1
                                                                : std::sqrt(n);
      sum += weight * mean;
      total += weight;
    }
  }
  return sum / total;
}

struct Result {
  double loss, ce, grad_norm;
  bool operator==(const Result&) const = default;
};

Result step(const ParallelDims& dims, LossWeights weights, bool linear,
            double* expected = nullptr) {
  Result result{};
  launch(dims.ranks(), [&](RankContext& context) {
    models::CausalLM model(sharded_toy_config(), 1);
    if (expected != nullptr) *expected = expected_ce(model, weights);
    fsdp::StepPlan plan(shard_model(model, make_meshes(context.group(), dims), {}), 2);
    optim::AdamW optimizer(model.named_parameters(), {.lr = 1e-3});
    const auto done =
        train_step(model, plan, plan.own(two_batches()),
                   {.linear_cross_entropy = linear, .loss_weights = weights}, optimizer);
    if (context.rank() == 0) result = {done.loss, done.ce, done.grad_norm};
  });
  return result;
}

TEST(LossWeights, MakeTheMeanOfAStepOverAllMicroBatchesAndRanks) {
  std::vector<double> losses;
  for (const auto weights : {LossWeights::kToken, LossWeights::kSequence, LossWeights::kSqrt}) {
    double expected = 0;
    const auto one = step({}, weights, false, &expected);
    EXPECT_NEAR(one.ce, expected, 1e-5);
    EXPECT_EQ(step({}, weights, true), one);
    EXPECT_EQ(step({.dp_shard = 2}, weights, false), one);
    EXPECT_EQ(step({.dp_shard = 2, .ep = 2}, weights, true), one);
    losses.push_back(one.ce);
  }
  EXPECT_NE(losses[0], losses[1]);
  EXPECT_NE(losses[0], losses[2]);
  EXPECT_NE(losses[1], losses[2]);
}

TEST(LossWeights, RefuseASumThatIsNotPositive) {
  launch(1, [](RankContext&) {
    models::CausalLM model(sharded_toy_config(), 1);
    const auto batch = two_batches()[0];
    const auto output = model(batch.tokens, batch.documents);
    EXPECT_EQ(message_of<ValueError>([&] {
                models::causal_lm_loss(output, batch.targets, 9, 0, {},
                                       {.of_targets = Tensor::ones({11}), .total = 0});
              }),
              "causal_lm_loss: weights.total must be positive, got 0");
  });
}

}  // namespace
}  // namespace moegrad::training::loss_weights_test
