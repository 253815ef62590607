// SPDX-License-Identifier: Apache-2.0
// What expert_parallel does to a model, alone and with fully_shard.
#include "parallel/expert/expert_parallel.h"

#include <bit>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "framework/autograd/engine.h"
#include "framework/autograd/micro_batch.h"
#include "framework/distributed/gather_shards.h"
#include "framework/distributed/parallel_dims.h"
#include "framework/runtime/rank_context.h"
#include "framework/tensor/arena.h"
#include "framework/tensor/meta.h"
#include "fsdp/fully_shard.h"
#include "nn/linear.h"
#include "ops/elementwise.h"
#include "ops/reduce.h"
#include "optim/adamw.h"
#include "optim/clip_grad_norm.h"
#include "tests/parallel/expert/mixture_on_ranks.h"

namespace moegrad::parallel::expert_parallel_test {
namespace {

using test::bitwise_equal;
using test::expert_mesh;
using test::make_mixture;
using test::message_of;
using test::randn;

constexpr std::int64_t kHidden = 12, kInner = 10, kExperts = 8, kTokens = 6;

/// Two mixture layers with a linear one before each.
class Net final : public nn::Callable<Net> {
 public:
  explicit Net(nn::ExpertWeights weights = nn::ExpertWeights::kPretransposed,
               Dtype dtype = Dtype::kFloat32) {
    for (int i = 0; i < 2; ++i) {
      blocks_.push_back(std::make_unique<Block>(weights, dtype));
      register_module("blocks." + std::to_string(i), *blocks_.back());
    }
  }

  Tensor forward(const Tensor& x) {
    Tensor hidden = x;
    for (const auto& block : blocks_) hidden = (*block)(hidden);
    return hidden;
  }

  class Block final : public nn::Callable<Block> {
   public:
    Block(nn::ExpertWeights weights, Dtype dtype)
        : linear_({.in_features = kHidden, .out_features = kHidden, .dtype = dtype}),
          mlp_({.hidden_size = kHidden,
                .intermediate_size = kInner,
                .num_experts = kExperts,
                .top_k = 2,
                .expert_weights = weights,
                .dtype = dtype}) {
      register_module("linear", linear_);
      register_module("mlp", mlp_);
    }
    Tensor forward(const Tensor& x) { return x + mlp_(linear_(x)).hidden; }

   private:
    nn::Linear linear_;
    nn::MoE mlp_;
  };
  std::vector<std::unique_ptr<Block>>& blocks() { return blocks_; }

 private:
  std::vector<std::unique_ptr<Block>> blocks_;
};

fsdp::State& shard(Net& net, const ParallelMeshes& meshes, fsdp::Policy policy = {}) {
  policy.expert_mesh = meshes.expert_fsdp();
  for (auto& block : net.blocks()) fsdp::fully_shard(*block, meshes.fsdp(), policy);
  return fsdp::fully_shard(net, meshes.fsdp(), policy);
}

/// The micro-batches of all ranks; M of them per step.
constexpr int kMicroBatches = 8;

Tensor micro_batch(int step, int number, Dtype dtype) {
  return randn({kTokens, kHidden}, static_cast<std::uint64_t>(1000 + step * 100 + number), dtype);
}

/// Norms, and the whole parameters at the end.
struct Trained {
  std::vector<double> norms;
  NamedTensors parameters;
};

/// A few steps, each micro-batch reduced. Micro-batch i of rank r of R is number i R + r.
Trained train(Net& net, RankContext& rank, Dtype dtype) {
  optim::AdamW optimizer(net.named_parameters(), {.lr = 0.05, .weight_decay = 0.1});
  Trained trained;
  const int ranks = rank.world_size();
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    for (int i = 0; i < kMicroBatches / ranks; ++i) {
      const Tensor x = micro_batch(step, i * ranks + rank.rank(), dtype);
      ops::sum(ops::square(net(x))).backward();
    }
    trained.norms.push_back(optim::clip_grad_norm(net.named_parameters(), 10.0));
    optimizer.step();
  }
  for (const auto& [name, parameter] : net.named_parameters()) {
    trained.parameters.push_back(
        {name, all_gather_shards(parameter.detach(), *parameter.shard_spec())});
  }
  return trained;
}

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
       .policy = {.mixed_precision = {.param_dtype = Dtype::kBFloat16}}},
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
      EXPECT_EQ(trained.norms, expected.norms);
      ASSERT_EQ(trained.parameters.size(), expected.parameters.size());
      for (std::size_t i = 0; i < expected.parameters.size(); ++i) {
        EXPECT_EQ(trained.parameters[i].name, expected.parameters[i].name);
        EXPECT_TRUE(bitwise_equal(trained.parameters[i].tensor, expected.parameters[i].tensor))
            << expected.parameters[i].name;
      }
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
      // Of each micro-batch: two linear layers and two routers forward, and backward all but the
      // first layer, whose input needs no gradient. The experts would be more.
      EXPECT_EQ(counters.packed_panels + counters.transposed_packs - packed, 2 * 7);
      EXPECT_EQ(counters.nz_conversions, 0);
    }
  });
}

