// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/device_mesh.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <string_view>

#include "framework/distributed/collectives.h"
#include "tests/framework/distributed/collective_testing.h"

namespace moegrad::device_mesh_test {
namespace {

using test::error_message;

/// A group that communicates with nobody, on hosts of the test's choice.
class GroupOnHosts final : public ProcessGroup {
 public:
  GroupOnHosts(std::vector<int> ranks, int rank, std::vector<int> hosts)
      : ProcessGroup("on hosts", std::move(ranks), rank, std::move(hosts)) {}

 protected:
  WorkPtr issue(CollectiveCall /*call*/) override { throw Error("must not communicate"); }
  std::shared_ptr<ProcessGroup> make_subgroup(std::span<const int> members,
                                              const std::string& /*name*/) override {
    std::vector<int> world, on;
    for (const int member : members) {
      world.push_back(ranks()[static_cast<std::size_t>(member)]);
      on.push_back(hosts()[static_cast<std::size_t>(member)]);
    }
    const auto place = std::ranges::find(members, rank()) - members.begin();
    return std::make_shared<GroupOnHosts>(std::move(world), static_cast<int>(place), std::move(on));
  }
};

/// The axes that `axis` becomes on each rank; empty where it stays as it is.
std::vector<MeshAxis> axes_by_host(const std::vector<int>& hosts, const std::vector<MeshAxis>& axes,
                                   std::string_view axis) {
  std::vector<int> ranks(hosts.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  std::optional<std::vector<MeshAxis>> found;
  for (const int rank : ranks) {
    const DeviceMesh mesh(std::make_shared<GroupOnHosts>(ranks, rank, hosts), axes);
    const auto by_host = mesh.unflatten_by_host(axis);
    const auto here = by_host ? by_host->axes() : std::vector<MeshAxis>();
    EXPECT_EQ(found.value_or(here), here) << "rank " << rank;
    found = here;
    if (!by_host) continue;
    const auto local = std::string(axis) + "_local", host = std::string(axis) + "_host";
    const auto within = by_host->group(local)->hosts(), between = by_host->group(host)->hosts();
    EXPECT_EQ(std::set<int>(within.begin(), within.end()).size(), 1U);
    EXPECT_EQ(std::set<int>(between.begin(), between.end()).size(), between.size());
  }
  return found.value();
}

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
    EXPECT_EQ(mesh.group(), context.group());
  });
}

using Ranks = std::vector<std::int64_t>;

TEST(DeviceMesh, SlicesAreTheRanksThatDifferInTheirAxesOnly) {
  launch(12, [](RankContext& context) {
    const DeviceMesh mesh(context.group(), {{"pp", 2}, {"shard", 3}, {"tp", 2}});
    const std::int64_t rank = context.rank();
    const auto tp = mesh["tp"];
    EXPECT_EQ(tp.axes(), (std::vector<MeshAxis>{{"tp", 2}}));
    EXPECT_EQ(tp.coordinate("tp"), rank % 2);
    EXPECT_EQ(tp.group(), mesh.group("tp"));
    EXPECT_EQ(members(*tp.group()), (Ranks{rank & ~1, rank | 1}));
    const auto stage = mesh.slice({"shard", "tp"});
    EXPECT_EQ(stage.size(), 6);
    EXPECT_EQ(stage.group("shard"), mesh.group("shard"));
    EXPECT_EQ(error_message<ValueError>([&] { stage.group(); }),
              "DeviceMesh: axes shard 3, tp 2 have no group of their own; flatten them first");
    const auto flat = stage.flatten({"shard", "tp"}, "stage");
    EXPECT_EQ(flat.axes(), (std::vector<MeshAxis>{{"stage", 6}}));
    EXPECT_EQ(flat.coordinate("stage"), rank % 6);
    const auto first = rank / 6 * 6;
    EXPECT_EQ(members(*flat.group()),
              (Ranks{first, first + 1, first + 2, first + 3, first + 4, first + 5}));
    // A slice of axes that are no neighbours: the same rows of both stages.
    const auto apart = mesh.slice({"pp", "tp"}).flatten({"pp", "tp"}, "apart");
    EXPECT_EQ(apart.coordinate("apart"), rank / 6 * 2 + rank % 2);
    const auto even = rank % 6 / 2 * 2;
    EXPECT_EQ(members(*apart.group()), (Ranks{even, even + 1, even + 6, even + 7}));
  });
}

