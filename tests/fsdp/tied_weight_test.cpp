// SPDX-License-Identifier: Apache-2.0
// An embedding and a head that share their weight, sharded: each use is summed over micro-batches
// and ranks, and the two sums are added last (Note [Uses of a tied weight]).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "framework/autograd/checkpoint.h"
#include "framework/autograd/micro_batch.h"
#include "framework/autograd/weight_use.h"
#include "framework/distributed/gather_shards.h"
#include "framework/runtime/rank_context.h"
#include "fsdp/step_plan.h"
#include "nn/embedding.h"
#include "tests/fsdp/conformance/parity.h"
#include "tests/fsdp/conformance/sums.h"
#include "tests/fsdp/models.h"

namespace moegrad::fsdp::tied_weight_test {
namespace {

using namespace test;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr int kMicroBatches = 8;
constexpr std::int64_t kVocabulary = 11, kDim = 6;  // 2 and 4 ranks do not divide the rows

Tensor weight() { return randn({kVocabulary, kDim}, 1, Dtype::kFloat32, /*requires_grad=*/true); }
Tensor tokens(int m) { return leaf_tokens(5, kVocabulary, 0, m); }

enum class Recomputed { kNothing, kHead, kBoth };

class Tied final : public nn::Callable<Tied> {
 public:
  explicit Tied(Recomputed recomputed = Recomputed::kNothing)
      : embedding(weight()), head(embedding.weight()), recomputed_(recomputed) {
    register_module("embedding", embedding);
    register_module("head", head);
  }
  Tensor forward(const Tensor& ids) {
    if (recomputed_ != Recomputed::kBoth) return logits(ids);
    return checkpoint([=, this](const TensorList&) -> TensorList { return {logits(ids)}; }, {})[0];
  }
  Tensor embed(const Tensor& ids) { return ops::tanh(embedding(ids)); }
  Tensor project(const Tensor& hidden) {
    const WeightUseGuard use(1);
    return head(hidden);
  }

  nn::Embedding embedding;
  nn::Linear head;

 private:
  Tensor logits(const Tensor& ids) {
    const Tensor hidden = embed(ids);
    if (recomputed_ != Recomputed::kHead) return project(hidden);
    const WeightUseGuard use(1);
    return checkpoint([this](const TensorList& in) -> TensorList { return {head(in[0])}; },
                      {hidden})[0];
  }
  Recomputed recomputed_;
};

/// What each use brings in each micro-batch, [uses][micro-batches]: found with a weight for each.
const std::vector<TensorList>& terms() {
  static const auto found = [] {
    std::vector<TensorList> of_uses(2);
    for (int m = 0; m < kMicroBatches; ++m) {
      nn::Embedding embedding(weight());
      nn::Linear head(weight());
      square_loss(head(ops::tanh(embedding(tokens(m))))).backward();
      of_uses[0].push_back(embedding.weight().grad());
      of_uses[1].push_back(head.weight().grad());
    }
    return of_uses;
  }();
  return found;
}

Tensor term(int use, int m) {
  return terms()[static_cast<std::size_t>(use)][static_cast<std::size_t>(m)];
}

Tensor sum(const Tensor& a, const Tensor& b) {
  Tensor both = clone(a);
  add_(both, b);
  return both;
}

Tensor uses_added_last(int micro_batches = kMicroBatches) {
  const auto of_use = [&](int use) {
    return tree_sum(micro_batches, [=](int m) { return term(use, m); });
  };
  return sum(of_use(0), of_use(1));
}
Tensor uses_added_first() {
  return tree_sum(kMicroBatches, [](int m) { return sum(term(0, m), term(1, m)); });
}

struct Way {
  ParallelDims ranks = {};
  Accumulation accumulation = Accumulation::kKeepUntilLast;
  Recomputed recomputed = Recomputed::kNothing;
  bool in_pairs = false;  // one backward for two micro-batches
  std::optional<Dtype> reduce_dtype = {};

