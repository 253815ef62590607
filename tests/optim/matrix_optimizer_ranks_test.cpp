// SPDX-License-Identifier: Apache-2.0

// Stacked experts on shards that begin inside an expert. Class E0: equal to the last bit.

#include "framework/distributed/launch.h"
#include "optim/adafactor.h"
#include "optim/muon.h"
#include "tests/framework/distributed/hand_shards.h"
#include "tests/optim/stacked_experts.h"
#include "tests/testing.h"

namespace moegrad::optim::matrix_optimizer_ranks_test {
namespace {

using namespace test;

/// Random; none of expert 1 in step 1.
Tensor grad_of(std::uint64_t step, bool transposed) {
  auto matrices = random_matrices(100 * (step + 1), Dtype::kFloat32);
  if (step == 1) matrices[2] = matrices[3] = zeros_like(matrices[2]);
  return stack(matrices, transposed);
}

template <class Optimizer>
void expect_the_bits_of_one_rank(typename Optimizer::Config config, bool transposed) {
  config.matrices = {{"experts", gate_up(transposed)}};
  config.skip_missing_grad = {{"experts", kExperts}};
  const Tensor start = stack(random_matrices(1, Dtype::kFloat32), transposed);
  const auto train = [&](const Tensor& parameter) {
    Optimizer optimizer({{"experts", parameter}}, config);
    for (std::uint64_t step = 0; step < 4; ++step) {
      const Tensor grad = grad_of(step, transposed);
      const auto& spec = parameter.shard_spec();
      parameter.set_grad(spec ? shard_of(grad, *spec) : grad);
      optimizer.step();
    }
    auto state = optimizer.state_dict();
    state.push_back({"experts", parameter});
    return state;
  };
  const auto expected = train(clone(start));
  const auto expect = [&](const ShardSpec& spec) {
    const auto found = train(shard_of(start, spec));
    ASSERT_EQ(found.size(), expected.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
      const auto& [name, part] = found[i];
      EXPECT_TRUE(bitwise_equal(part, shard_of(expected[i].tensor, *part.shard_spec()))) << name;
    }
  };
  for (const std::int64_t dim : {0, 1}) {
    for (const int world_size : {1, 2, 4, 7}) {
      launch(world_size, [&](RankContext& context) {
        expect(test::spec_of(start.shape(), dim, context.group()));
      });
    }
    launch(4, [&](RankContext& context) {
      const DeviceMesh mesh(context.group(), {{"replicate", 2}, {"shard", 2}});
      expect(test::spec_of(start.shape(), dim, mesh));
    });
  }
}

TEST(MatrixOptimizersOverRanks, HaveTheBitsOfOneRank) {
  for (const bool transposed : {false, true}) {
    expect_the_bits_of_one_rank<Adafactor>({.lr = 0.1, .weight_decay = 0.1}, transposed);
    expect_the_bits_of_one_rank<Muon>({.lr = 0.1}, transposed);
  }
}

}  // namespace
}  // namespace moegrad::optim::matrix_optimizer_ranks_test