TEST(ExpertParallel, RefusesToKeepGradients) {
  launch(2, [](RankContext& rank) {
    Net net;
    nn::init_weights(net, 5, 0.3);
    const auto meshes = make_meshes(rank.group(), {.dp_shard = 2, .ep = 2});
    expert_parallel(net, meshes.expert);
    auto& state = shard(net, meshes);
    state.set_requires_gradient_sync(false);
    const auto backward = [&] {
      ops::sum(net(micro_batch(0, rank.rank(), Dtype::kFloat32))).backward();
    };
    EXPECT_EQ(message_of<Error>(backward),
              "fully_shard: the gradient of 'blocks.1.mlp.experts.gate_up_proj' must be reduced "
              "after each micro-batch, because it is already the sum over the ranks that share the "
              "experts; call backward for one micro-batch at a time, with "
              "set_requires_gradient_sync on (under a StepPlan, Accumulation::kReduceEach or "
              "kScatterEach); in module blocks.1");
    state.reset_iter_state();
    state.set_requires_gradient_sync(true);
    EXPECT_NO_THROW(backward());
  });
}

TEST(ExpertParallel, RefusesWhatItCannotDivide) {
  launch(2, [](RankContext& rank) {
    const auto mesh = expert_mesh(rank);
    nn::Linear linear({.in_features = 3, .out_features = 3});
    EXPECT_EQ(message_of<ValueError>([&] { expert_parallel(linear, mesh); }),
              "expert_parallel: the module must have a mixture layer, got none");
    Net net;
    EXPECT_EQ(message_of<ValueError>([&] { expert_parallel(net, DeviceMesh::flat(rank.group())); }),
              "expert_parallel: the mesh must have an axis 'ep', got 'shard'");
    nn::MoE odd({.hidden_size = 4, .intermediate_size = 3, .num_experts = 5, .top_k = 2});
    EXPECT_EQ(message_of<ValueError>([&] { expert_parallel(odd, mesh); }),
              "expert_parallel: the 2 ranks of axis 'ep' must divide the experts of the module, "
              "got 5");
    EXPECT_EQ(odd.named_parameters()[1].tensor.shape(), (Shape{20, 6}));

    Tensor hooked = net.named_parameters()[2].tensor;
    auto handle = hooked.register_post_accumulate_grad_hook([](const Tensor&) {});
    EXPECT_EQ(
        message_of<Error>([&] { expert_parallel(net, mesh); }),
        "expert_parallel: 'blocks.0.mlp.experts.gate_up_proj' must have no hooks yet, because a "
        "part takes its place; register them on that");
    handle.remove();
    EXPECT_EQ(expert_parallel(net, mesh), 2);
    EXPECT_EQ(message_of<Error>([&] { expert_parallel(net, mesh); }),
              "expert_parallel: 'blocks.0.mlp.experts.gate_up_proj' must be whole, got [" +
                  std::to_string(48 * rank.rank()) + ", " + std::to_string(48 * rank.rank() + 48) +
                  ") of dimension 0 of [96, 20]; call expert_parallel once, and before "
                  "fully_shard");
  });
}

