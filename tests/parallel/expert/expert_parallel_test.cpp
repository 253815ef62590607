// SPDX-License-Identifier: Apache-2.0
// What expert_parallel does to a model, alone and with fully_shard.
#include "parallel/expert/expert_parallel.h"

#include <bit>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "framework/distributed/parallel_dims.h"
#include "framework/runtime/arena.h"
#include "framework/runtime/rank_context.h"
#include "framework/tensor/meta.h"
#include "fsdp/fully_shard.h"
#include "nn/recompute.h"
#include "ops/elementwise.h"
#include "ops/reduce.h"
#include "tests/optim/every_optimizer.h"
#include "tests/parallel/expert/mixture_on_ranks.h"
#include "tests/parallel/expert/passing_group.h"
#include "tests/parallel/expert/two_mixtures.h"

namespace moegrad::parallel::expert_parallel_test {
namespace {

using namespace two_mixtures;
using namespace test;

struct Grid {
  ParallelDims dims;
  int ranks() const { return dims.ranks(); }
  friend std::ostream& operator<<(std::ostream& out, const Grid& grid) {
    return out << to_string(grid.dims);
  }
};

class Grids : public ::testing::TestWithParam<Grid> {};

// One rank runs the micro-batches one after the other.
TEST_P(Grids, TrainToTheBitsOfOneRank) {
  struct Case {
    std::string what;
    Dtype dtype = Dtype::kFloat32;
    fsdp::Policy policy = {};
    nn::ExpertWeights weights = nn::ExpertWeights::kPretransposed;
  };
  const std::vector<Case> cases = {
      {.what = "float32"},
      {.what = "float64, as in Hugging Face",
       .dtype = Dtype::kFloat64,
       .weights = nn::ExpertWeights::kHuggingFace},
      {.what = "parameters travel as bfloat16",
       .policy = {.mixed_precision = {.wire_dtype = Dtype::kBFloat16}}},
      {.what = "gradients are reduced as bfloat16",
       .policy = {.mixed_precision = {.reduce_dtype = Dtype::kBFloat16}}},
      {.what = "row-major", .policy = {.gathered_layout = Layout::kND}}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.what);
    Trained expected;
    launch(1, [&](RankContext& alone) {
      Net net(c.weights, c.dtype);
      nn::init_weights(net, 5, 0.3);
      shard(net, make_meshes(alone.group(), {}), c.policy);
      expected = train(net, alone, c.dtype);
    });
    launch(GetParam().ranks(), [&](RankContext& rank) {
      Net net(c.weights, c.dtype);
      nn::init_weights(net, 5, 0.3);
      const auto meshes = make_meshes(rank.group(), GetParam().dims);
      EXPECT_EQ(expert_parallel(net, meshes.expert), 2);
      shard(net, meshes, c.policy);
      const auto trained = train(net, rank, c.dtype);
      expect_the_bits_of(expected, trained);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(OnRanks, Grids,
                         ::testing::Values(Grid{{.dp_shard = 2, .ep = 2}},
                                           Grid{{.dp_shard = 4, .ep = 2}},
                                           Grid{{.dp_shard = 4, .ep = 4}},
                                           Grid{{.dp_shard = 8, .ep = 4}},
                                           Grid{{.dp_shard = 8, .ep = 8}},
                                           Grid{{.dp_replicate = 2, .dp_shard = 2, .ep = 2}},
                                           Grid{{.dp_replicate = 2, .dp_shard = 4, .ep = 2}}));

// Adafactor and Muon gather whole matrices, of which expert_parallel cuts as fully_shard does.
TEST(ExpertParallel, TrainsToTheBitsOfOneRankWithEveryOptimizer) {
  for (const auto& optimizer : test::every_optimizer()) {
    SCOPED_TRACE(optimizer.name);
    const auto train_on = [&](RankContext& rank, const ParallelDims& dims) {
      Net net;
      nn::init_weights(net, 5, 0.3);
      const auto meshes = make_meshes(rank.group(), dims);
      expert_parallel(net, meshes.expert);
      shard(net, meshes);
      return train(net, rank, Dtype::kFloat32, optimizer.make);
    };
    Trained expected;
    launch(1, [&](RankContext& alone) { expected = train_on(alone, {}); });
    for (const ParallelDims& dims :
         {ParallelDims{.dp_shard = 4, .ep = 2}, ParallelDims{.dp_shard = 2, .ep = 2},
          ParallelDims{.dp_replicate = 2, .dp_shard = 2, .ep = 2}}) {
      launch(dims.ranks(),
             [&](RankContext& rank) { expect_the_bits_of(expected, train_on(rank, dims)); });
    }
  }
}

// Whenever a queue of weight gradients is drained, with and without recomputation of the experts.
TEST(ExpertParallel, TrainsToTheBitsOfOneRankWithWeightGradientsThatWait) {
  for (const bool recompute : {false, true}) {
    const auto train_on = [&](RankContext& rank, const ParallelDims& dims, Drained drained) {
      Net net;
      nn::init_weights(net, 5, 0.3);
      if (recompute) {
        nn::recompute(net, [](std::string_view path) { return path.ends_with(".experts"); });
      }
      const auto meshes = make_meshes(rank.group(), dims);
      expert_parallel(net, meshes.expert);
      shard(net, meshes);
      return train(net, rank, Dtype::kFloat32, make_adamw, drained);
    };
    Trained expected;
    launch(1, [&](RankContext& alone) { expected = train_on(alone, {}, Drained::kNoQueue); });
    for (const ParallelDims& dims : {ParallelDims{}, ParallelDims{.dp_shard = 2, .ep = 2},
                                     ParallelDims{.dp_shard = 4, .ep = 2}}) {
      for (const auto drained : kDrained) {
        launch(dims.ranks(), [&](RankContext& rank) {
          expect_the_bits_of(expected, train_on(rank, dims, drained));
        });
      }
    }
  }
}

TEST(ExpertParallel, SumsNoMoreThanLog2OfItsSourcesPlusOnePartials) {
  for (const int ranks : {2, 4, 8}) {
    launch(ranks, [&](RankContext& rank) {
      const auto mixture = make_mixture(Dtype::kFloat32);
      expert_parallel(*mixture, expert_mesh(rank));
      const auto parameters = mixture->named_parameters();
      const auto bytes = [&](std::size_t i) { return parameters[i].tensor.storage().bytes(); };
      ASSERT_EQ(parameters[1].name, "experts.gate_up_proj");
      const Tensor x = randn({6, test::kMixtureHidden}, 1, Dtype::kFloat32);
      const Tensor hidden = (*mixture)(x).hidden;
      auto& arena = *rank.arena();
      arena.reset_peak();
      ops::sum(ops::square(hidden)).backward();
      // down_proj's gradient is there when the terms of gate_up_proj's are summed.
      const auto partials = std::bit_width(static_cast<unsigned>(ranks));
      EXPECT_EQ(arena.peak(MemoryTag::kGradients), partials * bytes(1) + bytes(2));
      EXPECT_EQ(arena.live()[MemoryTag::kGradients], bytes(0) + bytes(1) + bytes(2));
    });
  }
}

// Each collective is delayed at random on each rank.
TEST(ExpertParallel, HasTheSameBitsWhateverTheDelays) {
  const auto run = [](const ParallelDims& dims, const LaunchOptions& options) {
    Trained trained;
    launch(
        dims.ranks(),
        [&](RankContext& rank) {
          Net net;
          nn::init_weights(net, 5, 0.3);
          const auto meshes = make_meshes(rank.group(), dims);
          expert_parallel(net, meshes.expert);
          shard(net, meshes);
          auto own = train(net, rank, Dtype::kFloat32);
          if (rank.rank() == 0) trained = std::move(own);
        },
        options);
    return trained;
  };
  const auto expected = run({}, {});
  for (std::uint64_t seed = 1; seed <= (test::full_suite() ? 200 : 5); ++seed) {
    const auto trained = run({.dp_shard = 4, .ep = 4},
                             {.jitter = {.maximum = std::chrono::microseconds(300), .seed = seed}});
    EXPECT_EQ(trained.norms, expected.norms) << seed;
    for (std::size_t i = 0; i < expected.parameters.size(); ++i) {
      EXPECT_TRUE(bitwise_equal(trained.parameters[i].tensor, expected.parameters[i].tensor))
          << seed << ' ' << expected.parameters[i].name;
    }
  }
}

/// The bytes that the experts of a block have while they are gathered.
std::int64_t gathered_experts(const Net::Block& block) {
  std::int64_t bytes = 0;
  for (const auto& group : block.extension<fsdp::State>()->groups()) {
    for (const auto& param : group->params()) {
      if (param.layout.stacked.ndim() > 0) bytes += param.unsharded.storage().bytes();
    }
  }
  return bytes;
}

TEST(ExpertParallel, GathersItsPartOfTheExpertsAlone) {
  std::int64_t whole = 0;
  launch(1, [&](RankContext& rank) {
    Net net;
    shard(net, make_meshes(rank.group(), {}));
    whole = gathered_experts(*net.blocks()[0]);
  });
  for (const auto& dims :
       {ParallelDims{.dp_shard = 2, .ep = 2}, ParallelDims{.dp_shard = 4, .ep = 2},
        ParallelDims{.dp_shard = 4, .ep = 4}, ParallelDims{.dp_shard = 8, .ep = 8}}) {
    launch(dims.ranks(), [&](RankContext& rank) {
      Net net;
      const auto meshes = make_meshes(rank.group(), dims);
      expert_parallel(net, meshes.expert);
      shard(net, meshes);
      const auto& groups = net.blocks()[0]->extension<fsdp::State>()->groups();
      ASSERT_EQ(groups.size(), 2U);
      EXPECT_EQ(gathered_experts(*net.blocks()[0]) * dims.ep, whole);
      auto& arena = *rank.arena();
      net(randn({2, kHidden}, 1, Dtype::kFloat32));
      arena.reset_peak();
      const auto shards = arena.live()[MemoryTag::kParameters];
      groups[1]->unshard();
      EXPECT_EQ(arena.peak(MemoryTag::kParameters) - shards, whole / dims.ep);
      groups[1]->reshard();
    });
  }
}

/// Whether a mixture of so many experts trains in these bytes per rank.
bool trains_within(std::int64_t budget, const ParallelDims& dims, std::int64_t experts) {
  const auto body = [&](RankContext& rank) {
    rank.arena()->set_budget(budget);
    std::optional<nn::MoE> mixture;
    {
      const MetaGuard no_bytes;
      mixture.emplace(nn::MoE::Config{
          .hidden_size = 32, .intermediate_size = 32, .num_experts = experts, .top_k = 2});
    }
    const auto meshes = make_meshes(rank.group(), dims);
    expert_parallel(*mixture, meshes.expert);
    fsdp::fully_shard(*mixture, meshes.fsdp(), {.expert_mesh = meshes.expert_fsdp()});
    mixture->to_empty();
    nn::init_weights(*mixture, 5, 0.3);
    optim::AdamW optimizer(mixture->named_parameters(), {.lr = 0.05});
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      ops::sum(ops::square((*mixture)(randn({8, 32}, 1, Dtype::kFloat32)).hidden)).backward();
      optimizer.step();
    }
  };
  try {
    launch(dims.ranks(), body);
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("budget of"), std::string::npos) << error.what();
    return false;
  }
  return true;
}

TEST(ExpertParallel, HoldsMoreParametersInTheSameMemory) {
  constexpr std::int64_t kBudget = 4 << 20;
  const auto most_experts = [&](const ParallelDims& dims) {
    std::int64_t experts = 0;
    while (trains_within(kBudget, dims, experts + 8)) experts += 8;
    return experts;
  };
  const auto gathered = most_experts({}), divided = most_experts({.dp_shard = 4, .ep = 4});
  EXPECT_GT(gathered, 0);
  EXPECT_GE(2 * divided, 3 * gathered) << divided << " experts against " << gathered;
}

// Where the ranks of the expert group are all there are, nobody gathers experts. The copy-out makes
// their blocks all the same: once per step if they are kept between uses.
TEST(ExpertParallel, ReadsBlocksThatNobodyGathers) {
  launch(2, [](RankContext& rank) {
    Net net;
    nn::init_weights(net, 5, 0.3);
    const auto meshes = make_meshes(rank.group(), {.dp_shard = 2, .ep = 2});
    expert_parallel(net, meshes.expert);
    auto& state = shard(net, meshes, {.reshard_after_forward = false});
    state.set_reshard_after_backward(false);
    optim::AdamW optimizer(net.named_parameters(), {.lr = 0.05});
    auto& counters = rank.counters();
    for (int step = 0; step < 3; ++step) {
      const auto copy_outs = counters.nz_copy_outs.load();
      const auto packed = counters.packed_panels + counters.transposed_packs;
      for (int i = 0; i < 2; ++i) {
        const Tensor hidden = net(micro_batch(step, i, Dtype::kFloat32));
        const auto& experts = *net.blocks()[0]->extension<fsdp::State>()->groups()[1];
        EXPECT_EQ(experts.params()[0].unsharded.layout(), Layout::kNZ);
        ops::sum(ops::square(hidden)).backward();
      }
      optimizer.step();
      optimizer.zero_grad();
      EXPECT_EQ(counters.nz_copy_outs - copy_outs, 4);  // two matrices in each of two layers
      // For each micro-batch: two linear layers and two routers forward, and backward all but the
      // first layer, whose input needs no gradient. The experts would be more.
      EXPECT_EQ(counters.packed_panels + counters.transposed_packs - packed, 2 * 7);
      EXPECT_EQ(counters.nz_conversions, 0);
    }
  });
}

// One weight in two layers stays one.
TEST(ExpertParallel, DividesTiedExpertsOnce) {
  launch(2, [](RankContext& rank) {
    Net net;
    const auto slots = net.parameter_slots();
    const auto half = slots.size() / 2;  // of each of the two equal blocks
    for (std::size_t i = 0; i < half; ++i) {
      if (slots[i].layout.stacked.ndim() > 0) *slots[i + half].tensor = *slots[i].tensor;
    }
    EXPECT_EQ(expert_parallel(net, expert_mesh(rank)), 2);
    for (std::size_t i = 0; i < half; ++i) {
      const bool tied = slots[i].tensor->is(*slots[i + half].tensor);
      EXPECT_EQ(tied, slots[i].layout.stacked.ndim() > 0) << slots[i].name;
    }
  });
}

// Without bytes at first, as large models are made.
TEST(ExpertParallel, DividesAModelOnTheMetaDevice) {
  launch(4, [](RankContext& rank) {
    Net whole;
    nn::init_weights(whole, 5, 0.3);
    const auto meshes = make_meshes(rank.group(), {.dp_shard = 4, .ep = 2});
    std::optional<Net> net;
    {
      const MetaGuard no_bytes;
      net.emplace();
    }
    expert_parallel(*net, meshes.expert);
    shard(*net, meshes);
    net->to_empty();
    nn::init_weights(*net, 5, 0.3);
    const auto own = net->named_parameters(), all = whole.named_parameters();
    for (std::size_t i = 0; i < own.size(); ++i) {
      const auto& spec = *own[i].tensor.shard_spec();
      EXPECT_TRUE(
          bitwise_equal(own[i].tensor.detach(), clone(shard_view(all[i].tensor.detach(), spec))))
          << own[i].name;
    }
  });
}

TEST(ExpertParallel, LeavesFrozenExpertsFrozen) {
  launch(2, [](RankContext& rank) {
    const auto mixture = make_mixture(Dtype::kFloat32);
    for (const auto& slot : mixture->parameter_slots()) {
      if (slot.name == "experts.down_proj") slot.parameter().set_requires_grad(false);
    }
    expert_parallel(*mixture, expert_mesh(rank));
    for (const auto& [name, parameter] : mixture->named_parameters()) {
      EXPECT_EQ(parameter.requires_grad(), name != "experts.down_proj") << name;
    }
  });
}

/// A group whose ranks are on hosts of the test's choice. Counts the exchanges among all of them.
class OnHosts final : public test::PassingGroup {
 public:
  using PassingGroup::PassingGroup;
  int exchanges = 0;

 protected:
  WorkPtr issue(CollectiveCall call) override {
    if (call.op == CollectiveOp::kAllToAll) ++exchanges;
    return PassingGroup::issue(std::move(call));
  }
};

TEST(ExpertParallel, ExchangesInTwoLevelsWhereSixteenRanksHaveFourNeighboursOnAHost) {
  constexpr int kExperts = 48;
  const auto body = [](RankContext& rank) {
    const int ranks = rank.world_size();
    const Tensor x = randn({5, 12}, static_cast<std::uint64_t>(rank.rank()), Dtype::kFloat32);
    // With so many neighbours on each host.
    const auto run = [&](int neighbours) {
      std::vector<int> hosts;
      for (int i = 0; i < ranks; ++i) hosts.push_back(i / neighbours);
      const auto group = std::make_shared<OnHosts>(rank.group(), hosts);
      nn::MoE mixture(
          {.hidden_size = 12, .intermediate_size = 6, .num_experts = kExperts, .top_k = 2});
      nn::init_weights(mixture, 3, 0.5);
      expert_parallel(mixture, DeviceMesh(group, {{"ep", ranks}}));
      const Tensor y = clone(mixture(x).hidden.detach());
      return std::pair(y, group->exchanges);
    };
    const auto [expected, direct] = run(ranks);
    EXPECT_EQ(direct, 4);  // counts, rows, weights, results
    for (const int neighbours : {8, 6, 4, 2}) {
      if (ranks % neighbours != 0) continue;
      const auto [y, number] = run(neighbours);
      EXPECT_TRUE(bitwise_equal(y, expected));
      EXPECT_EQ(number, ranks >= 16 && neighbours >= 4 ? 0 : 4) << neighbours;
    }
  };
  for (const int ranks : {12, 16}) launch(ranks, body);
}

TEST(ExpertParallel, WithOneRankChangesNothing) {
  launch(1, [](RankContext& rank) {
    const auto mixture = make_mixture(Dtype::kFloat32);
    EXPECT_EQ(expert_parallel(*mixture, expert_mesh(rank)), 1);
    EXPECT_EQ(mixture->named_parameters()[1].tensor.shard_spec(), nullptr);
  });
}

}  // namespace
}  // namespace moegrad::parallel::expert_parallel_test
