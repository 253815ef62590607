// SPDX-License-Identifier: Apache-2.0

// Class E0: everything here is equal to the last bit.

#include <memory>
#include <utility>
#include <vector>

#include "framework/distributed/launch.h"
#include "optim/adamw.h"
#include "tests/framework/distributed/counting_process_group.h"
#include "tests/framework/distributed/hand_shards.h"
#include "tests/optim/blocked_gradients.h"
#include "tests/testing.h"

namespace moegrad::optim::row_blocks_ranks_test {
namespace {

using namespace test;

constexpr std::int64_t kRows = kBlocks * 3, kColumns = 4;
constexpr int kSteps = 12;
const AdamW::Config kConfig = {
    .lr = 1e-2, .weight_decay = 0.1, .skip_missing_grad = {{"p", kBlocks}}};

/// Marks block 1 at every fourth step, on one rank alone.
void mark(AdamW& optimizer, int step, bool here) {
  if (step % 4 == 0 && here) {
    optimizer.mark_used("p", std::vector<std::int64_t>{0, 2, 0, 0, 0});
  }
}

/// What the steps give without shards.
struct Expected {
  explicit Expected(Dtype dtype) : start(randn({kRows, kColumns}, 3, dtype)), whole(clone(start)) {
    AdamW optimizer({{"p", whole}}, kConfig);
    for (int step = 0; step < kSteps; ++step) {
      whole.set_grad(blocked_gradient(whole.shape(), step, dtype));
      mark(optimizer, step, true);
      optimizer.step();
    }
    state = optimizer.states()[0];
  }

  Tensor start, whole;
  AdamW::State state;
};

/// The same on shards; rank `marking` of the world marks.
void expect_same_on_shards(const Expected& expected, const ShardSpec& spec, int rank, int marking) {
  const Tensor parameter = shard_of(expected.start, spec);
  AdamW optimizer({{"p", parameter}}, kConfig);
  for (int step = 0; step < kSteps; ++step) {
    const Tensor grad = blocked_gradient(spec.global_shape, step, parameter.dtype());
    parameter.set_grad(shard_of(grad, spec));
    mark(optimizer, step, rank == marking);
    optimizer.step();
  }
  const auto own = optimizer.states()[0];
  EXPECT_EQ(test::integers(own.steps), test::integers(expected.state.steps));
  EXPECT_TRUE(bitwise_equal(parameter, shard_of(expected.whole, spec)));
  EXPECT_TRUE(bitwise_equal(own.exp_avg, shard_of(expected.state.exp_avg, spec)));
  EXPECT_TRUE(bitwise_equal(own.exp_avg_sq, shard_of(expected.state.exp_avg_sq, spec)));
}

TEST(RowBlocksOverRanks, AreUpdatedTheSameOnEveryNumberOfRanks) {
  for (const auto dtype : {Dtype::kFloat32, Dtype::kFloat64}) {
    const Expected expected(dtype);
    // Blocks of 3 rows: shards of 8, 5 and 4 rows begin inside them, 12 ranks leave some empty.
    for (const int world_size : {1, 2, 3, 4, 12}) {
      launch(world_size, [&](RankContext& context) {
        const auto spec = spec_of(expected.start.shape(), 0, context.group());
        expect_same_on_shards(expected, spec, context.rank(), 0);
      });
    }
  }
}

TEST(RowBlocksOverRanks, AreUpdatedTheSameOnReplicasAndAlongBothDimensions) {
  const Expected expected(Dtype::kFloat32);
  for (const auto& [replicas, shards] : {std::pair{1, 4}, {2, 2}, {2, 4}, {4, 1}}) {
    for (const std::int64_t dim : {0, 1}) {
      for (const int marking : {0, replicas * shards - 1}) {  // of the first replica, of the last
        launch(replicas * shards, [&, replicas = replicas, shards = shards](RankContext& context) {
          const DeviceMesh mesh(context.group(), {{"replicate", replicas}, {"shard", shards}});
          const auto spec = spec_of(expected.start.shape(), dim, mesh);
          expect_same_on_shards(expected, spec, context.rank(), marking);
        });
      }
    }
  }
}

TEST(RowBlocksOverRanks, MayLieOnDifferentMeshes) {
  launch(4, [](RankContext& context) {
    const DeviceMesh mesh(context.group(), {{"replicate", 2}, {"shard", 2}});
    const auto counts = std::make_shared<test::CallCounts>();
    const auto group = std::make_shared<CountingProcessGroup>(context.group(), counts);
    const Tensor whole = Tensor::ones({4, 4}, Dtype::kFloat64);
    const Tensor p = shard_of(whole, spec_of(whole.shape(), 1, mesh));
    const Tensor q = shard_of(whole, spec_of(whole.shape(), 0, group));
    AdamW optimizer({{"p", p}, {"q", q}}, {.skip_missing_grad = {{"p", 4}, {"q", 4}}});
    for (const auto& parameter : {p, q}) parameter.set_grad(zeros_like(parameter));
    // Each rank knows of one block of each.
    std::vector<std::int64_t> uses(4);
    uses[static_cast<std::size_t>(context.rank())] = 1;
    if (context.rank() != 2) optimizer.mark_used("p", uses);
    if (context.rank() != 3) optimizer.mark_used("q", uses);
    optimizer.step();
    EXPECT_EQ(test::integers(optimizer.states()[0].steps), (std::vector<std::int64_t>{1, 1, 0, 1}));
    EXPECT_EQ(test::integers(optimizer.states()[1].steps), (std::vector<std::int64_t>{1, 1, 1, 0}));
    EXPECT_EQ(counts->calls({.op = "all_reduce"}), 1);
  });
}

}  // namespace
}  // namespace moegrad::optim::row_blocks_ranks_test
