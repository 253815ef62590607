// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/gather_shards.h"

#include <memory>
#include <vector>

#include "framework/distributed/launch.h"
#include "tests/framework/distributed/hand_shards.h"
#include "tests/testing.h"

namespace moegrad::gather_shards_test {
namespace {

using namespace test;

constexpr Dtype kDtypes[] = {Dtype::kFloat32, Dtype::kFloat64, Dtype::kBFloat16};

TEST(ShardRuns, AreWhereTheViewSaysTheyAre) {
  const Tensor whole = randn({6, 4, 10});
  const auto all = whole.data<double>();
  for (std::int64_t dim = 0; dim < 3; ++dim) {
    const auto spec = range_spec(whole.shape(), 1, 3, nullptr, dim);
    const Tensor shard = shard_of(whole, spec);
    EXPECT_EQ(shard.dim(dim), 2);
    const auto values = shard.data<double>();
    const ShardRuns runs(spec);
    EXPECT_EQ(runs.length(), dim == 0 ? 80 : dim == 1 ? 20 : 2);
    for (std::int64_t i = 0; i < shard.numel(); ++i) {
      const auto index = runs.index_in_whole(i);
      EXPECT_EQ(values[static_cast<std::size_t>(i)], all[static_cast<std::size_t>(index)]);
      // Element [a, b, c] of the shard is [a, b, c] of the whole, but for 1 more along `dim`.
      const std::int64_t step[] = {40, 10, 1};
      const auto& shape = shard.shape();
      const auto a = i / (shape[1] * shape[2]), b = i / shape[2] % shape[1], c = i % shape[2];
      EXPECT_EQ(index, a * 40 + b * 10 + c + step[dim]);
    }
  }
}

TEST(GatherShards, MakesTheWholeTensorOnAllRanksIfAsked) {
  for (const auto dtype : kDtypes) {
    const Tensor whole = randn({5, 7}, 1, dtype);
    for (const std::int64_t dim : {0, 1}) {
      for (const int world_size : {1, 2, 3, 8}) {  // on 8 some have nothing
        launch(world_size, [&](RankContext& context) {
          const auto spec = spec_of(whole.shape(), dim, context.group());
          const Tensor gathered = all_gather_shards(shard_of(whole, spec), spec);
          EXPECT_TRUE(bitwise_equal(gathered, whole)) << dim << ' ' << world_size;
          EXPECT_EQ(gathered.shard_spec(), nullptr);
        });
      }
      launch(4, [&](RankContext& context) {
        const DeviceMesh mesh(context.group(), {{"replicate", 2}, {"shard", 2}});
        const auto spec = spec_of(whole.shape(), dim, mesh);
        EXPECT_TRUE(bitwise_equal(all_gather_shards(shard_of(whole, spec), spec), whole));
      });
    }
  }
}

TEST(GatherShards, MakesTheWholeTensorOnTheFirstRank) {
  for (const auto dtype : kDtypes) {
    for (const auto& shape : {Shape{10}, Shape{10, 3}, Shape{10, 2, 5}}) {
      const Tensor whole = randn(shape, 1, dtype);
      launch(4, [&](RankContext& context) {
        const std::int64_t cuts[] = {0, 7, 7, 8, 10};  // rank 1 has none
        const auto rank = static_cast<std::size_t>(context.rank());
        const auto spec = range_spec(shape, cuts[rank], cuts[rank + 1], context.group());
        const Tensor gathered = gather_shards(shard_of(whole, spec), spec);
        EXPECT_EQ(gathered.defined(), rank == 0);
        if (gathered.defined()) {
          EXPECT_TRUE(bitwise_equal(gathered, whole));
        }
      });
    }
  }
}

/// The dimensions of a tensor that `ranks` ranks can share evenly, and dimension 0.
std::vector<std::int64_t> dims_for(const Shape& shape, int ranks) {
  std::vector<std::int64_t> dims = {0};
  for (std::int64_t dim = 1; dim < shape.ndim(); ++dim) {
    if (shape[dim] % ranks == 0) dims.push_back(dim);
  }
  return dims;
}

struct MeshCase {
  int replicas, shards;
};

class ShardsOnMesh : public ::testing::TestWithParam<MeshCase> {
 protected:
  template <class Body>
  void on_ranks(const Body& body) const {
    const auto [replicas, shards] = GetParam();
    launch(replicas * shards, [&, replicas = replicas, shards = shards](RankContext& context) {
      body(context, DeviceMesh(context.group(), {{"replicate", replicas}, {"shard", shards}}));
    });
  }
};

TEST_P(ShardsOnMesh, AreGatheredFromTheFirstReplicaAlongAnyDimension) {
  for (const auto dtype : kDtypes) {
    for (const auto& shape : {Shape{3, 24}, Shape{5, 8, 24}, Shape{1, 24, 2}}) {
      const Tensor whole = randn(shape, 1, dtype);
      on_ranks([&](RankContext& context, const DeviceMesh& mesh) {
        for (const auto dim : dims_for(shape, mesh.size("shard"))) {
          const auto spec = spec_of(shape, dim, mesh);
          Tensor shard = shard_of(whole, spec);
          // What other replicas hold does not matter.
          if (mesh.coordinate("replicate") > 0) shard = zeros_like(shard);
          const Tensor gathered = gather_shards(shard, spec);
          EXPECT_EQ(gathered.defined(), context.rank() == 0);
          if (gathered.defined()) {
            EXPECT_TRUE(bitwise_equal(gathered, whole));
          }
        }
      });
    }
  }
}

TEST_P(ShardsOnMesh, AreFilledFromTheFirstRankAlongAnyDimension) {
  for (const auto dtype : kDtypes) {
    for (const auto& shape : {Shape{3, 24}, Shape{5, 8, 24}, Shape{1, 24, 2}}) {
      const Tensor given = randn(shape, 1);  // float64
      const Tensor whole = to_dtype(given, dtype);
      on_ranks([&](RankContext& context, const DeviceMesh& mesh) {
        for (const auto dim : dims_for(shape, mesh.size("shard"))) {
          const auto spec = spec_of(shape, dim, mesh);
          const Tensor expected = shard_of(whole, spec);
          Tensor shard = zeros_like(expected);
          const auto version = shard.storage().version();
          scatter_shards(context.rank() == 0 ? given : Tensor(), shard, spec);
          EXPECT_TRUE(bitwise_equal(shard, expected));
          EXPECT_EQ(shard.storage().version() > version, true);
        }
      });
    }
  }
}

TEST_P(ShardsOnMesh, AreFilledFromAStridedTensor) {
  const Shape shape = {24, 8};
  const Tensor given = Tensor::as_strided(randn({8, 24}), shape, {1, 24}, 0);
  Tensor whole = Tensor::empty(shape, given.dtype());
  copy_(whole, given);
  on_ranks([&](RankContext& context, const DeviceMesh& mesh) {
    for (const auto dim : dims_for(shape, mesh.size("shard"))) {
      const auto spec = spec_of(shape, dim, mesh);
      const Tensor expected = shard_of(whole, spec);
      Tensor shard = zeros_like(expected);
      scatter_shards(context.rank() == 0 ? given : Tensor(), shard, spec);
      EXPECT_TRUE(bitwise_equal(shard, expected));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Meshes, ShardsOnMesh,
                         ::testing::Values(MeshCase{1, 1}, MeshCase{1, 2}, MeshCase{1, 3},
                                           MeshCase{1, 4}, MeshCase{1, 8}, MeshCase{2, 1},
                                           MeshCase{2, 2}, MeshCase{3, 2}, MeshCase{2, 4}),
                         [](const auto& test) {
                           return std::to_string(test.param.replicas) + "x" +
                                  std::to_string(test.param.shards);
                         });

TEST(GatherShards, OfAWorldOfOneIsTheShardItself) {
  const Tensor whole = randn({3, 2});
  const Tensor alone = gather_shards(whole, range_spec(whole.shape(), 0, 3));
  EXPECT_EQ(&alone.storage(), &whole.storage());
  launch(1, [&](RankContext& context) {
    const Tensor gathered = gather_shards(whole, range_spec(whole.shape(), 0, 3, context.group()));
    EXPECT_EQ(&gathered.storage(), &whole.storage());
  });
}

TEST(GatherShards, NamesShardsThatDoNotFit) {
  const Tensor whole = randn({6, 2});
  const auto rows_of = [&](std::int64_t begin, std::int64_t end) {
    return shard_of(whole, range_spec(whole.shape(), begin, end));
  };
  EXPECT_EQ(message_of<ShapeError>(
                [&] { gather_shards(rows_of(0, 2), range_spec(whole.shape(), 0, 3)); }),
            "gather_shards: [0, 3) of dimension 0 of [6, 2] must be [3, 2], got [2, 2]");
  EXPECT_EQ(message_of<LayoutError>([&] {
              gather_shards(Tensor::as_strided(whole, {3, 1}, {2, 1}, 0), range_spec({6, 1}, 0, 3));
            }),
            "gather_shards: the shard must be contiguous");
  EXPECT_EQ(message_of<Error>([&] {
              gather_shards(rows_of(0, 5), range_spec({6, 2}, 0, 5));
            }),
            "gather_shards: the shards must be all of [6, 2], got [0, 5) of dimension 0 of [6, 2]");
  Tensor shard = rows_of(0, 6);
  EXPECT_EQ(message_of<ShapeError>([&] {
              scatter_shards(randn({5, 2}), shard, range_spec({6, 2}, 0, 6));
            }),
            "scatter_shards: whole must be [6, 2], got [5, 2]");
  const auto on_two_ranks = [&](std::int64_t first_end, std::int64_t begin, std::int64_t end) {
    launch(2, [&](RankContext& context) {
      const auto [first, last] = context.rank() == 0
                                     ? std::pair<std::int64_t, std::int64_t>(0, first_end)
                                     : std::pair(begin, end);
      const auto spec = range_spec(whole.shape(), first, last, context.group());
      Tensor rows = rows_of(first, last);
      const auto expected = begin != first_end
                                ? "rank 1 must begin at " + std::to_string(first_end) +
                                      " of dimension 0 of [6, 2], got " + std::to_string(begin)
                                : "the shards must be all of [6, 2], got [0, " +
                                      std::to_string(end) + ") of dimension 0 of [6, 2]";
      EXPECT_EQ(message_of<Error>([&] { gather_shards(rows, spec); }),
                "gather_shards: " + expected);
      EXPECT_EQ(message_of<Error>([&] { scatter_shards(whole, rows, spec); }),
                "scatter_shards: " + expected);
    });
  };
  on_two_ranks(3, 4, 6);  // a hole
  on_two_ranks(3, 2, 6);  // an overlap
  on_two_ranks(3, 3, 5);  // the last row
}

}  // namespace
}  // namespace moegrad::gather_shards_test
