// SPDX-License-Identifier: Apache-2.0
// A step whose micro-batches run in turns, node by node, with one backward for each pair: the bits
// of one micro-batch after the other, whatever the ranks.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "framework/autograd/checkpoint.h"
#include "framework/autograd/micro_batch.h"
#include "framework/autograd/weight_use.h"
#include "framework/distributed/gather_shards.h"
#include "framework/runtime/grad_mode.h"
#include "fsdp/fully_shard.h"
#include "fsdp/step_plan.h"
#include "models/causal_lm/loss.h"
#include "nn/recompute.h"
#include "ops/elementwise.h"
#include "ops/reduce.h"
#include "tests/fsdp/conformance/event_log.h"
#include "tests/fsdp/conformance/models.h"
#include "tests/fsdp/models.h"

namespace moegrad::interleaved_test {
namespace {

using models::CausalLM;
using models::DecoderLayer;
using namespace test;
using fsdp::Accumulation;
using fsdp::StepPlan;
using fsdp::Turn;
using training::MicroBatch;

constexpr std::int64_t kMicroBatches = 16, kTokens = 16;

/// Qwen3-MoE with tied word embeddings, run layer by layer, or each mixture layer node by node, for
/// as many micro-batches as there are at a time.
class NodeByNode final : public nn::Callable<NodeByNode> {
 public:
  struct Output {
    std::vector<CausalLM::Output> of_micro_batches;
    friend void for_each_tensor(Output& output, const nn::TensorVisitor& visit) {
      for (auto& one : output.of_micro_batches) for_each_tensor(one, visit);
    }
  };

  /// `numbered_uses`: the head is a use of its own of the tied weight.
  NodeByNode(const models::CausalLMConfig& config, bool by_nodes, bool numbered_uses)
      : by_nodes_(by_nodes), numbered_uses_(numbered_uses), whole_(config, 3) {
    register_module("whole", whole_);
  }

  /// Token ids of each micro-batch, and the number of each for MicroBatchGuard.
  Output forward(const TensorList& tokens, const std::vector<int>& numbers) {
    const auto context = test::context_of(whole_.config(), {7, kTokens - 7});
    Output output;
    output.of_micro_batches.resize(tokens.size());
    const auto for_each = [&](const auto& node) {
      for (std::size_t j = 0; j < tokens.size(); ++j) {
        const MicroBatchGuard guard(numbers[j]);
        node(j);
      }
    };
    TensorList hidden(tokens.size());
    for_each([&](std::size_t j) { hidden[j] = part<nn::Embedding>("embed_tokens")(tokens[j]); });
    for (auto& layer : whole_.layers()) {
      std::vector<DecoderLayer::Output> results(tokens.size());
      if (by_nodes_ && layer.is_moe()) {
        std::vector<DecoderLayer::AttentionOutput> attended(tokens.size());
        std::vector<nn::DispatchedRows> dispatched(tokens.size());
        TensorList rows(tokens.size());
        for_each([&](std::size_t j) {
          attended[j] = layer.call_method(&DecoderLayer::attend, hidden[j], context, Tensor());
        });
        for_each([&](std::size_t j) {
          dispatched[j] = layer.call_method(&DecoderLayer::dispatch, attended[j]);
        });
        for_each([&](std::size_t j) {
          rows[j] = layer.call_method(&DecoderLayer::experts, dispatched[j]);
        });
        for_each([&](std::size_t j) {
          results[j] =
              layer.call_method(&DecoderLayer::combine, rows[j], dispatched[j], attended[j]);
        });
      } else {
        for_each([&](std::size_t j) { results[j] = layer(hidden[j], context); });
      }
      for (std::size_t j = 0; j < tokens.size(); ++j) {
        hidden[j] = results[j].hidden;
        auto& one = output.of_micro_batches[j];
        if (!layer.is_moe()) continue;
        one.router_logits.push_back(results[j].router_logits);
        one.expert_indices.push_back(results[j].expert_indices);
        one.tokens_per_expert.push_back(results[j].tokens_per_expert);
      }
    }
    for_each([&](std::size_t j) {
      const Tensor normed = part<nn::RMSNorm>("model.norm")(hidden[j]);
      const WeightUseGuard use(numbered_uses_ ? 1 : 0);
      output.of_micro_batches[j].logits = part<nn::Linear>("lm_head")(normed);
    });
    return output;
  }

  CausalLM& whole() { return whole_; }

