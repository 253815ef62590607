// SPDX-License-Identifier: Apache-2.0
// What expert_parallel, and fully_shard after it, refuse; and how a layer ends that fails.
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "framework/autograd/engine.h"
#include "framework/autograd/micro_batch.h"
#include "framework/distributed/parallel_dims.h"
#include "framework/runtime/rank_context.h"
#include "fsdp/fully_shard.h"
#include "nn/init.h"
#include "nn/linear.h"
#include "ops/elementwise.h"
#include "ops/reduce.h"
#include "optim/adamw.h"
#include "parallel/expert/expert_parallel.h"
#include "tests/parallel/expert/mixture_on_ranks.h"
#include "tests/parallel/expert/passing_group.h"
#include "tests/parallel/expert/two_mixtures.h"

namespace moegrad::parallel::expert_parallel_errors_test {
namespace {

using namespace two_mixtures;
using namespace test;

TEST(ExpertParallel, RefusesToKeepGradients) {
  launch(2, [](RankContext& rank) {
    DividedNet divided(rank);
    auto& [net, meshes, state] = divided;
    state.set_requires_gradient_sync(false);
    const auto backward = [&, &net = net] {
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

TEST(ExpertParallel, RefusesToKeepTheGradientsOfOtherModulesAlone) {
  launch(2, [](RankContext& rank) {
    Net net;
    nn::init_weights(net, 5, 0.3);
    const auto meshes = make_meshes(rank.group(), {.dp_shard = 2, .ep = 2});
    expert_parallel(net, meshes.expert);
    // The linear layers belong to the root.
    const fsdp::Policy policy = {.expert_mesh = meshes.expert_fsdp()};
    for (const auto& [path, module] : net.named_modules()) {
      if (path.ends_with(".mlp")) fsdp::fully_shard(*module, meshes.fsdp(), policy);
    }
    auto& root = fsdp::fully_shard(net, meshes.fsdp(), policy);
    root.set_requires_gradient_sync(false, /*recurse=*/false);
    const auto backward = [&] {
      ops::sum(net(micro_batch(0, rank.rank(), Dtype::kFloat32))).backward();
    };
    EXPECT_EQ(message_of<Error>(backward),
              "fully_shard: the gradients of the root must be reduced after each micro-batch, "
              "because that of 'blocks.0.mlp.experts.gate_up_proj' is already the sum over the "
              "ranks that share the experts; leave set_requires_gradient_sync on for all modules");
    root.reset_iter_state();
    root.set_requires_gradient_sync(true, /*recurse=*/false);
    EXPECT_NO_THROW(backward());
  });
}

// The sum over the ranks that share the experts has been rounded when it reaches the wider tree.
TEST(ExpertParallel, RefusesToReduceInAWiderDtype) {
  launch(2, [](RankContext& rank) {
    DividedNet divided(rank, {.mixed_precision = {.reduce_dtype = Dtype::kFloat64}});
    const auto backward = [&] {
      ops::sum(divided.net(micro_batch(0, rank.rank(), Dtype::kFloat32))).backward();
    };
    EXPECT_EQ(message_of<DtypeError>(backward),
              "fully_shard: the gradient of 'blocks.1.mlp.experts.gate_up_proj' is already a sum "
              "over the ranks that share the experts, rounded to float32, so reduce_dtype must "
              "not be wider, got float64; in module blocks.1");
  });
}

TEST(ExpertParallel, RefusesWhatItCannotDivide) {
  launch(2, [](RankContext& rank) {
    const auto mesh = expert_mesh(rank);
    for (const auto* inner : {"shard", "replicate"}) {
      const DeviceMesh outermost(rank.group(), {{"ep", 2}, {inner, 1}});
      EXPECT_EQ(message_of<ValueError>([&] {
                  Net net;
                  expert_parallel(net, outermost);
                }),
                "expert_parallel: axis 'ep' must come after 'replicate' and 'shard', so that the "
                "ranks of an expert group are neighbours, got 'ep', '" +
                    std::string(inner) + "'");
    }
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
    DividedNet divided(rank);
    auto& [net, meshes, state] = divided;
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
    DividedNet divided(rank);
    auto& [net, meshes, state] = divided;
    const auto backward = [&, &net = net] {
      ops::sum(net(micro_batch(0, rank.rank(), Dtype::kFloat32))).backward();
    };
    const auto train_experts = [&net = net](bool on) {
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
        EXPECT_THROW(clone(y.detach()), CollectiveError);
      }
      throw ValueError("no more tokens");
    });
  });
  EXPECT_NE(message.find("no more tokens"), std::string::npos) << message;
}

/// Adds one to the first of the counts that rank 1 says it will send.
class WrongCounts final : public test::PassingGroup {
 public:
  using PassingGroup::PassingGroup;

 protected:
  WorkPtr issue(CollectiveCall call) override {
    if (call.op == CollectiveOp::kAllToAll && call.dtype == Dtype::kInt64 && rank() == 1) {
      const auto own = call.parts.front();
      counts_.resize(own.size() / sizeof(std::int64_t));
      std::memcpy(counts_.data(), own.data(), own.size());
      ++counts_.front();
      call.parts = {std::as_bytes(std::span(counts_))};
    }
    return PassingGroup::issue(std::move(call));
  }

 private:
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

// Afterwards nobody would notice, because each rank keeps other experts.
TEST(ExpertParallel, RefusesExpertsThatDifferBetweenRanks) {
  launch(4, [](RankContext& rank) {
    const auto mixture = make_mixture(Dtype::kFloat32);
    if (rank.rank() == 2) {
      for (const auto& slot : mixture->parameter_slots()) {
        Tensor values = slot.parameter().detach();
        if (slot.name == "experts.down_proj") fill_(values, 0);
      }
    }
    EXPECT_EQ(message_of<Error>([&] { expert_parallel(*mixture, expert_mesh(rank)); }),
              "expert_parallel: every rank must pass the same values of 'experts.down_proj', got "
              "others on rank 2 than on rank 0 of group 'world'");
    EXPECT_EQ(mixture->named_parameters()[1].tensor.shard_spec(), nullptr);
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
}  // namespace moegrad::parallel::expert_parallel_errors_test