TEST(DeviceMesh, FlattensAndUnflattensAxesAtTheirPlace) {
  launch(8, [](RankContext& context) {
    const DeviceMesh mesh(context.group(), {{"pp", 2}, {"dp", 2}, {"cp", 2}});
    const std::int64_t rank = context.rank();
    const auto dense = mesh.flatten({"dp", "cp"}, "shard");
    EXPECT_EQ(dense.axes(), (std::vector<MeshAxis>{{"pp", 2}, {"shard", 4}}));
    EXPECT_EQ(dense.coordinate("shard"), rank % 4);
    EXPECT_EQ(dense.group("pp"), mesh.group("pp"));
    const auto expert = dense.unflatten("shard", {{"shard", 2}, {"one", 1}, {"ep", 2}});
    EXPECT_EQ(expert.axes(),
              (std::vector<MeshAxis>{{"pp", 2}, {"shard", 2}, {"one", 1}, {"ep", 2}}));
    EXPECT_EQ(expert.coordinate("shard"), rank / 2 % 2);
    EXPECT_EQ(expert.coordinate("ep"), rank % 2);
    EXPECT_EQ(members(*expert.group("shard")), (Ranks{rank & ~2, rank | 2}));
    // The same ranks have the same group, under the name that it had first.
    EXPECT_EQ(expert.group("ep"), mesh.group("cp"));
    EXPECT_EQ(expert.group("shard"), mesh.group("dp"));
    EXPECT_EQ(dense.flatten({"pp", "shard"}, "all").group(), context.group());
    EXPECT_EQ(mesh.flatten({"dp"}, "other name").group("other name"), mesh.group("dp"));
  });
}

TEST(DeviceMesh, ChangesNoGroupOfTheMeshThatItIsMadeFrom) {
  launch(4, [](RankContext& context) {
    const DeviceMesh mesh(context.group(), {{"a", 2}, {"b", 2}});
    const auto flat = mesh.flatten({"a", "b"}, "all");
    EXPECT_FALSE(mesh.has("all"));
    EXPECT_FALSE(flat.has("a"));
    EXPECT_EQ(mesh.axes(), (std::vector<MeshAxis>{{"a", 2}, {"b", 2}}));
  });
}

TEST(DeviceMesh, RejectsAxesThatCannotBeTakenJoinedOrCut) {
  launch(12, [](RankContext& context) {
    const DeviceMesh mesh(context.group(), {{"pp", 2}, {"dp", 3}, {"tp", 2}});
    const auto message = [](const auto& call) { return error_message<ValueError>(call); };
    EXPECT_EQ(message([&] { mesh["cp"]; }), "DeviceMesh: no axis cp, got axes pp 2, dp 3, tp 2");
    EXPECT_EQ(message([&] { mesh.slice({}); }),
              "DeviceMesh: slice must get an axis of pp 2, dp 3, tp 2, got none");
    EXPECT_EQ(message([&] {
                mesh.slice({"tp", "pp"});
              }),
              "DeviceMesh: slice must get axes in the order of pp 2, dp 3, tp 2, got pp after tp");
    EXPECT_EQ(message([&] {
                mesh.slice({"dp", "dp"});
              }),
              "DeviceMesh: slice must get axes in the order of pp 2, dp 3, tp 2, got dp after dp");
    EXPECT_EQ(message([&] {
                mesh.flatten({"pp", "tp"}, "x");
              }),
              "DeviceMesh: flatten must get neighbours of pp 2, dp 3, tp 2; take a slice of the "
              "axes first");
    EXPECT_EQ(message([&] {
                mesh.flatten({"dp", "tp"}, "pp");
              }),
              "DeviceMesh: axis names must differ, got pp 2, pp 6");
    EXPECT_EQ(message([&] {
                mesh.unflatten("dp", {{"a", 2}, {"b", 2}});
              }),
              "DeviceMesh: axes a 2, b 2 must make 3 ranks, got 4");
    EXPECT_EQ(message([&] { mesh.unflatten("dp", {}); }),
              "DeviceMesh: axes  must make 3 ranks, got 1");
    const auto apart = mesh.slice({"pp", "dp"}).flatten({"pp", "dp"}, "x");  // 0, 2, 4, 6, 8, 10
    EXPECT_EQ(apart.unflatten("x", {{"a", 3}, {"b", 2}}).size("a"), 3);
    const DeviceMesh wide(context.group(), {{"pp", 2}, {"tp", 2}, {"dp", 3}});
    const auto gaps = wide.slice({"pp", "dp"}).flatten({"pp", "dp"}, "x");  // 0, 1, 2, 6, 7, 8
    EXPECT_EQ(gaps.unflatten("x", {{"a", 2}, {"b", 3}}).group("a"), wide.group("pp"));
    EXPECT_EQ(message([&] {
                gaps.unflatten("x", {{"a", 3}, {"b", 2}});
              }),
              "DeviceMesh: axis x must be cut where axes were joined, got a 3, b 2");
  });
}