TEST(ExpertParallel, MakesTheStepOfAnOlderOptimizerAnError) {
  launch(2, [](RankContext& rank) {
    const auto mixture = make_mixture(Dtype::kFloat32);
    optim::AdamW optimizer(mixture->named_parameters(), {.lr = 0.1});
    expert_parallel(*mixture, expert_mesh(rank));
    ops::sum((*mixture)(randn({2, test::kMixtureHidden}, 1, Dtype::kFloat32)).hidden).backward();
    EXPECT_EQ(
        message_of<Error>([&] { optimizer.step(); }),
        "step: 'experts.gate_up_proj' must be a parameter of its module, got the whole tensor "
        "that fully_shard or expert_parallel has replaced by a part; take named_parameters() "
        "afterwards");
  });
}

TEST(ExpertParallel, IsMissedByFullyShardWhereExpertMeshesNeedIt) {
  launch(4, [](RankContext& rank) {
    Net net;
    const auto meshes = make_meshes(rank.group(), {.dp_shard = 4, .ep = 2});
    EXPECT_EQ(message_of<ValueError>([&] { shard(net, meshes); }),
              "fully_shard: expert_mesh and what has divided the experts before must reach all 4 "
              "ranks of the mesh, got 2 for 'mlp.experts.gate_up_proj'; call "
              "parallel::expert_parallel before fully_shard");
    EXPECT_EQ(expert_parallel(net, meshes.expert), 2);
    EXPECT_EQ(
        message_of<ValueError>([&] { fsdp::fully_shard(*net.blocks()[0], meshes.fsdp()); }),
        "fully_shard: 'mlp.experts.gate_up_proj' is divided over ranks of the mesh already, so "
        "Policy::expert_mesh must be the mesh of the others (ParallelMeshes::expert_fsdp), got "
        "none");
    EXPECT_NO_THROW(shard(net, meshes));
  });
}

// A schedule that runs two micro-batches in turns and then one backward.
TEST(ExpertParallel, RefusesSeveralMicroBatchesInOneBackward) {
  launch(2, [](RankContext& rank) {
    Net net;
    nn::init_weights(net, 5, 0.3);
    const auto meshes = make_meshes(rank.group(), {.dp_shard = 2, .ep = 2});
    expert_parallel(net, meshes.expert);
    auto& state = shard(net, meshes);
    TensorList losses;
    for (int j = 0; j < 2; ++j) {
      const MicroBatchGuard guard(j);
      losses.push_back(ops::sum(net(micro_batch(j, rank.rank(), Dtype::kFloat32))));
    }
    const auto message =
        message_of<Error>([&] { run_backward(losses, TensorList(2), /*retain_graph=*/false); });
    EXPECT_NE(message.find("call backward for one micro-batch at a time"), std::string::npos)
        << message;
    state.reset_iter_state();
    EXPECT_NO_THROW(ops::sum(net(micro_batch(0, rank.rank(), Dtype::kFloat32))).backward());
  });
}

