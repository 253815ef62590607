// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/parallel_dims.h"

#include <gtest/gtest.h>

#include "framework/distributed/collectives.h"
#include "framework/distributed/launch.h"
#include "tests/testing.h"

namespace moegrad::parallel_dims_test {
namespace {

using test::message_of;
using Ranks = std::vector<int>;

Ranks ranks_of(const DeviceMesh& mesh, std::string_view axis) {
  const auto ranks = mesh.group(axis)->ranks();
  return {ranks.begin(), ranks.end()};
}

// The example of Note [Which rank is where].
TEST(ParallelDims, MakesExpertGroupsOfNeighboursOfDpShardAndCp) {
  launch(8, [](RankContext& context) {
    const auto meshes = make_meshes(context.group(), {.dp_shard = 4, .cp = 2, .ep = 4});
    const int rank = context.rank();
    EXPECT_EQ(meshes.world.axes(),
              (std::vector<MeshAxis>{
                  {"pp", 1}, {"dp_replicate", 1}, {"dp_shard", 4}, {"cp", 2}, {"tp", 1}}));
    EXPECT_EQ(meshes.world.coordinate("dp_shard"), rank / 2);
    EXPECT_EQ(meshes.world.coordinate("cp"), rank % 2);
    EXPECT_EQ(meshes.dense.axes(),
              (std::vector<MeshAxis>{{"pp", 1}, {"replicate", 1}, {"shard", 8}, {"tp", 1}}));
    EXPECT_EQ(meshes.dense.group("shard"), context.group());
    EXPECT_EQ(meshes.expert.coordinate("shard"), rank / 4);
    EXPECT_EQ(meshes.expert.coordinate("ep"), rank % 4);
    const int first = rank / 4 * 4;
    EXPECT_EQ(ranks_of(meshes.expert, "ep"), (Ranks{first, first + 1, first + 2, first + 3}));
    EXPECT_EQ(ranks_of(meshes.expert, "shard"), (Ranks{rank % 4, rank % 4 + 4}));
    EXPECT_EQ(meshes.fsdp().axes(), (std::vector<MeshAxis>{{"replicate", 1}, {"shard", 8}}));
    EXPECT_EQ(meshes.expert_fsdp().axes(), (std::vector<MeshAxis>{{"replicate", 1}, {"shard", 2}}));
  });
}

TEST(ParallelDims, NumbersRanksAlongAllAxes) {
  launch(16, [](RankContext& context) {
    const auto meshes = make_meshes(context.group(),
                                    {.dp_replicate = 2, .dp_shard = -1, .tp = 2, .ep = 2, .pp = 2});
    const int rank = context.rank();
    EXPECT_EQ(meshes.world.size("dp_shard"), 2);
    for (const auto& [axis, stride] :
         {std::pair("pp", 8), {"dp_replicate", 4}, {"dp_shard", 2}, {"tp", 1}}) {
      EXPECT_EQ(meshes.world.coordinate(axis), rank / stride % 2) << axis;
      EXPECT_EQ(ranks_of(meshes.world, axis), (Ranks{rank & ~stride, rank | stride})) << axis;
    }
    // The ranks of a tp group have a layer's experts between them.
    EXPECT_EQ(meshes.expert.group("ep"), meshes.world.group("tp"));
    EXPECT_EQ(meshes.expert.group("replicate"), meshes.world.group("dp_replicate"));
    EXPECT_EQ(meshes.expert.group("shard"), meshes.world.group("dp_shard"));
  });
}

TEST(ParallelDims, NamesTheAxesOfEachGroup) {
  using Names = std::map<std::string, std::string>;
  launch(8, [](RankContext& context) {
    const auto names = [&](const ParallelDims& dims) {
      return make_meshes(context.group(), dims).axes_of_groups();
    };
    EXPECT_EQ(names({.dp_shard = 8}), (Names{{"world", "dp_shard"}}));
    EXPECT_EQ(names({.dp_shard = 8, .ep = 8}), (Names{{"world", "dp_shard+ep"}}));
    EXPECT_EQ(names({.dp_shard = 8, .ep = 4}), (Names{{"world", "dp_shard"}, {"ep", "ep"}}));
    EXPECT_EQ(names({.dp_shard = 4, .cp = 2, .ep = 2}),
              (Names{{"dp_shard", "dp_shard"}, {"cp", "cp+ep"}}));
    EXPECT_EQ(names({.dp_replicate = 2, .dp_shard = 2, .tp = 2, .ep = 2}),
              (Names{{"dp_replicate", "dp_replicate"}, {"dp_shard", "dp_shard"}, {"tp", "tp+ep"}}));
    EXPECT_EQ(names({.dp_shard = 1, .tp = 8}), (Names{{"world", "tp"}}));
  });
}

// The ranks of a tp group have the experts between them, or each has all.
TEST(ParallelDims, WithTensorParallelismExpertsAreOnItsRanks) {
  launch(8, [](RankContext& context) {
    const auto meshes = make_meshes(context.group(), {.dp_shard = 4, .tp = 2, .ep = 2});
    EXPECT_EQ(meshes.expert.group("ep"), meshes.dense.group("tp"));
    EXPECT_EQ(meshes.expert.group("shard"), meshes.dense.group("shard"));
    EXPECT_FALSE(meshes.expert.has("tp"));
    const auto whole = make_meshes(context.group(), {.dp_shard = 4, .tp = 2});
    EXPECT_EQ(whole.expert.size("ep"), 1);
    EXPECT_EQ(whole.expert.group("shard")->size(), 4);
    EXPECT_EQ(test::message_of<ValueError>([&] { resolved({.dp_shard = 4, .tp = 2, .ep = 4}, 8); }),
              "ParallelDims: ep must be 1 or tp, 2, got 4");
  });
}

TEST(ParallelDims, NameTheWaysThatDivide) {
  EXPECT_EQ(to_string(ParallelDims{}), "one rank");
  EXPECT_EQ(to_string({.dp_replicate = 2, .dp_shard = 4, .ep = 4}),
            "dp_replicate 2, dp_shard 4, ep 4");
  EXPECT_EQ(
      (ParallelDims{.dp_replicate = 2, .dp_shard = 3, .cp = 5, .tp = 7, .ep = 3, .pp = 11}.ranks()),
      2 * 3 * 5 * 7 * 11);
}

TEST(ParallelDims, DpShardTakesWhatTheOthersLeave) {
  EXPECT_EQ(resolved({.dp_shard = -1, .tp = 2}, 12), (ParallelDims{.dp_shard = 6, .tp = 2}));
  EXPECT_EQ(resolved({.dp_shard = -1}, 1), ParallelDims{});
}

TEST(ParallelDims, RejectSizesThatDoNotFit) {
  const auto message = [](const ParallelDims& dims, int world_size) {
    return message_of<ValueError>([&] { resolved(dims, world_size); });
  };
  EXPECT_EQ(message({.dp_shard = 4, .tp = 3}, 8),
            "ParallelDims: pp 1, dp_replicate 1, dp_shard 4, cp 1, tp 3 must make 8 ranks, got 12");
  EXPECT_EQ(message({.dp_shard = -1, .tp = 3}, 8),
            "ParallelDims: pp 1, dp_replicate 1, dp_shard 1, cp 1, tp 3 must divide the 8 ranks, "
            "so that dp_shard takes the rest");
  EXPECT_EQ(message({.tp = 0}, 1), "ParallelDims: tp must be at least 1, got 0");
  EXPECT_EQ(message({.dp_shard = 0}, 1),
            "ParallelDims: dp_shard must be at least 1, or -1 for all ranks that are left, got 0");
  EXPECT_EQ(message({.pp = -1}, 1), "ParallelDims: pp must be at least 1, got -1");
  EXPECT_EQ(message({.ep = -4}, 1), "ParallelDims: ep must be at least 1, got -4");
  EXPECT_EQ(message({.dp_shard = 4, .cp = 2, .ep = 3}, 8),
            "ParallelDims: ep must divide dp_shard x cp, 4 x 2, got 3");
  EXPECT_EQ(message({.dp_shard = 4, .ep = 8}, 4),
            "ParallelDims: ep must divide dp_shard x cp, 4 x 1, got 8");
  EXPECT_EQ(message({.dp_shard = 2, .cp = 4, .ep = 2}, 8),
            "ParallelDims: ep must be a multiple of cp, 4, got 2");
  EXPECT_EQ(message({.dp_shard = 1 << 30, .cp = 1 << 30, .tp = 1 << 30, .pp = 4}, 8),
            "ParallelDims: pp 4, dp_replicate 1, dp_shard 1073741824, cp 1073741824, tp "
            "1073741824 must make 8 ranks, got more");
  EXPECT_EQ(message_of<ValueError>([] { make_meshes(nullptr, {}); }),
            "ParallelDims: needs a process group, got null; run this in the body of "
            "launch(world_size, body)");
}

}  // namespace
}  // namespace moegrad::parallel_dims_test