TEST(DeviceMesh, UnflattensAnAxisByTheHostsOfItsRanks) {
  const std::vector<MeshAxis> ep4 = {{"ep", 4}}, two_by_two = {{"ep_host", 2}, {"ep_local", 2}};
  EXPECT_EQ(axes_by_host({0, 0, 1, 1}, ep4, "ep"), two_by_two);
  EXPECT_EQ(axes_by_host({7, 7, 2, 2}, ep4, "ep"), two_by_two);
  EXPECT_EQ(axes_by_host({0, 0, 1, 1, 2, 2}, {{"ep", 6}}, "ep"),
            (std::vector<MeshAxis>{{"ep_host", 3}, {"ep_local", 2}}));
  EXPECT_EQ(axes_by_host({0, 0, 1, 1, 2, 2, 3, 3}, {{"shard", 2}, {"ep", 4}}, "ep"),
            (std::vector<MeshAxis>{{"shard", 2}, {"ep_host", 2}, {"ep_local", 2}}));
  // Neighbours of the axis, which are not neighbours in the world.
  EXPECT_EQ(axes_by_host({0, 0, 0, 0, 1, 1, 1, 1}, {{"ep", 4}, {"tp", 2}}, "ep"),
            (std::vector<MeshAxis>{{"ep_host", 2}, {"ep_local", 2}, {"tp", 2}}));
}

TEST(DeviceMesh, LeavesAnAxisWhoseHostsAreNoGridAsItIs) {
  const std::vector<MeshAxis> ep4 = {{"ep", 4}};
  const std::vector<MeshAxis> none;
  EXPECT_EQ(axes_by_host({0, 0, 0, 0}, ep4, "ep"), none);  // one host
  EXPECT_EQ(axes_by_host({0, 1, 2, 3}, ep4, "ep"), none);  // one rank on each
  EXPECT_EQ(axes_by_host({0, 1, 0, 1}, ep4, "ep"), none);  // not in a row
  EXPECT_EQ(axes_by_host({0, 0, 0, 1}, ep4, "ep"), none);
  EXPECT_EQ(axes_by_host({0, 1, 1, 1}, ep4, "ep"), none);
  EXPECT_EQ(axes_by_host({0, 0, 1, 2}, ep4, "ep"), none);
  EXPECT_EQ(axes_by_host({0, 0, 1, 1, 0, 0, 1, 1}, {{"ep", 8}}, "ep"), none);
  // One group on two hosts, another on one.
  EXPECT_EQ(axes_by_host({0, 0, 1, 1, 2, 2, 2, 2}, {{"shard", 2}, {"ep", 4}}, "ep"), none);
  EXPECT_EQ(axes_by_host({2, 2, 2, 2, 0, 0, 1, 1}, {{"shard", 2}, {"ep", 4}}, "ep"), none);
  EXPECT_EQ(axes_by_host({0}, {{"ep", 1}}, "ep"), none);
  EXPECT_EQ(error_message<ValueError>([&] {
              axes_by_host({0, 0}, {{"ep", 2}}, "tp");
            }),
            "DeviceMesh: no axis tp, got axes ep 2");
}

TEST(DeviceMesh, RejectsTheGroupThatThereIsNotOutsideLaunch) {
  const std::string expected =
      "DeviceMesh: needs a process group, got null; RankContext::current().group() is null outside "
      "launch(), so run this in the body of launch(world_size, body)";
  const auto& group = RankContext::current().group();
  EXPECT_EQ(error_message<ValueError>([&] { DeviceMesh::flat(group); }), expected);
  EXPECT_EQ(error_message<ValueError>([&] { DeviceMesh(group, {{"shard", 1}}); }), expected);
}

TEST(DeviceMesh, RejectsAxesThatDoNotFitTheGroup) {
  launch(6, [](RankContext& context) {
    const auto mesh = [&](std::vector<MeshAxis> axes) {
      return error_message<ValueError>([&] { DeviceMesh(context.group(), axes); });
    };
    EXPECT_EQ(mesh({{"replicate", 2}, {"shard", 4}}),
              "DeviceMesh: axes replicate 2, shard 4 must make 6 ranks, got 8");
    EXPECT_EQ(mesh({{"a", 7}, {"b", 1 << 30}, {"c", 1 << 30}, {"d", 1 << 30}}),
              "DeviceMesh: axes a 7, b 1073741824, c 1073741824, d 1073741824 must make 6 ranks, "
              "got more");
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
