// SPDX-License-Identifier: Apache-2.0
#include "framework/io/checkpoint_saver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "framework/runtime/arena.h"
#include "framework/runtime/rank_context.h"
#include "tests/framework/io/checkpoint_samples.h"
#include "tests/framework/io/files.h"

namespace moegrad::checkpoint_saver_test {
namespace {

using namespace test;
using ::testing::ElementsAre;

TEST(CheckpointSaver, SavesTheStateAsItWasWhenCalled) {
  const TemporaryFolder root;
  launch(2, [&](RankContext& context) {
    const DeviceMesh mesh = DeviceMesh::flat(context.group());
    const auto live = parts_of(samples(5), mesh);
    CheckpointSaver saver(root / "", context.group());
    for (std::uint64_t step = 1; step <= 4; ++step) {
      const auto values = parts_of(samples(step), mesh);
      for (std::size_t i = 0; i < live.size(); ++i) {
        Tensor tensor = live[i].tensor;
        copy_(tensor, values[i].tensor);
      }
      saver.save(7, {.tensors = live, .values = {{"text", "of step 7"}}});
      for (const auto& [name, tensor] : live) {
        Tensor changed = tensor;
        fill_(changed, 99);
      }
    }
  });
  expect_at(root / "", 3, 4);
}

TEST(CheckpointSaver, SavesResultsOnTheTape) {
  const TemporaryFolder root;
  const Tensor leaf = test::variable({8});
  {
    CheckpointSaver saver(root / "", nullptr);
    saver.save(1, {.tensors = {{"w", leaf.slice(0, 0, 8)}}});
  }
  EXPECT_THAT(steps_in(root / ""), ElementsAre(1));
}

TEST(CheckpointSaver, RefusesAnUndefinedTensor) {
  const TemporaryFolder root;
  CheckpointSaver saver(root / "", nullptr);
  EXPECT_THROW(saver.save(1, {.tensors = {{"w", Tensor()}}}), UndefinedTensorError);
  EXPECT_EQ(root.count(), 0);
}

TEST(CheckpointSaver, CountsItsBufferAndKeepsIt) {
  const TemporaryFolder root;
  RankContext context;
  const RankContextGuard guard(context);
  const auto state = one_tensor(1);
  {
    CheckpointSaver saver(root / "", nullptr);
    saver.reserve(state);
    EXPECT_EQ(context.arena()->live()[MemoryTag::kCheckpoint], 8 * 4);
    const auto asked = context.arena()->system_allocations();
    for (std::int64_t step = 0; step < 3; ++step) {
      saver.save(step, state);
      EXPECT_EQ(context.arena()->system_allocations(), asked);
      EXPECT_EQ(context.arena()->live()[MemoryTag::kCheckpoint], 8 * 4);
    }
    saver.save(3, {.tensors = {{"w", randn({5})}}});
    EXPECT_EQ(context.arena()->live()[MemoryTag::kCheckpoint], 5 * 8);
  }
  EXPECT_EQ(context.arena()->live()[MemoryTag::kCheckpoint], 0);
  EXPECT_THAT(steps_in(root / ""), ElementsAre(3, 2));
}

// Else they would be freed when the disk is done, and a peak would depend on that.
TEST(CheckpointSaver, HoldsNoBytesOfItsCallers) {
  const TemporaryFolder root;
  launch(2, [&](RankContext& context) {
    std::promise<void> looked;
    const auto has_looked = looked.get_future();
    CheckpointSaver saver(root / "", context.group(), {.observe = [&](CheckpointPoint point) {
                            if (point == CheckpointPoint::kFolderMade) has_looked.wait();
                          }});
    Tensor w = Tensor::ones({8});
    saver.save(1, {.tensors = {{"w", w}}});
    w = Tensor();
    EXPECT_EQ(context.arena()->live()[MemoryTag::kActivations], 0) << context.rank();
    looked.set_value();
    saver.wait();
  });
  EXPECT_THAT(steps_in(root / ""), ElementsAre(1));
}

TEST(CheckpointSaver, ThrowsOnceWhatWentWrongInTheBackground) {
  const TemporaryFolder root;
  test::write_file(root / "file", "not a folder");
  CheckpointSaver saver(root / "file", nullptr);
  saver.save(1, one_tensor(1));
  const auto expected = "checkpoint: saving step 1 failed on rank 0: checkpoint: cannot create " +
                        (root / "file").string() + ": File exists";
  EXPECT_EQ(message_of<Error>([&] { saver.save(2, one_tensor(1)); }), expected);
  saver.wait();
  saver.save(2, one_tensor(1));
  EXPECT_THROW(saver.wait(), Error);
}

TEST(CheckpointSaver, ComesByEveryPointInOrder) {
  const TemporaryFolder root;
  std::vector<CheckpointPoint> points;
  {
    CheckpointSaver saver(root / "", nullptr,
                          {.observe = [&](CheckpointPoint point) { points.push_back(point); }});
    saver.save(1, one_tensor(1));
  }
  std::vector<CheckpointPoint> expected;
  for (int i = 0; i <= static_cast<int>(CheckpointPoint::kSaved); ++i) {
    expected.push_back(static_cast<CheckpointPoint>(i));
  }
  EXPECT_EQ(points, expected);
}

}  // namespace
}  // namespace moegrad::checkpoint_saver_test