 private:
  template <class M>
  M& part(std::string_view name) {
    for (const auto& [path, module] : whole_.named_modules()) {
      if (path.ends_with(name)) return dynamic_cast<M&>(*module);
    }
    throw Error("no such part");
  }

  bool by_nodes_, numbered_uses_;
  CausalLM whole_;
};

enum class Schedule { kOneByOne, kInTurns, kWithoutGuards };
enum class Swapped { kNothing, kMembersOfTwoPairs, kTwoPairs };

struct Way {
  ParallelDims ranks = {};
  Accumulation accumulation = Accumulation::kReducePairs;
  Schedule schedule = Schedule::kInTurns;
  bool by_nodes = true;
  bool recompute_layers = false;  // as wholes; they then run as such
  bool recompute_experts = false;
  bool units_for_experts = false;  // of fully_shard
  bool numbered_uses = true;       // of the tied weight
  bool narrow = false;             // bfloat16 on the wire, float32 in reductions
  Swapped swapped = Swapped::kNothing;

  friend std::ostream& operator<<(std::ostream& out, const Way& way) {
    return out << to_string(way.ranks) << ", accumulation " << static_cast<int>(way.accumulation)
               << ", schedule " << static_cast<int>(way.schedule) << ", nodes " << way.by_nodes
               << ", recomputed " << way.recompute_layers << way.recompute_experts
               << ", units for experts " << way.units_for_experts << ", numbered uses "
               << way.numbered_uses << ", narrow " << way.narrow;
  }
};

void backward(StepPlan& plan, NodeByNode& model, const std::vector<MicroBatch>& batches,
              std::span<const Turn> turns, Schedule schedule) {
  std::vector<int> numbers(turns.size());
  for (std::size_t j = 0; j < turns.size(); ++j) numbers[j] = static_cast<int>(j);
  if (schedule == Schedule::kWithoutGuards) std::ranges::fill(numbers, 0);
  TensorList tokens, objectives;
  for (const auto& turn : turns) {
    tokens.push_back(batches[static_cast<std::size_t>(turn.index)].tokens);
  }
  const auto output = model(tokens, numbers);
  for (std::size_t j = 0; j < turns.size(); ++j) {
    const MicroBatchGuard guard(numbers[j]);
    const auto& batch = batches[static_cast<std::size_t>(turns[j].index)];
    objectives.push_back(models::causal_lm_loss(output.of_micro_batches[j], batch.targets,
                                                kMicroBatches * kTokens, 0.01)
                             .objective);
  }
  if (schedule == Schedule::kWithoutGuards) {
    (objectives[0] + objectives[1]).backward();  // the plan refuses them
  } else {
    plan.backward(turns, objectives);
  }
}

/// The gradients of one step, whole, on rank 0.
TensorList gradients(const Way& way) {
  TensorList result;
  launch(way.ranks.ranks(), [&](RankContext& context) {
    auto config = test::sharded_toy_config();
    config.tie_word_embeddings = true;
    NodeByNode model(config, way.by_nodes, way.numbered_uses);
    const auto is_experts = [](std::string_view path) { return path.ends_with("mlp.experts"); };
    if (way.recompute_experts) nn::recompute(model, is_experts);
    if (way.recompute_layers) training::recompute_layers(model.whole(), config.num_hidden_layers);
    const auto mesh = test::fsdp_mesh(context.group(), way.ranks);
    fsdp::Policy policy;
    if (way.narrow) {
      policy.mixed_precision = {.wire_dtype = Dtype::kBFloat16, .reduce_dtype = Dtype::kFloat32};
    }
    for (const auto& [path, module] : model.named_modules()) {
      if (way.units_for_experts && is_experts(path)) fsdp::fully_shard(*module, mesh, policy);
    }
    for (auto& layer : model.whole().layers()) fsdp::fully_shard(layer, mesh, policy);
    auto& state = fsdp::fully_shard(model, mesh, policy);
    auto batches = test::toy_batches(0, kMicroBatches, config.vocab_size);
    if (way.swapped == Swapped::kMembersOfTwoPairs) std::swap(batches[1], batches[2]);
    if (way.swapped == Swapped::kTwoPairs) {
      for (std::size_t j : {0, 1}) std::swap(batches[j], batches[4 + j]);
    }
    StepPlan plan(state, kMicroBatches, way.accumulation);
    const std::size_t at_a_time = way.schedule == Schedule::kOneByOne ? 1 : 2;
    for (std::size_t i = 0; i < plan.turns().size(); i += at_a_time) {
      backward(plan, model, batches, plan.turns().subspan(i, at_a_time), way.schedule);
    }
    for (const auto& [name, parameter] : model.named_parameters()) {
      const Tensor grad = parameter.grad();
      const Tensor whole = gather_shards(grad, *parameter.shard_spec());
      if (context.rank() == 0) result.push_back(whole);
    }
  });
  return result;
}

bool equal(const TensorList& a, const TensorList& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!bitwise_equal(a[i], b[i])) return false;
  }
  return !a.empty() && a.size() == b.size();
}