// Their gradients may be kept: there are none.
TEST(ExpertParallel, LetsFrozenExpertsBeKept) {
  launch(2, [](RankContext& rank) {
    Net net;
    nn::init_weights(net, 5, 0.3);
    const auto meshes = make_meshes(rank.group(), {.dp_shard = 2, .ep = 2});
    expert_parallel(net, meshes.expert);
    auto& state = shard(net, meshes);
    const auto backward = [&] {
      ops::sum(net(micro_batch(0, rank.rank(), Dtype::kFloat32))).backward();
    };
    const auto train_experts = [&](bool on) {
      for (const auto& slot : net.parameter_slots()) {
        if (slot.layout.stacked.ndim() > 0) slot.parameter().set_requires_grad(on);
      }
    };
    backward();  // the experts have summed terms
    net.zero_grad();
    train_experts(false);
    state.set_requires_gradient_sync(false);
    EXPECT_NO_THROW(backward());
    train_experts(true);
    EXPECT_THROW(backward(), Error);
    EXPECT_NO_THROW(state.reset_iter_state());
    state.set_requires_gradient_sync(true);
    EXPECT_NO_THROW(backward());
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

// Rank 1 alone fails while tokens travel: the others learn of it, and do not wait.
TEST(ExpertParallel, EndsOnAllRanksIfOneFailsInALayer) {
  const auto message = message_of<Error>([] {
    launch(4, [](RankContext& rank) {
      const auto mixture = make_mixture(Dtype::kFloat32);
      expert_parallel(*mixture, expert_mesh(rank));
      const Tensor x = randn({3, test::kMixtureHidden}, 1, Dtype::kFloat32);
      const auto dispatched = mixture->dispatch(x, mixture->route(x));
      if (rank.rank() != 1) {
        const Tensor y = mixture->combine(mixture->experts(dispatched), dispatched);
        EXPECT_THROW(clone(y), CollectiveError);
      }
      throw ValueError("no more tokens");
    });
  });
  EXPECT_NE(message.find("no more tokens"), std::string::npos) << message;
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

TEST(ExpertParallel, WithOneRankChangesNothing) {
  launch(1, [](RankContext& rank) {
    const auto mixture = make_mixture(Dtype::kFloat32);
    EXPECT_EQ(expert_parallel(*mixture, expert_mesh(rank)), 1);
    EXPECT_EQ(mixture->named_parameters()[1].tensor.shard_spec(), nullptr);
  });
}

/// Adds one to the first of the counts that rank 1 says it will send.
class WrongCounts final : public ProcessGroup {
 public:
  explicit WrongCounts(std::shared_ptr<ProcessGroup> group)
      : ProcessGroup(group->name(), {group->ranks().begin(), group->ranks().end()}, group->rank()),
        group_(std::move(group)) {}

 protected:
  WorkPtr issue(CollectiveCall call) override {
    if (call.op == CollectiveOp::kAllToAll && call.dtype == Dtype::kInt64 && rank() == 1) {
      counts_.resize(call.input.size() / sizeof(std::int64_t));
      std::memcpy(counts_.data(), call.input.data(), call.input.size());
      ++counts_.front();
      call.input = std::as_bytes(std::span(counts_));
    }
    return pass_on(*group_, std::move(call));
  }
  std::shared_ptr<ProcessGroup> make_subgroup(std::span<const int> ranks,
                                              const std::string& name) override {
    return group_->subgroup(ranks, name);
  }

 private:
  std::shared_ptr<ProcessGroup> group_;
  std::vector<std::int64_t> counts_;
};

TEST(ExpertParallel, EndsOnAllRanksIfCountsDisagree) {
  launch(2, [](RankContext& rank) {
    const auto mixture = make_mixture(Dtype::kFloat32);
    const auto group = std::make_shared<WrongCounts>(rank.group());
    expert_parallel(*mixture, DeviceMesh(group, {{"ep", 2}}));
    const auto message = message_of<CollectiveError>([&] {
      const auto output = (*mixture)(randn({3, test::kMixtureHidden}, 1, Dtype::kFloat32));
      output.hidden.item<float>();
    });
    EXPECT_NE(message.find("all_to_all"), std::string::npos) << message;
    EXPECT_NE(message.find("rows for the experts"), std::string::npos) << message;
  });
}

// The router refuses them before anything is sent, on each rank that has them.
TEST(ExpertParallel, RefusesReplayedExpertsOfAnotherShape) {
  launch(2, [](RankContext& rank) {
    const auto mixture = make_mixture(Dtype::kFloat32);
    expert_parallel(*mixture, expert_mesh(rank));
    const Tensor x = randn({3, test::kMixtureHidden}, 1, Dtype::kFloat32);
    EXPECT_THROW((*mixture)(x, Tensor::from(std::vector<std::int64_t>{0, 1}, {1, 2})), ShapeError);
    EXPECT_NO_THROW((*mixture)(x));
  });
}

}  // namespace
}  // namespace moegrad::parallel::expert_parallel_test
