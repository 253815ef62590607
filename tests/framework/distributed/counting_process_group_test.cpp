// SPDX-License-Identifier: Apache-2.0
// A decorator and a mock stand wherever a group is expected: in collectives, meshes, subgroups.
#include "tests/framework/distributed/counting_process_group.h"

#include "framework/distributed/collectives.h"
#include "framework/distributed/device_mesh.h"
#include "tests/framework/distributed/collective_testing.h"
#include "tests/framework/distributed/mock_process_group.h"

namespace moegrad::counting_process_group_test {
namespace {

using namespace test;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::NiceMock;
using ::testing::Return;

TEST(CountingProcessGroup, CountsCallsElementsAndBytesPerOpAndQueue) {
  launch(2, [](RankContext& context) {
    const auto counts = std::make_shared<CallCounts>();
    CountingProcessGroup group(context.group(), counts);
    std::vector<float> four(4), swapped(4), eight(8);
    std::vector<BFloat16> narrow(6);
    const auto out = std::as_writable_bytes(std::span(four));
    const std::int64_t each[] = {2, 2};
    all_gather(group, four, std::span(eight), {.queue = CollectiveQueue::kGather});
    all_gather(group, std::vector<BFloat16>(3), std::span(narrow),
               {.queue = CollectiveQueue::kGather});
    all_gather(group, four, std::span(eight));
    reduce_scatter(group, eight, std::span(four), ReduceOp::kSum,
                   {.queue = CollectiveQueue::kReduce});
    all_reduce(group, std::span(narrow));
    broadcast(group, std::span(four), 1);
    group
        .all_to_all(std::as_bytes(std::span(four)), each,
                    std::as_writable_bytes(std::span(swapped)), each, Dtype::kFloat32)
        ->wait();
    const auto sent = group.send(out, 1 - context.rank(), 0, Dtype::kFloat32);
    group
        .recv(std::as_writable_bytes(std::span(eight).first(4)), 1 - context.rank(), 0,
              Dtype::kFloat32)
        ->wait();
    sent->wait();
    group.barrier()->wait();

    const auto total = [&](std::string op, std::string queue = {}) {
      return counts->total({.op = std::move(op), .queue = std::move(queue)});
    };
    EXPECT_EQ(total("all_gather"), (CallTotals{3, 11, 38}));
    EXPECT_EQ(total("all_gather", "gather"), (CallTotals{2, 7, 22}));
    EXPECT_EQ(total("all_gather", "default"), (CallTotals{1, 4, 16}));
    EXPECT_EQ(total("reduce_scatter", "reduce"), (CallTotals{1, 8, 32}));
    EXPECT_EQ(total("all_reduce"), (CallTotals{1, 6, 12}));
    for (const auto* op : {"broadcast", "all_to_all", "send", "recv"}) {
      EXPECT_EQ(total(op), (CallTotals{1, 4, 16})) << op;
    }
    EXPECT_EQ(total("barrier"), (CallTotals{1, 0, 0}));
    EXPECT_EQ(counts->calls(), 10);
    counts->clear();
    EXPECT_EQ(counts->calls(), 0);
  });
}

TEST(CountingProcessGroup, CountsTheGroupsOfAMeshIntoOneTotal) {
  launch(4, [](RankContext& context) {
    const auto counts = std::make_shared<CallCounts>();
    const auto world = std::make_shared<CountingProcessGroup>(context.group(), counts);
    const DeviceMesh mesh(world, {{"replicate", 2}, {"shard", 2}});
    const auto flat = mesh.flatten({"replicate", "shard"}, "all");
    EXPECT_EQ(counts->calls(), 0);  // making the groups counts nothing
    EXPECT_EQ(flat.group("all"), world);
    EXPECT_EQ(mesh.group("shard")->rank(), context.rank() % 2);
    std::vector<std::int64_t> sum = {context.rank()};
    all_reduce(*mesh.group("shard"), std::span(sum));
    EXPECT_EQ(sum[0], context.rank() / 2 * 4 + 1);
    all_reduce(*mesh.group("replicate"), std::span(sum));
    EXPECT_EQ(sum[0], 6);
    all_reduce(*flat.group("all"), std::span(sum));
    EXPECT_EQ(sum[0], 24);
    for (const auto* group : {"shard", "replicate", "world"}) {
      EXPECT_EQ(counts->total({.op = "all_reduce", .group = group}), (CallTotals{1, 1, 8}));
    }
    EXPECT_EQ(counts->calls(), 3);
  });
}

TEST(CountingProcessGroup, SharedByAllRanksCountsThemAll) {
  const auto counts = std::make_shared<CallCounts>();
  launch(4, [&](RankContext& context) {
    CountingProcessGroup group(context.group(), counts);
    for (int i = 0; i < 10; ++i) group.barrier()->wait();
  });
  EXPECT_EQ(counts->calls({.op = "barrier"}), 40);
}

TEST(DeviceMesh, AsksAMockForTheGroupOfEachAxis) {
  const auto world = std::make_shared<NiceMock<test::MockProcessGroup>>(
      std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7}, 5);
  const auto shard =
      std::make_shared<NiceMock<test::MockProcessGroup>>(std::vector<int>{4, 5, 6, 7}, 1);
  EXPECT_CALL(*world, make_subgroup(ElementsAre(1, 5), "replicate"));
  EXPECT_CALL(*world, make_subgroup(ElementsAre(4, 5, 6, 7), "shard")).WillOnce(Return(shard));
  const DeviceMesh mesh(world, {{"replicate", 2}, {"shard", 4}});
  EXPECT_CALL(*shard, issue(Field(&CollectiveCall::op, CollectiveOp::kBarrier)));
  mesh.group("shard")->barrier();
}

}  // namespace
}  // namespace moegrad::counting_process_group_test