const TensorList& one_by_one_on_one_rank(bool narrow) {
  static const TensorList wide = gradients({.schedule = Schedule::kOneByOne, .by_nodes = false});
  static const TensorList rounded =
      gradients({.schedule = Schedule::kOneByOne, .by_nodes = false, .narrow = true});
  return narrow ? rounded : wide;
}

/// A weight whose two uses are added within the micro-batch.
const TensorList& with_uses_added_first() {
  static const TensorList added =
      gradients({.schedule = Schedule::kOneByOne, .by_nodes = false, .numbered_uses = false});
  return added;
}

TEST(Interleaved, PairsGiveTheBitsOfOneMicroBatchAfterTheOther) {
  for (const ParallelDims ranks : {ParallelDims{1, 1}, {1, 2}, {2, 1}, {1, 4}, {2, 2}}) {
    for (const auto accumulation : {Accumulation::kReducePairs, Accumulation::kKeepUntilLast}) {
      for (const bool narrow : {false, true}) {
        Way way = {.ranks = ranks, .accumulation = accumulation, .narrow = narrow};
        const auto expect_equal = [&] {
          EXPECT_TRUE(equal(gradients(way), one_by_one_on_one_rank(narrow))) << way;
        };
        expect_equal();
        way.recompute_experts = true;
        expect_equal();
        way.recompute_experts = way.by_nodes = false;
        way.recompute_layers = true;
        expect_equal();
        way.units_for_experts = true;
        expect_equal();
      }
    }
  }
}

// A layer that runs as nodes is one leaf of the sum for each micro-batch all the same.
TEST(Interleaved, NodesOfOneMicroBatchAfterTheOtherGiveTheBitsOfLayers) {
  for (const ParallelDims ranks : {ParallelDims{1, 1}, {1, 2}, {2, 2}}) {
    for (const auto accumulation : {Accumulation::kKeepUntilLast, Accumulation::kReduceEach,
                                    Accumulation::kScatterEach, Accumulation::kReducePairs}) {
      const Way way = {
          .ranks = ranks, .accumulation = accumulation, .schedule = Schedule::kOneByOne};
      EXPECT_TRUE(equal(gradients(way), one_by_one_on_one_rank(false))) << way;
    }
  }
}

TEST(Interleaved, OtherMembersOtherPairsAndNoGuardsGiveOtherBits) {
  const auto& expected = one_by_one_on_one_rank(false);
  const auto& added_first = with_uses_added_first();
  EXPECT_FALSE(equal(added_first, expected));
  for (const ParallelDims ranks : {ParallelDims{1, 1}, {1, 2}, {1, 4}}) {
    for (const auto swapped : {Swapped::kMembersOfTwoPairs, Swapped::kTwoPairs}) {
      EXPECT_FALSE(equal(gradients({.ranks = ranks, .swapped = swapped}), expected));
    }
    Way way = {.ranks = ranks, .numbered_uses = false};
    EXPECT_TRUE(equal(gradients(way), added_first)) << way;
    way.schedule = Schedule::kWithoutGuards;
    EXPECT_FALSE(equal(gradients(way), added_first)) << way;
  }
}

// The layers of a pair are gathered once for all their nodes in backward, and reduced once.
TEST(Interleaved, APairIsReducedOnceAndGatheredOnceInBackward) {
  launch(2, [](RankContext& context) {
    NodeByNode model(test::sharded_toy_config(), true, false);
    const auto mesh = DeviceMesh::flat(context.group());
    for (auto& layer : model.whole().layers()) fsdp::fully_shard(layer, mesh);
    auto& state = fsdp::fully_shard(model, mesh);
    const auto batches = test::toy_batches(0, 4, model.whole().config().vocab_size);
    StepPlan plan(state, 4, Accumulation::kReducePairs);
    const auto log = test::log_events(state, {fsdp::Event::kGather, fsdp::Event::kReduce});
    const auto output = model({batches[0].tokens, batches[1].tokens}, {0, 1});
    TensorList objectives;
    for (std::size_t j : {0, 1}) {
      const MicroBatchGuard guard(static_cast<int>(j));
      objectives.push_back(ops::sum(output.of_micro_batches[j].logits));
    }
    log->take();
    plan.backward(plan.turns().first(2), objectives);
    const auto events = log->take();
    EXPECT_EQ(std::ranges::count(events, "reduce "), 1);  // the root, which is still gathered
    EXPECT_EQ(std::ranges::count(events, "gather "), 0);
    for (auto& layer : model.whole().layers()) {
      const auto& path = layer.extension<fsdp::State>()->path();
      EXPECT_EQ(std::ranges::count(events, "gather " + path), 1) << path;
      EXPECT_EQ(std::ranges::count(events, "reduce " + path), 1) << path;
    }
  });
}