  friend std::ostream& operator<<(std::ostream& out, const Way& way) {
    return out << to_string(way.ranks) << ", accumulation " << static_cast<int>(way.accumulation)
               << ", recomputed " << static_cast<int>(way.recomputed) << ", pairs " << way.in_pairs;
  }
};

std::vector<Way> all_ways() {
  std::vector<Way> ways;
  for (const ParallelDims ranks : {ParallelDims{1, 1}, {1, 2}, {2, 1}, {1, 4}, {2, 2}, {4, 1}}) {
    for (const auto accumulation : {Accumulation::kKeepUntilLast, Accumulation::kReduceEach,
                                    Accumulation::kScatterEach, Accumulation::kReducePairs}) {
      for (const auto recomputed : {Recomputed::kNothing, Recomputed::kHead, Recomputed::kBoth}) {
        ways.push_back({ranks, accumulation, recomputed});
        const bool pairs = accumulation == Accumulation::kKeepUntilLast ||
                           accumulation == Accumulation::kReducePairs;
        if (pairs) ways.push_back({ranks, accumulation, recomputed, /*in_pairs=*/true});
      }
    }
  }
  return ways;
}

void run_step(StepPlan& plan, Tied& model, bool in_pairs = false) {
  const std::size_t at_a_time = in_pairs ? 2 : 1;
  for (std::size_t i = 0; i < plan.turns().size(); i += at_a_time) {
    const auto turns = plan.turns().subspan(i, at_a_time);
    TensorList objectives;
    for (std::size_t j = 0; j < at_a_time; ++j) {
      const MicroBatchGuard guard(static_cast<int>(j));
      objectives.push_back(square_loss(model(tokens(static_cast<int>(turns[j].index)))));
    }
    plan.backward(turns, objectives);
  }
}

Tensor whole_gradient(const nn::Module& model) {
  const Tensor shard = model.named_parameters()[0].tensor;
  return gather_shards(shard.grad(), *shard.shard_spec());  // on rank 0
}

/// Runs `body` on ranks of a sharded model; the gradient that it leaves, whole.
using Body = std::function<void(Tied& model, State& state, RankContext& rank)>;
Tensor gradient_after(const ParallelDims& ranks, const Policy& policy, Recomputed recomputed,
                      const Body& body) {
  Tensor result;
  launch(ranks.ranks(), [&](RankContext& rank) {
    Tied model(recomputed);
    auto& state = fully_shard(model, fsdp_mesh(rank.group(), ranks), policy);
    body(model, state, rank);
    const Tensor whole = whole_gradient(model);
    if (rank.rank() == 0) result = whole;
  });
  return result;
}

Tensor gradient(const Way& way) {
  return gradient_after(way.ranks, {.mixed_precision = {.reduce_dtype = way.reduce_dtype}},
                        way.recomputed, [&](Tied& model, State& state, RankContext&) {
                          StepPlan plan(state, kMicroBatches, way.accumulation);
                          run_step(plan, model, way.in_pairs);
                        });
}

TEST(ShardedTiedWeight, SumsEachUseOverMicroBatchesAndRanksAndAddsTheSums) {
  EXPECT_FALSE(bitwise_equal(uses_added_last(), uses_added_first()));
  for (const auto& way : all_ways()) {
    EXPECT_TRUE(bitwise_equal(gradient(way), uses_added_last())) << way;
  }
}

TEST(ShardedTiedWeight, RoundsTheSumOfEachUseOnAnyMesh) {
  const Tensor one = gradient({.reduce_dtype = Dtype::kBFloat16});
  EXPECT_FALSE(bitwise_equal(one, uses_added_last()));
  for (auto way : all_ways()) {
    if (way.recomputed != Recomputed::kNothing) continue;
    way.reduce_dtype = Dtype::kBFloat16;
    EXPECT_TRUE(bitwise_equal(gradient(way), one)) << way;
  }
}

// The hook stands on the gathered weight.
TEST(ShardedTiedWeight, GivesAHookTheWholeGradientOfEachMicroBatch) {
  for (const ParallelDims ranks : {ParallelDims{1, 1}, {1, 2}, {2, 2}}) {
    const auto with_hook = gradient_after(ranks, {}, Recomputed::kNothing,
                                          [&](Tied& model, State& state, RankContext&) {
                                            int called = 0;
                                            state.unshard();
                                            model.head.weight().register_hook([&](const Tensor&) {
                                              ++called;
                                              return Tensor();
                                            });
                                            StepPlan plan(state, kMicroBatches);
                                            run_step(plan, model);
                                            EXPECT_EQ(called, kMicroBatches / ranks.ranks());
                                          });
    EXPECT_TRUE(bitwise_equal(with_hook, uses_added_first())) << to_string(ranks);
  }
}

TEST(ShardedTiedWeight, GoesOnOverStepsUntilItsGradientIsCleared) {
  for (const auto accumulation : {Accumulation::kReduceEach, Accumulation::kScatterEach}) {
    for (const ParallelDims ranks : {ParallelDims{1, 1}, {1, 2}, {2, 2}}) {
      // Half of the micro-batches, then the other half; then all of them once more.
      const auto in_two_steps = [&](bool cleared) {
        return gradient_after(ranks, {}, Recomputed::kNothing,
                              [&](Tied& model, State& state, RankContext&) {
                                StepPlan half(state, kMicroBatches / 2, accumulation);
                                for (const int first : {0, kMicroBatches / 2}) {
                                  for (const auto& turn : half.turns()) {
                                    const auto index = first + static_cast<int>(turn.index);
                                    half.backward(turn, square_loss(model(tokens(index))));
                                  }
                                }
                                if (!cleared) return;
                                model.zero_grad();
                                StepPlan plan(state, kMicroBatches, accumulation);
                                run_step(plan, model);
                              });
      };
      EXPECT_TRUE(bitwise_equal(in_two_steps(false), uses_added_last())) << to_string(ranks);
      EXPECT_TRUE(bitwise_equal(in_two_steps(true), uses_added_last())) << to_string(ranks);
    }
  }
}

TEST(ShardedTiedWeight, ShowsWhatIsKeptAsTheSumOfItsUses) {
  launch(2, [](RankContext& rank) {
    Tied model;
    auto& state = fully_shard(model, DeviceMesh::flat(rank.group()));
    state.set_requires_gradient_sync(false);
    for (const int m : {0, 1}) square_loss(model(tokens(m))).backward();
    const auto pending = state.get_pending_gradients();
    ASSERT_EQ(pending.size(), 1U);
    EXPECT_TRUE(bitwise_equal(pending[0].tensor, uses_added_last(2)));
    model.zero_grad();
    EXPECT_TRUE(state.get_pending_gradients().empty());
  });
}

TEST(ShardedTiedWeight, ThatIsFrozenGetsNothing) {
  launch(2, [](RankContext& rank) {
    for (const bool zero_fill : {false, true}) {
      Tied model;
      Tensor frozen = model.head.weight();
      frozen.set_requires_grad(false);
      fully_shard(model, DeviceMesh::flat(rank.group()))
          .set_reduce_scatter_unused_params(zero_fill);
      const Tensor hidden = randn({5, kDim}, 3, Dtype::kFloat32, /*requires_grad=*/true);
      square_loss(model.call_method(&Tied::project, hidden)).backward();
      EXPECT_TRUE(hidden.grad().defined());
      EXPECT_FALSE(model.named_parameters()[0].tensor.grad().defined());
    }
  });
}

// --- ranks that use it differently

/// Rank 0 has both uses; others have the embedding alone, the head alone, and none.
Tensor loss_of(Tied& model, int rank) {
  const auto run = [](Tied& tied, const Tensor& ids, int which) {
    if (which == 0) return square_loss(tied.forward(ids));
    if (which == 1) return square_loss(tied.embed(ids));
    const Tensor hidden = randn({5, kDim}, 9, Dtype::kFloat32, /*requires_grad=*/true);
    return which == 2 ? square_loss(tied.project(hidden)) : ops::sum(hidden);
  };
  return model.call_method(run, tokens(rank), rank);
}

TEST(ShardedTiedWeight, CountsTheUsesThatARankLeavesOutAsZeros) {
  std::vector<TensorList> found;  // [ranks][uses]
  for (int rank = 0; rank < 4; ++rank) {
    Tied model;
    GradientSum gradients({model.embedding.weight()});
    loss_of(model, rank).backward();
    gradients.push();
    auto& own = found.emplace_back(gradients.take_uses()[0]);
    own.resize(2);
    for (auto& gradient : own) {
      if (!gradient.defined()) gradient = Tensor::zeros({kVocabulary, kDim});
    }
  }
  for (const ParallelDims ranks : {ParallelDims{1, 4}, {2, 2}, {4, 1}}) {
    const auto of_use = [&](std::size_t use) {
      return tree_sum(4, [&](int r) { return found[static_cast<std::size_t>(r)][use]; });
    };
    const Tensor whole = gradient_after(ranks, {}, Recomputed::kNothing,
                                        [](Tied& model, State& state, RankContext& rank) {
                                          state.set_reduce_scatter_unused_params(true);
                                          loss_of(model, rank.rank()).backward();
                                        });
    EXPECT_TRUE(bitwise_equal(whole, sum(of_use(0), of_use(1)))) << to_string(ranks);
  }
}

TEST(ShardedTiedWeight, WhoseUsesRanksDoNotAgreeOnFailsOnAllNamingThem) {
  std::vector<std::string> messages(2);
  EXPECT_THROW(launch(2,
                      [&](RankContext& rank) {
                        Tied model;
                        fully_shard(model, DeviceMesh::flat(rank.group()));
                        try {
                          loss_of(model, 2 * rank.rank()).backward();
                        } catch (const CollectiveError& error) {
                          messages[static_cast<std::size_t>(rank.rank())] = error.what();
                          throw;
                        }
                      },
                      {.on_failure = [](const std::string&) {}}),
               CollectiveError);
  EXPECT_THAT(messages, Each(HasSubstr("(root) with use 1 of embedding.weight")));
  EXPECT_THAT(messages,
              Each(HasSubstr("(root) without embedding.weight with use 1 of embedding.weight")));
}

}  // namespace
}  // namespace moegrad::fsdp::tied_weight_test
