// SPDX-License-Identifier: Apache-2.0

// Sums that wait for a reduction belong to the gradients of the shards: who drops those drops them.

#include <algorithm>

#include "tests/fsdp/random_sequences.h"
#include "tests/testing.h"

namespace moegrad::fsdp::dropped_gradients_test {
namespace {

using test::RealNet;

using Drop = std::function<void(RealNet&, optim::Optimizer&)>;

constexpr double kHuge = 1e9;

test::Sequence two_blocks() {
  return {.width = 4, .blocks = 2, .recomputed = {false, false}, .calls = {0, 1}};
}

/// Sharded by layers; keeps whole gradients (flat), or those of shards (with replicas), while it
/// does not communicate.
class Accumulation {
 public:
  Accumulation(RankContext& rank, bool replicas) : net_(two_blocks()), replicas_(replicas) {
    const auto mesh = replicas ? DeviceMesh(rank.group(), {{"replicate", 2}, {"shard", 2}})
                               : DeviceMesh::flat(rank.group());
    for (auto& block : net_.blocks) fully_shard(*block, mesh);
    root_ = &fully_shard(net_, mesh);
    optimizer_.emplace(net_.named_parameters(), optim::SGD::Config{});
  }

  void wait_with(std::uint64_t seed) {
    communicate(false);
    backward(seed);
    communicate(true);
  }
  void backward(std::uint64_t seed) { net_(test::randn({2, 4}, seed)).backward(); }
  double norm() { return optim::clip_grad_norm(net_.named_parameters(), kHuge); }

  RealNet& net() { return net_; }
  State& root() { return *root_; }
  optim::Optimizer& optimizer() { return *optimizer_; }

 private:
  void communicate(bool on) {
    replicas_ ? root_->set_requires_all_reduce(on) : root_->set_requires_gradient_sync(on);
  }

  RealNet net_;
  bool replicas_;
  State* root_ = nullptr;
  std::optional<optim::SGD> optimizer_;
};

void expect_dropped(const Drop& drop) {
  for (const bool replicas : {false, true}) {
    launch(4, [&](RankContext& rank) {
      Accumulation fresh(rank, replicas), dropped(rank, replicas), kept(rank, replicas);
      fresh.wait_with(5);
      fresh.backward(6);
      dropped.wait_with(4);
      drop(dropped.net(), dropped.optimizer());
      dropped.wait_with(5);
      dropped.backward(6);
      kept.wait_with(4);
      kept.wait_with(5);
      kept.backward(6);
      const double norm = fresh.norm();
      EXPECT_EQ(dropped.norm(), norm) << replicas;
      EXPECT_NE(kept.norm(), norm) << replicas;
    });
  }
}

TEST(DroppedGradients, OfAnOptimizerTakeAlongWhatWaits) {
  expect_dropped([](RealNet&, optim::Optimizer& optimizer) { optimizer.zero_grad(); });
}

TEST(DroppedGradients, OfAModuleTakeAlongWhatWaits) {
  expect_dropped([](RealNet& net, optim::Optimizer&) { net.zero_grad(); });
}

TEST(DroppedGradients, OfOneParameterLeaveThoseOfOthers) {
  launch(2, [](RankContext& rank) {
    RealNet net(two_blocks());
    auto& root = fully_shard(net, DeviceMesh::flat(rank.group()));  // one group
    root.set_requires_gradient_sync(false);
    for (const std::uint64_t seed : {4, 5, 6}) net(test::randn({2, 4}, seed)).backward();
    const auto before = root.get_pending_gradients();
    for (const auto& [name, parameter] : net.named_parameters()) {
      if (name == "scale") parameter.set_grad(Tensor());
    }
    const auto after = root.get_pending_gradients();
    ASSERT_EQ(before.size(), 3);
    ASSERT_EQ(after.size(), 2);
    for (const auto& [name, sum] : after) {
      EXPECT_NE(name, "scale");
      const auto same = std::ranges::find(before, name, &NamedTensor::name);
      EXPECT_TRUE(test::bitwise_equal(sum, same->tensor)) << name;
    }
  });
}

// A reduction that ends late writes to the gradients of the shards; nobody has dropped them.
TEST(DroppedGradients, AreNotThoseThatALateReductionSets) {
  launch(2, [](RankContext& rank) {
    const auto norm_of = [&](bool late) {
      Accumulation run(rank, false);
      run.root().set_is_last_backward(!late);
      run.backward(4);
      run.wait_with(5);
      run.root().set_is_last_backward(true);
      run.backward(6);
      return run.norm();
    };
    EXPECT_EQ(norm_of(true), norm_of(false));
  });
}

}  // namespace
}  // namespace moegrad::fsdp::dropped_gradients_test