/// All micro-batches of a step, two at a time or each by itself; `objective` is given the number of
/// one, and its place in the pair.
void run_step(StepPlan& plan, int micro_batches, bool in_pairs,
              const std::function<Tensor(int micro_batch, int place)>& objective) {
  for (int m = 0; m < micro_batches; m += in_pairs ? 2 : 1) {
    const auto turns = plan.turns().subspan(static_cast<std::size_t>(m));
    if (in_pairs) {
      plan.backward(turns.first(2), {objective(m, 0), objective(m + 1, 1)});
    } else {
      plan.backward(turns.front(), objective(m, 0));
    }
  }
}

/// x -> first -> last, which some micro-batches leave out.
class Optional final : public nn::Callable<Optional> {
 public:
  Optional() {
    register_module("first", first);
    register_module("last", last);
    test::init_random(*this);
  }
  Tensor forward(const Tensor& x, bool use_last) {
    const Tensor h = first(x);
    return use_last ? last(h) : h;
  }
  nn::Linear first{{.in_features = 4, .out_features = 4}},
      last{{.in_features = 4, .out_features = 4}};
};

Tensor objective_of(Optional& model, int micro_batch, bool use_last, int number) {
  const MicroBatchGuard guard(number);
  return ops::sum(model(
      test::randn({3, 4}, static_cast<std::uint64_t>(micro_batch), Dtype::kFloat32), use_last));
}

// A group that a micro-batch does not reach has a place in the tree for it all the same.
TEST(Interleaved, AGroupThatSomeMicroBatchesLeaveOut) {
  const auto gradients_of = [](bool in_pairs) {
    TensorList result;
    launch(1, [&](RankContext& context) {
      Optional model;
      const auto mesh = DeviceMesh::flat(context.group());
      fsdp::fully_shard(model.last, mesh);
      StepPlan plan(fsdp::fully_shard(model, mesh), 8);
      run_step(plan, 8, in_pairs,
               [&](int m, int place) { return objective_of(model, m, m != 1 && m != 4, place); });
      result = {model.first.weight().grad(), model.last.weight().grad()};
    });
    return result;
  };
  EXPECT_TRUE(equal(gradients_of(true), gradients_of(false)));
}

class Scale final : public nn::Callable<Scale> {
 public:
  Scale() { register_parameter("weight", weight); }
  Tensor forward(const Tensor& x) { return x * weight; }
  Tensor weight = test::randn({5}, 1, Dtype::kFloat32);
};

/// x w w, where the body of a checkpoint uses w when it runs again, but not the first time. So its
/// gradient comes in two pieces, the second after backward has left the module that has w.
class TwoPieces final : public nn::Callable<TwoPieces> {
 public:
  TwoPieces() { register_module("scale", scale); }
  Tensor forward(const Tensor& x) {
    const auto body = [this](const TensorList& in) -> TensorList {
      return {in[0] * (grad_enabled() ? scale.weight : scale.weight.detach())};
    };
    return scale(checkpoint(body, {x})[0]);
  }
  Scale scale;
};

