// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <memory>

#include "framework/distributed/launch.h"
#include "framework/distributed/shard_spec.h"
#include "optim/clip_grad_norm.h"
#include "tests/testing.h"

namespace moegrad::optim {
namespace {

using testing::bitwise_equal;
using testing::randn;

/// Norm and clipped gradients on every rank of a world that shards `sharded` unevenly by rows and
/// has a replica of `replicated`.
void expect_same_on_world(int world_size, const Tensor& sharded, const Tensor& replicated) {
  const auto whole = [](const Tensor& grad) {
    Tensor parameter = zeros_like(grad);
    parameter.set_grad(clone(grad));
    return parameter;
  };
  const Tensor p = whole(sharded), q = whole(replicated);
  const double expected = clip_grad_norm({{"p", p}, {"q", q}}, 1.0);
  launch(world_size, [&](RankContext& context) {
    const auto rows = sharded.dim(0), columns = sharded.dim(1);
    const auto per_rank = (rows + world_size - 1) / world_size;
    const auto begin = std::min(rows, per_rank * context.rank());
    const auto end = std::min(rows, begin + per_rank);
    const auto shard_of = [&](const Tensor& tensor) {
      return clone(Tensor::as_strided(tensor.detach(), {end - begin, columns}, {columns, 1},
                                      begin * columns));
    };
    const Tensor shard = whole(shard_of(sharded));
    shard.set_shard_spec(std::make_shared<ShardSpec>(ShardSpec{
        .global_shape = sharded.shape(), .begin = begin, .end = end, .group = context.group()}));
    const Tensor replica = whole(clone(replicated));
    const double norm = clip_grad_norm({{"p", shard}, {"q", replica}}, 1.0);
    EXPECT_EQ(std::bit_cast<std::uint64_t>(norm), std::bit_cast<std::uint64_t>(expected));
    EXPECT_TRUE(bitwise_equal(shard.grad(), shard_of(p.grad())));
    EXPECT_TRUE(bitwise_equal(replica.grad(), q.grad()));
  });
}

TEST(ClipGradNormOverRanks, HasTheSameBitsOnEveryNumberOfRanks) {
  for (const int world_size : {1, 2, 3, 4}) {
    for (const auto dtype : {Dtype::kFloat32, Dtype::kFloat64}) {
      expect_same_on_world(world_size, randn({37, 11}, 1, dtype), randn({5}, 2, dtype));
      expect_same_on_world(world_size, randn({2, 3}, 3, dtype),
                           randn({1}, 4, dtype));  // empty shards
    }
  }
}

TEST(ClipGradNormOverRanks, KnowsOfANanOnAnotherRank) {
  launch(2, [](RankContext& context) {
    const double value = context.rank() == 1 ? std::numeric_limits<double>::quiet_NaN() : 1.0;
    const Tensor shard = Tensor::zeros({1});
    shard.set_grad(Tensor::full({1}, value));
    shard.set_shard_spec(std::make_shared<ShardSpec>(ShardSpec{.global_shape = {2},
                                                               .begin = context.rank(),
                                                               .end = context.rank() + 1,
                                                               .group = context.group()}));
    EXPECT_TRUE(std::isnan(clip_grad_norm({{"p", shard}}, 1.0)));
  });
}

}  // namespace
}  // namespace moegrad::optim
