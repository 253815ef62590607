// SPDX-License-Identifier: Apache-2.0
// One module that several ranks of a launch call.
#include <functional>

#include "framework/distributed/collectives.h"
#include "framework/distributed/launch.h"
#include "framework/runtime/grad_mode.h"
#include "nn/init.h"
#include "nn/linear.h"
#include "nn/sequential.h"
#include "ops/reduce.h"
#include "tests/testing.h"

namespace moegrad::nn::own_rank_test {
namespace {

// One rank after the other, so that which is first is known.
void forward_in_turns(RankContext& rank, const std::function<void()>& forward) {
  for (int turn = 0; turn < rank.world_size(); ++turn) {
    if (turn == rank.rank()) forward();
    (void)all_reduce(*rank.group(), 1.0);
  }
}

TEST(OwnRank, OneModuleForSeveralRanksIsAnErrorInTraining) {
  Sequential model;
  model.emplace_back<Linear>({.in_features = 2, .out_features = 2});
  init_weights(model, 1, 0.5);
  const Tensor x = Tensor::ones({1, 2});
  EXPECT_EQ(test::message_of<Error>([&] {
              launch(2, [&](RankContext& rank) {
                forward_in_turns(rank, [&] { ops::sum(model(x)).backward(); });
              });
            }),
            "forward: the module is trained by rank 0 already, so rank 1 must have a module of its "
            "own; make it in the function that launch() runs, or, to evaluate one together, call "
            "eval() before or use a NoGradGuard");
}

TEST(OwnRank, RanksMayReadAModuleTogetherAndOneRankOfALaunchMayTrainIt) {
  Linear trained({.in_features = 2, .out_features = 2}), frozen(trained.weight().detach());
  const Tensor x = Tensor::ones({1, 2});
  for (const int trainer : {1, 1, 0}) {  // of three launches
    launch(2, [&](RankContext& rank) {
      if (rank.rank() == trainer) ops::sum(trained(x)).backward();
    });
  }
  trained(x);  // outside of them
  for (auto& [name, parameter] : frozen.named_parameters()) parameter.set_requires_grad(false);
  launch(2, [&](RankContext& rank) {
    forward_in_turns(rank, [&] { frozen(x); });
    const NoGradGuard no_grad;
    forward_in_turns(rank, [&] { trained(x); });
  });
  trained.eval();
  launch(2, [&](RankContext& rank) { forward_in_turns(rank, [&] { trained(x); }); });
}

}  // namespace
}  // namespace moegrad::nn::own_rank_test