TEST(Interleaved, NoPieceOfAGradientIsLost) {
  launch(1, [](RankContext& context) {
    const auto mesh = DeviceMesh::flat(context.group());
    const auto gradient = [&](bool in_pairs, bool of_its_own) {
      TwoPieces model;
      const fsdp::Policy policy = {.reshard_after_forward = false};
      if (of_its_own) fsdp::fully_shard(model.scale, mesh, policy);
      auto& state = fsdp::fully_shard(model, mesh, policy);
      state.set_reshard_after_backward(false);
      StepPlan plan(state, 4);
      run_step(plan, 4, in_pairs, [&](int m, int place) {
        const MicroBatchGuard guard(place);
        const auto seed = static_cast<std::uint64_t>(m);
        return ops::sum(model(test::randn({5}, seed, Dtype::kFloat32, true)));
      });
      return model.named_parameters()[0].tensor.grad();
    };
    // 2 w sum_m x_m
    const NoGradGuard no_grad;
    Tensor expected = Tensor::zeros({5});
    for (std::uint64_t m = 0; m < 4; ++m)
      expected = expected + test::randn({5}, m, Dtype::kFloat32);
    expected = ops::mul(expected * test::randn({5}, 1, Dtype::kFloat32), 2);
    const GradModeGuard tape_on(true);
    for (const bool of_its_own : {false, true}) {
      for (const bool in_pairs : {false, true}) {
        EXPECT_TRUE(test::all_close(gradient(in_pairs, of_its_own), expected, 1e-5, 1e-6))
            << in_pairs << of_its_own;
      }
    }
  });
}

// What one backward through a pair has left is not added to the next one's.
TEST(Interleaved, ABackwardThatFailedLeavesNothing) {
  launch(1, [&](RankContext& context) {
    Optional model;
    auto& state = fsdp::fully_shard(model, DeviceMesh::flat(context.group()));
    StepPlan plan(state, 2, Accumulation::kReducePairs);
    int left = 0;  // the second time all gradients have been added
    auto handle = model.first.register_backward_hook(
        [&](nn::Module& /*layer*/) { check(++left < 2, "planted"); });
    EXPECT_THROW(plan.backward(plan.turns(),
                               {objective_of(model, 0, true, 0), objective_of(model, 1, true, 1)}),
                 Error);
    handle.remove();
    state.reset_iter_state();
    plan.backward(plan.turns(),
                  {objective_of(model, 0, false, 0), objective_of(model, 1, false, 1)});
    EXPECT_TRUE(model.first.weight().grad().defined());
    EXPECT_FALSE(model.last.weight().grad().defined());
  });
}

TEST(Interleaved, BackwardRefusesWhatIsNotOnePair) {
  launch(1, [](RankContext& context) {
    CausalLM model(test::sharded_toy_config(), 1);
    auto& state = training::shard_model(model, DeviceMesh::flat(context.group()), {});
    const auto batches = test::toy_batches(0, 1, model.config().vocab_size);
    const auto objective = [&](int number) {
      const MicroBatchGuard guard(number);
      return ops::sum(model(batches[0].tokens).logits);
    };
    const auto message = [&](StepPlan& plan, std::size_t first, const TensorList& objectives) {
      return message_of<Error>([&] {
        plan.backward(plan.turns().subspan(first, std::max<std::size_t>(1, objectives.size())),
                      objectives);
      });
    };
    const TensorList pair = {objective(0), objective(1)};
    StepPlan pairs(state, 4, Accumulation::kReducePairs);
    EXPECT_EQ(message(pairs, 0, {}),
              "step plan: backward must have an objective for each turn, got 0 for 1 turns");
    EXPECT_EQ(message(pairs, 0, {objective(1), objective(0)}),
              "step plan: objective 0 must be computed under MicroBatchGuard(0), got one of "
              "MicroBatchGuard(1)");
    EXPECT_EQ(message(pairs, 0, {objective(0), objective(0)}),
              "step plan: objective 1 must be computed under MicroBatchGuard(1), got one of "
              "MicroBatchGuard(0)");
    EXPECT_EQ(message(pairs, 0, {objective(0), objective(1), objective(2)}),
              "step plan: under kReducePairs a backward for several turns must be for one pair, "
              "got 3 turns after 0");
    pairs.backward(pairs.turns()[0], objective(0));
    EXPECT_EQ(message(pairs, 1, pair),
              "step plan: under kReducePairs a backward for several turns must be for one pair, "
              "got 2 turns after 1");
    for (const auto each : {Accumulation::kReduceEach, Accumulation::kScatterEach}) {
      StepPlan plan(state, 4, each);
      EXPECT_EQ(message(plan, 0, pair),
                "step plan: a backward for several turns must be under kKeepUntilLast or "
                "kReducePairs; otherwise the gradients of each turn are reduced by themselves");
    }
    // Any number may follow each other where gradients are kept.
    StepPlan kept(state, 4);
    kept.backward(kept.turns().subspan(0, 3), {objective(0), objective(1), objective(2)});
    kept.backward(kept.turns()[3], objective(0));
  });
}

}  // namespace
}  // namespace moegrad::interleaved_test
