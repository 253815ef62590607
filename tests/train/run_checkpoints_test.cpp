// SPDX-License-Identifier: Apache-2.0
#include "train/run_checkpoints.h"

#include <filesystem>
#include <utility>

#include "framework/io/checkpoint_folders.h"
#include "framework/io/checkpoint_manifest.h"
#include "tests/framework/io/files.h"
#include "tests/testing.h"
#include "train/data/windowed_data.h"
#include "train/training_run.h"

namespace moegrad::training::run_checkpoints_test {
namespace {

using test::message_of;
using test::read_file;
using test::TemporaryFolder;
using test::write_file;

/// What a run prints is no business of these tests.
struct Silence {
  Silence() { ::testing::internal::CaptureStdout(); }
  ~Silence() { ::testing::internal::GetCapturedStdout(); }
};

class RunCheckpointsTest : public ::testing::Test {
 protected:
  RunCheckpointsTest() {
    options_.preset = "tiny";
    options_.steps = 2;
    options_.batch = 1;
    options_.sequence_length = 16;
    options_.sample_bytes = 0;
    options_.validation_sequences = 2;
    options_.checkpoint_dir = (folder_ / "run").string();
    options_.checkpoint_interval = 1;
    options_.metrics = (folder_ / "metrics.jsonl").string();
  }

  int run(const TrainOptions& options, const TrainingEvents& events = {}) const {
    std::string text;
    for (int i = 0; i < 100; ++i) text += std::to_string(i) + " sheep went to the water.\n";
    const WindowedData data(TextData(text, "sheep", options.sequence_length),
                            {.micro_batches = options.micro_batches,
                             .sequences = options.batch,
                             .validation_sequences = options.validation_sequences,
                             .seed = options.seed});
    const Silence silence;
    return run_training(options, data, events);
  }

  /// How a run with `change` is refused that goes on from the last one.
  template <class Change>
  std::string refusal(const Change& change) const {
    TrainOptions options = options_;
    options.resume = true;
    change(options);
    return message_of<Error>([&] { run(options); });
  }

  std::string step_folder(std::int64_t step) const {
    return options_.checkpoint_dir + "/step-0000000" + std::to_string(step);
  }

  /// Gives the last checkpoint another record of its run, as another version would write it.
  template <class Change>
  void rewrite_record(const Change& change) const {
    const auto path = step_folder(options_.steps) + "/" + kManifestFile;
    auto manifest = parse_checkpoint_manifest(read_file(path), "test");
    change(manifest.values);
    write_file(path, to_json(manifest));
  }

  TemporaryFolder folder_;
  TrainOptions options_;
};

TEST_F(RunCheckpointsTest, RefuseToGoOnWithAnotherValueOfAnOption) {
  ASSERT_EQ(run(options_), 0);
  const auto metrics = read_file(options_.metrics);
  const auto as_in = " as in " + step_folder(2) + ", got ";
  EXPECT_EQ(refusal([](TrainOptions& o) { o.overfit = true; }),
            "--resume: overfit must be false" + as_in + "true");
  EXPECT_EQ(refusal([](TrainOptions& o) { o.validation_sequences = 3; }),
            "--resume: validation_sequences must be 2" + as_in + "3");
  EXPECT_EQ(refusal([](TrainOptions& o) { o.max_grad_norm = 1.0000000000000002; }),
            "--resume: max_grad_norm must be 1" + as_in + "1.0000000000000002");
  EXPECT_EQ(refusal([](TrainOptions& o) { o.steps = 3; }),
            "--resume: steps must be 2" + as_in + "3");
  EXPECT_EQ(read_file(options_.metrics), metrics);
  // What is listed may change.
  TrainOptions options = options_;
  options.resume = true;
  options.world_size = 1;
  options.layout = "nd";
  options.recompute_layers = 1;
  options.temperature = 0.5;
  EXPECT_EQ(run(options), 0);
}

TEST_F(RunCheckpointsTest, RefuseARecordThatCannotBeCompared) {
  ASSERT_EQ(run(options_), 0);
  rewrite_record([](auto& values) { values.erase("overfit"); });
  EXPECT_EQ(refusal([](TrainOptions&) {}),
            "--resume: " + step_folder(2) +
                " must record overfit, got a checkpoint of an earlier version, which did not");
  rewrite_record([](auto& values) {
    values["overfit"] = "false";
    values["dropout"] = "0.1";
  });
  EXPECT_EQ(refusal([](TrainOptions&) {}),
            "--resume: " + step_folder(2) + " must record what this version knows, got 'dropout'");
}

TEST_F(RunCheckpointsTest, AFailedSaveIsInTheExitCodeThoughALaterOneSucceeds) {
  bool first = true;
  const auto lose_first = [&](int rank, CheckpointPoint point) {
    if (rank != 0 || point != CheckpointPoint::kFilesAgreed || !std::exchange(first, false)) return;
    std::filesystem::remove_all(options_.checkpoint_dir + "/.step-00000001.tmp");
  };
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(run(options_, {.at_checkpoint_point = lose_first}), 1);
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("checkpoint: saving step 1 failed"),
            std::string::npos);
  EXPECT_TRUE(std::filesystem::exists(step_folder(2)));
}

TEST_F(RunCheckpointsTest, NothingIsSavedInAFolderThatHasTakenTheNameOfTheLockedOne) {
  const auto moved = (folder_ / "moved").string();
  for (const bool replaced : {false, true}) {
    int copies = 0;
    const auto move_folder = [&](int rank, CheckpointPoint point) {
      if (rank != 0 || point != CheckpointPoint::kCopied || ++copies != 2) return;
      std::filesystem::rename(options_.checkpoint_dir, moved);
      if (replaced) std::filesystem::create_directories(step_folder(2) + ".other");
      if (replaced) write_file(options_.checkpoint_dir + "/.lock", "another's");
    };
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(run(options_, {.at_checkpoint_point = move_folder}), 1);
    const auto said = ::testing::internal::GetCapturedStderr();
    EXPECT_NE(
        said.find("checkpoint: saving step 2 failed on rank 0: lock: " + options_.checkpoint_dir +
                  " must stay where it was locked, got it moved or removed since"),
        std::string::npos)
        << said;
    EXPECT_FALSE(std::filesystem::exists(step_folder(2)));
    EXPECT_TRUE(std::filesystem::exists(moved + "/step-00000001"));
    EXPECT_EQ(std::filesystem::exists(options_.checkpoint_dir), replaced);
    EXPECT_EQ(replaced, replaced && read_file(options_.checkpoint_dir + "/.lock") == "another's");
    std::filesystem::remove_all(moved);
  }
}

}  // namespace
}  // namespace moegrad::training::run_checkpoints_test
