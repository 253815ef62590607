// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/device_mesh.h"

#include "framework/distributed/collectives.h"
#include "tests/framework/distributed/collective_testing.h"

namespace moegrad::device_mesh_test {
namespace {

using test::error_message;

// The world's ranks in `group`, found by communicating in it.
std::vector<std::int64_t> members(ProcessGroup& group) {
  const std::vector<std::int64_t> mine = {RankContext::current().rank()};
  std::vector<std::int64_t> all(static_cast<std::size_t>(group.size()));
  all_gather(group, mine, std::span(all));
  return all;
}

TEST(Subgroup, HoldsTheNamedRanksInAscendingOrder) {
  launch(5, [](RankContext& context) {
    const int odd[] = {1, 3}, even[] = {0, 2, 4};
    const bool is_odd = context.rank() % 2 == 1;
    const auto group =
        context.group()->subgroup(is_odd ? std::span<const int>(odd) : even, "parity");
    EXPECT_EQ(group->name(), "parity");
    EXPECT_EQ(group->rank(), context.rank() / 2);
    EXPECT_EQ(members(*group),
              (is_odd ? std::vector<std::int64_t>{1, 3} : std::vector<std::int64_t>{0, 2, 4}));
    std::vector<std::int64_t> sum = {context.rank()};
    all_reduce(*group, std::span(sum));
    EXPECT_EQ(sum[0], is_odd ? 4 : 6);
  });
}

TEST(Subgroup, OfASubgroupCountsItsRanksFromTheSubgroup) {
  launch(4, [](RankContext& context) {
    if (context.rank() == 0) return;
    const int three[] = {1, 2, 3}, outer[] = {0, 2};
    const auto group = context.group()->subgroup(three, "three");
    if (context.rank() == 2) return;
    EXPECT_EQ(members(*group->subgroup(outer, "outer")), (std::vector<std::int64_t>{1, 3}));
  });
}

TEST(Subgroup, OfTheSameNameAndRanksIsANewGroup) {
  launch(2, [](RankContext& context) {
    const int both[] = {0, 1};
    const auto a = context.group()->subgroup(both, "pair");
    const auto b = context.group()->subgroup(both, "pair");
    // Within one group these crossed calls would not match.
    const CollectiveOptions in_a{.label = "a"}, in_b{.label = "b"};
    const auto first = context.rank() == 0 ? a->barrier(in_a) : b->barrier(in_b);
    (context.rank() == 0 ? b->barrier(in_b) : a->barrier(in_a))->wait();
    first->wait();
  });
}

TEST(Subgroup, RejectsRanksThatDoNotAscendOrLackTheCaller) {
  launch(2, [](RankContext& context) {
    const auto subgroup = [&](std::vector<int> ranks) {
      return error_message<ValueError>([&] { context.group()->subgroup(ranks, "bad"); });
    };
    EXPECT_EQ(subgroup({1, 0}), "subgroup: ranks must ascend, got {1, 0}");
    EXPECT_EQ(subgroup({0, 0, 1}), "subgroup: ranks must ascend, got {0, 0, 1}");
    EXPECT_EQ(subgroup({0, 2}), "subgroup: ranks must be in [0, 2), got 2");
    if (context.rank() == 1) {
      EXPECT_EQ(subgroup({0}), "subgroup: ranks must hold the caller's, 1, got {0}");
    }
  });
}

TEST(DeviceMesh, ArrangesTheRanksRowMajor) {
  launch(8, [](RankContext& context) {
    const DeviceMesh mesh(context.group(), {{"replicate", 2}, {"shard", 4}});
    const int rank = context.rank();
    EXPECT_EQ(mesh.size("replicate"), 2);
    EXPECT_EQ(mesh.size("shard"), 4);
    EXPECT_EQ(mesh.coordinate("replicate"), rank / 4);
    EXPECT_EQ(mesh.coordinate("shard"), rank % 4);
    EXPECT_EQ(mesh.group(), context.group());
    EXPECT_EQ(mesh.group("shard")->rank(), rank % 4);
    EXPECT_EQ(mesh.group("replicate")->rank(), rank / 4);
    const std::int64_t row = rank / 4 * 4, column = rank % 4;
    EXPECT_EQ(members(*mesh.group("shard")),
              (std::vector<std::int64_t>{row, row + 1, row + 2, row + 3}));
    EXPECT_EQ(members(*mesh.group("replicate")), (std::vector<std::int64_t>{column, column + 4}));
  });
}

TEST(DeviceMesh, HasThreeAxesAndAxesOfSizeOne) {
  launch(8, [](RankContext& context) {
    const DeviceMesh mesh(context.group(), {{"a", 2}, {"one", 1}, {"b", 2}, {"c", 2}});
    const std::int64_t rank = context.rank();
    EXPECT_EQ(mesh.coordinate("a"), rank / 4);
    EXPECT_EQ(mesh.coordinate("b"), rank / 2 % 2);
    EXPECT_EQ(mesh.coordinate("c"), rank % 2);
    EXPECT_EQ(mesh.coordinate("one"), 0);
    EXPECT_EQ(members(*mesh.group("one")), (std::vector<std::int64_t>{rank}));
    EXPECT_EQ(members(*mesh.group("b")), (std::vector<std::int64_t>{rank & ~2, rank | 2}));
  });
}

TEST(DeviceMesh, FlatIsOneShardAxisOverTheGroupItself) {
  launch(3, [](RankContext& context) {
    const auto mesh = DeviceMesh::flat(context.group());
    EXPECT_EQ(mesh.size("shard"), 3);
    EXPECT_EQ(mesh.coordinate("shard"), context.rank());
    EXPECT_EQ(mesh.group("shard"), context.group());
    EXPECT_EQ(&mesh.dense(), &mesh);
    EXPECT_EQ(&mesh.expert(), &mesh);
  });
}

TEST(DeviceMesh, HasAnotherViewForExperts) {
  launch(4, [](RankContext& context) {
    const DeviceMesh mesh(context.group(), {{"shard", 4}}, {{"replicate", 2}, {"expert", 2}});
    EXPECT_EQ(mesh.dense().size("shard"), 4);
    EXPECT_EQ(mesh.expert().size("expert"), 2);
    EXPECT_TRUE(mesh.expert().has("replicate"));
    EXPECT_FALSE(mesh.dense().has("expert"));
    EXPECT_EQ(mesh.expert().group(), mesh.dense().group());
    const std::int64_t first = context.rank() / 2 * 2;
    EXPECT_EQ(members(*mesh.expert().group("expert")),
              (std::vector<std::int64_t>{first, first + 1}));
  });
}

TEST(DeviceMesh, RejectsTheGroupThatThereIsNotOutsideLaunch) {
  const std::string expected =
      "DeviceMesh: needs a process group, got null; RankContext::current().group() is null outside "
      "launch(), so run this in the body of launch(world_size, body)";
  const auto& group = RankContext::current().group();
  EXPECT_EQ(error_message<ValueError>([&] { DeviceMesh::flat(group); }), expected);
  EXPECT_EQ(error_message<ValueError>([&] { DeviceMesh(group, {{"shard", 1}}); }), expected);
  EXPECT_EQ(error_message<ValueError>([&] {
              DeviceMesh(group, {{"shard", 1}}, {{"expert", 1}});
            }),
            expected);
}

TEST(DeviceMesh, RejectsAxesThatDoNotFitTheGroup) {
  launch(6, [](RankContext& context) {
    const auto mesh = [&](std::vector<MeshAxis> axes) {
      return error_message<ValueError>([&] { DeviceMesh(context.group(), axes); });
    };
    EXPECT_EQ(mesh({{"replicate", 2}, {"shard", 4}}),
              "DeviceMesh: axes replicate 2, shard 4 must make 6 ranks, got 8");
    EXPECT_EQ(mesh({{"shard", 6}, {"none", 0}}),
              "DeviceMesh: the size of axis none must be at least 1, got 0");
    EXPECT_EQ(mesh({{"shard", 2}, {"shard", 3}}),
              "DeviceMesh: axis names must differ, got shard 2, shard 3");
    EXPECT_EQ(error_message<ValueError>([&] { DeviceMesh::flat(context.group()).size("tensor"); }),
              "DeviceMesh: no axis tensor, got axes shard 6");
  });
}

}  // namespace
}  // namespace moegrad::device_mesh_test
