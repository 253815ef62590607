// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/process_group.h"
#include "framework/runtime/arena.h"
#include "tests/framework/distributed/engine/message_ranks.h"
#include "tests/testing.h"

namespace moegrad::staging_test {
namespace {

using test::launch_on_messages;
using test::message_of;

WorkPtr gather(RankContext& context, const std::vector<float>& input) {
  return context.group()->all_gather(std::as_bytes(std::span(input)), Dtype::kFloat32,
                                     [](PeerSpans) {});
}

TEST(Staging, IsTakenWhereACallIsPostedAndGivenBackWhereALargerOneIsAwaited) {
  launch_on_messages(
      2,
      [](RankContext& context) {
        const auto staged = [&] { return context.arena()->live()[MemoryTag::kCommunication]; };
        const std::vector<float> inlined(512), small(1024), large(2048), largest(4096);
        gather(context, inlined)->wait();
        EXPECT_EQ(staged(), 0);
        const auto first = gather(context, small), second = gather(context, large);
        EXPECT_EQ(staged(), 4 * (1024 + 2048));
        first->wait();
        EXPECT_EQ(staged(), 4 * (1024 + 2048));
        second->wait();
        EXPECT_EQ(staged(), 4 * 2048);
        gather(context, small)->wait();
        EXPECT_EQ(staged(), 4 * 2048);
        gather(context, largest);  // dropped
        EXPECT_EQ(staged(), 4 * 4096);
      },
      {}, 1);
}

TEST(Staging, BeyondTheBudgetIsAnErrorOfTheRankThatPosts) {
  launch_on_messages(
      2,
      [](RankContext& context) {
        context.arena()->set_budget(4095);
        const std::vector<float> input(1024);
        EXPECT_EQ(message_of<MemoryBudgetError>([&] { gather(context, input); }),
                  "arena: budget of 4095 bytes exceeded, 0 live and 4096 more asked for "
                  "communication");
        context.arena()->set_budget(4096);
        gather(context, input)->wait();
      },
      {}, 1);
}

}  // namespace
}  // namespace moegrad::staging_test
