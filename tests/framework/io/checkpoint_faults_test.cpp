// SPDX-License-Identifier: Apache-2.0

// Saving a checkpoint while the disk refuses, and while the power fails.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "framework/io/checkpoint_folders.h"
#include "framework/io/checkpoint_reader.h"
#include "framework/io/checkpoint_saver.h"
#include "framework/io/checkpoint_writer.h"
#include "tests/framework/io/files.h"
#include "tests/framework/io/recorded_disk.h"
#include "tests/framework/io/watched_calls.h"
#include "tests/testing.h"

namespace moegrad::checkpoint_faults_test {
namespace {

namespace fs = std::filesystem;
using namespace test;

Tensor weights_of(std::int64_t step) {
  return test::randn({5, 3}, static_cast<std::uint64_t>(step), Dtype::kFloat32);
}

void save(const fs::path& root, std::int64_t step, std::int64_t keep = 2,
          std::vector<std::string>* warnings = nullptr) {
  const CheckpointState state = {.tensors = {{"w", weights_of(step)}}};
  write_checkpoint(root, step, state, nullptr, {.keep = keep, .warn = [&](const auto& text) {
                                                  ASSERT_NE(warnings, nullptr) << text;
                                                  warnings->push_back(text);
                                                }});
}

// Step of the newest checkpoint, -1 without; it and all others must be as they were written.
std::int64_t newest(const fs::path& root) {
  auto reader = open_newest_checkpoint(root, nullptr,
                                       [](const std::string& reason) { ADD_FAILURE() << reason; });
  if (!reader.has_value()) return -1;
  const Tensor w = Tensor::zeros({5, 3}, Dtype::kFloat32);
  reader->read_all({{"w", w}});
  const auto step = reader->manifest().step;
  EXPECT_TRUE(bitwise_equal(w, weights_of(step))) << step;
  for (const auto& found : list_checkpoints(root)) CheckpointReader(found.path).verify();
  return step;
}

TEST(CheckpointFaults, OfEveryCallLeaveTheEarlierCheckpointAndSayTheReason) {
  for (const int error : {ENOSPC, EIO, EROFS}) {
    if (error != ENOSPC && !test::full_suite()) continue;
    int failed = 0, convenience = 0;
    std::int64_t kept = 1;
    for (int call = 0;; ++call) {
      const TemporaryFolder root;
      save(root / "", 1, 1);
      std::string message, calls;
      std::vector<std::string> warnings;
      bool refused = false;
      {
        WatchedCalls watched;
        watched.fail(call, error);
        try {
          save(root / "", 2, 1, &warnings);
        } catch (const Error& caught) {
          message = caught.what();
        }
        calls = watched.calls();
        refused = watched.failed();
      }
      const auto found = newest(root / "");
      EXPECT_GE(found, kept) << calls;  // once there, the new one stays
      kept = found;
      save(root / "", 3, 1);
      EXPECT_EQ(newest(root / ""), 3);
      if (!refused) break;
      ++failed;
      if (message.empty()) {  // what is for convenience: latest, and the older one
        EXPECT_EQ(found, 2) << calls;
        ASSERT_EQ(warnings.size(), 1U) << calls;
        message = warnings[0];
        ++convenience;
        EXPECT_TRUE(message.starts_with("checkpoint: latest is not moved: ") ||
                    message.starts_with("checkpoint: older checkpoints stay: "))
            << message;
      } else {
        EXPECT_TRUE(message.starts_with("checkpoint: saving step 2 failed on rank 0: ")) << message;
      }
      EXPECT_TRUE(message.ends_with(std::string(": ") + std::strerror(error))) << message;
    }
    EXPECT_GE(failed, 20);
    EXPECT_GE(convenience, 4);
    EXPECT_EQ(kept, 2);
  }
}

TEST(CheckpointFaults, ComeInTheOrderThatTheNoteGives) {
  const TemporaryFolder folder;
  const auto root = folder / "runs";
  WatchedCalls watched;
  save(root, 1);
  EXPECT_EQ(watched.calls(),
            "mkdir fsync(folder) mkdir "                           // root, temporary folder
            "write write write fsync(file) rename fsync(folder) "  // weights
            "write fsync(file) rename fsync(folder) "              // manifest
            "fsync(folder) rename fsync(folder) symlink rename");  // commit, latest
}

TEST(CheckpointFaults, OfAFileSystemThatFlushesNoFoldersAndHasNoLinksAreSaidOnce) {
  for (const int error : {EINVAL, EPERM, ENOSYS, EOPNOTSUPP}) {
    const TemporaryFolder root;
    const std::string reason = std::strerror(error);
    std::vector<std::string> warnings;
    WatchedCalls watched;
    watched.refuse("fsync(folder)", error);
    watched.refuse("symlink", error);
    {
      CheckpointSaver saver(root / "", nullptr, {.keep = 2, .warn = [&](const std::string& text) {
                                                   warnings.push_back(text);
                                                 }});
      for (std::int64_t step = 1; step <= 5; ++step) {
        saver.save(step, {.tensors = {{"w", weights_of(step)}}});
        saver.wait();
      }
    }
    EXPECT_EQ(newest(root / ""), 5);
    EXPECT_EQ(root.count(), 2);  // those that are kept
    EXPECT_THAT(warnings, ::testing::ElementsAre(
                              "checkpoint: folders in " + (root / "").string() +
                                  " cannot be flushed: " + reason +
                                  "; a power failure may lose the newest checkpoints",
                              "checkpoint: latest is not moved: checkpoint: cannot create " +
                                  (root / ".step-latest.tmp").string() + ": " + reason));
  }
  // A disk that fails is no such file system.
  const TemporaryFolder root;
  WatchedCalls watched;
  watched.refuse("fsync(folder)", EIO);
  EXPECT_TRUE(message_of<Error>([&] {
                save(root / "", 1);
              }).starts_with("checkpoint: saving step 1 failed on rank 0: "));
}

TEST(CheckpointFaults, ShortWritesAreContinued) {
  const TemporaryFolder root;
  {
    WatchedCalls watched;
    watched.shorten_writes(7);
    save(root / "", 1);
  }
  EXPECT_EQ(newest(root / ""), 1);
}

// After each operation, everything that no fsync has made durable may be gone, in part or whole.
TEST(CheckpointFaults, OfThePowerLeaveTheNewestCheckpointThatWasSaved) {
  constexpr std::int64_t kSteps = 4;
  const TemporaryFolder base;
  const auto root = base / "runs" / "first";
  std::vector<std::size_t> saved_at;
  const RecordedDisk disk(base / "");
  for (std::int64_t step = 1; step <= kSteps; ++step) {
    save(root, step);
    saved_at.push_back(disk.count());
  }
  save(root, kSteps);  // in its own place
  ASSERT_GE(disk.count(), 80U);

  std::int64_t lost = 0;
  for (std::size_t operations = 0; operations <= disk.count(); ++operations) {
    std::int64_t saved = -1;
    for (std::int64_t step = 1; step <= kSteps; ++step) {
      // While a checkpoint is replaced, the one before it is the newest.
      const bool replaced = step == kSteps && operations > saved_at.back();
      if (saved_at[static_cast<std::size_t>(step - 1)] <= operations && !replaced) saved = step;
    }
    for (std::uint64_t seed = 0; seed < (test::full_suite() ? 6 : 3); ++seed) {
      const auto left = seed == 0 ? Left::kNothing : seed == 1 ? Left::kNames : Left::kSome;
      const TemporaryFolder after;
      disk.restore(operations, left, seed, after / "");
      const auto found = newest(after / "runs" / "first");
      EXPECT_GE(found, saved) << operations << " operations, seed " << seed;
      lost += found < kSteps && found < saved + 1 ? 1 : 0;
      std::error_code none;
      const auto link = fs::read_symlink(after / "runs" / "first" / "latest", none);
      if (!none && operations <= saved_at.back()) {
        EXPECT_TRUE(fs::exists(after / "runs" / "first" / link)) << operations << ' ' << seed;
      }
      save(after / "runs" / "first", kSteps + 1);
      EXPECT_EQ(newest(after / "runs" / "first"), kSteps + 1);
    }
  }
  EXPECT_GT(lost, 100);  // or nothing was lost at all
}

}  // namespace
}  // namespace moegrad::checkpoint_faults_test
