// SPDX-License-Identifier: Apache-2.0
#include "train/train_checkpoints.h"

#include <filesystem>
#include <utility>

#include "framework/distributed/launch.h"
#include "framework/io/checkpoint_folders.h"
#include "framework/io/checkpoint_manifest.h"
#include "models/causal_lm/model.h"
#include "models/causal_lm/save_pretrained.h"
#include "models/hf_checkpoint.h"
#include "optim/adamw.h"
#include "tests/framework/io/files.h"
#include "tests/testing.h"
#include "train/data/windowed_data.h"
#include "train/training_run.h"

namespace moegrad::training::train_checkpoints_test {
namespace {

using namespace test;

/// What a run prints is no business of these tests.
struct Silence {
  Silence() { ::testing::internal::CaptureStdout(); }
  ~Silence() { ::testing::internal::GetCapturedStdout(); }
};

class TrainCheckpointsTest : public ::testing::Test {
 protected:
  TrainCheckpointsTest() {
    options_.model.preset = "tiny";
    options_.optim.steps = 2;
    options_.data.batch = 1;
    options_.data.sequence_length = 16;
    options_.output.sample_bytes = 0;
    options_.data.validation_sequences = 2;
    options_.checkpoint.dir = (folder_ / "run").string();
    options_.checkpoint.interval = 1;
    options_.output.metrics = (folder_ / "metrics.jsonl").string();
  }

  int run(const TrainConfig& options, const TrainingEvents& events = {}) const {
    std::string text;
    for (int i = 0; i < 100; ++i) text += std::to_string(i) + " sheep went to the water.\n";
    const WindowedData data(TextData(text, "sheep", options.data.sequence_length),
                            {.micro_batches = options.data.micro_batches,
                             .sequences = options.data.batch,
                             .validation_sequences = options.data.validation_sequences,
                             .seed = options.optim.seed});
    const Silence silence;
    return run_training(options, data, events);
  }

  /// How a run with `change` is refused that goes on from the last one.
  template <class Change>
  std::string refusal(const Change& change) const {
    TrainConfig options = options_;
    options.checkpoint.resume = true;
    change(options);
    return message_of<Error>([&] { run(options); });
  }

  std::string step_folder(std::int64_t step) const {
    return options_.checkpoint.dir + "/step-0000000" + std::to_string(step);
  }

  /// Gives the last checkpoint another record of its run, as another version would write it.
  template <class Change>
  void rewrite_record(const Change& change) const {
    const auto path = step_folder(options_.optim.steps) + "/" + kManifestFile;
    auto manifest = parse_checkpoint_manifest(read_file(path), "test");
    change(manifest.values);
    write_file(path, to_json(manifest));
  }

  TemporaryFolder folder_;
  TrainConfig options_;
};

TEST_F(TrainCheckpointsTest, RefuseToGoOnWithAnotherValueOfAnOption) {
  ASSERT_EQ(run(options_), 0);
  const auto metrics = read_file(options_.output.metrics);
  const auto as_in = " as in " + step_folder(2) + ", got ";
  EXPECT_EQ(refusal([](TrainConfig& o) { o.data.overfit = true; }),
            "resume: overfit must be false" + as_in + "true");
  EXPECT_EQ(refusal([](TrainConfig& o) { o.data.validation_sequences = 3; }),
            "resume: validation_sequences must be 2" + as_in + "3");
  EXPECT_EQ(refusal([](TrainConfig& o) { o.optim.max_grad_norm = 1.0000000000000002; }),
            "resume: max_grad_norm must be 1" + as_in + "1.0000000000000002");
  EXPECT_EQ(refusal([](TrainConfig& o) { o.optim.steps = 3; }),
            "resume: steps must be 2" + as_in + "3");
  EXPECT_EQ(refusal([](TrainConfig& o) { o.model.dtype = Dtype::kFloat64; }),
            "resume: dtype must be fp32" + as_in + "fp64");
  EXPECT_EQ(refusal([](TrainConfig& o) { o.model.preset = "small"; }),
            "resume: config must be \"head_dim\": 16" + as_in + "\"head_dim\": 32");
  EXPECT_EQ(read_file(options_.output.metrics), metrics);
  // What is listed may change.
  TrainConfig options = options_;
  options.checkpoint.resume = true;
  options.parallel.world_size = 1;
  options.model.layout = Layout::kND;
  options.memory.plan.recompute_layers = 1;
  options.output.temperature = 0.5;
  EXPECT_EQ(run(options), 0);
}

// The models have the same shapes, and their files the same headers.
TEST_F(TrainCheckpointsTest, RefuseToGoOnWithTheWeightsOfAnotherModel) {
  const auto exported = [&](const char* name, std::uint64_t seed) {
    models::CausalLM model(models::CausalLMConfig::preset("tiny"), seed);
    models::save_pretrained(model, folder_ / name);
    return (folder_ / name).string();
  };
  const auto first = exported("first", 1), second = exported("second", 2);
  const auto those = [](const std::string& folder) {
    return "those with CRC-32C " + std::to_string(models::checkpoint_checksum(folder));
  };
  options_.model.hf_model = first;
  ASSERT_EQ(run(options_), 0);
  const auto must_be =
      "resume: initial_weights must be " + those(first) + " as in " + step_folder(2) + ", got ";
  EXPECT_EQ(refusal([&](TrainConfig& o) { o.model.hf_model = second; }), must_be + those(second));
  EXPECT_EQ(refusal([&](TrainConfig& o) { o.model.hf_model = ""; }), must_be + "random ones");
  // The same weights in another place are the same.
  std::filesystem::rename(first, folder_ / "moved");
  options_.model.hf_model = (folder_ / "moved").string();
  options_.checkpoint.resume = true;
  EXPECT_EQ(run(options_), 0);
}

TEST_F(TrainCheckpointsTest, RefuseARecordThatCannotBeCompared) {
  ASSERT_EQ(run(options_), 0);
  rewrite_record([](auto& values) { values.erase("overfit"); });
  EXPECT_EQ(refusal([](TrainConfig&) {}),
            "resume: " + step_folder(2) +
                " must record overfit, got a checkpoint of an earlier version, which did not");
  rewrite_record([](auto& values) {
    values["overfit"] = "false";
    values["dropout"] = "0.1";
  });
  EXPECT_EQ(refusal([](TrainConfig&) {}),
            "resume: " + step_folder(2) + " must record what this version knows, got 'dropout'");
}

TEST_F(TrainCheckpointsTest, AsManyAreKeptAsAsked) {
  options_.optim.steps = 6;
  options_.checkpoint.keep = 4;
  EXPECT_EQ(run(options_), 0);
  EXPECT_EQ(list_checkpoints(options_.checkpoint.dir).size(), 4U);
}

TEST_F(TrainCheckpointsTest, NothingIsSavedBeforeResumeIsCalled) {
  models::CausalLM model(models::CausalLMConfig::preset("tiny"), 1);
  optim::AdamW optimizer(model.named_parameters(), {});
  TrainState state{model, optimizer};
  state.step = 1;
  TrainCheckpoints checkpoints(options_.checkpoint.dir, state);
  EXPECT_TRUE(message_of<Error>([&] {
                checkpoints.save();
              }).starts_with("checkpoints: resume() must be called before the first save"));
  EXPECT_TRUE(list_checkpoints(options_.checkpoint.dir).empty());
  checkpoints.resume();
  checkpoints.save();
  EXPECT_TRUE(checkpoints.finish());
  EXPECT_EQ(list_checkpoints(options_.checkpoint.dir).size(), 1U);
}

TEST_F(TrainCheckpointsTest, AStepThatWasResumedFromIsNotSavedAgain) {
  launch(1, [&](RankContext&) {
    models::CausalLM model(models::CausalLMConfig::preset("tiny"), /*seed=*/1);
    optim::AdamW optimizer(model.named_parameters(), {});
    TrainState state{model, optimizer};
    int points = 0;
    const TrainCheckpointOptions options = {.observe = [&](CheckpointPoint) { ++points; }};
    {
      TrainCheckpoints checkpoints(folder_ / "run", state, options);
      checkpoints.resume();
      state.step = 3;
      checkpoints.save();
      checkpoints.finish();
    }
    const int of_one_save = points;
    EXPECT_GT(of_one_save, 0);
    TrainCheckpoints checkpoints(folder_ / "run", state, options);
    checkpoints.resume();
    checkpoints.save();
    EXPECT_EQ(points, of_one_save);
    ++state.step;
    checkpoints.save();
    checkpoints.finish();
    EXPECT_EQ(points, 2 * of_one_save);
  });
}

/// A weight that is trained, and a count that is not.
class Counting final : public nn::Callable<Counting> {
 public:
  Counting() {
    register_parameter("weight", weight);
    register_buffer("count", count);
  }
  Tensor forward(const Tensor& x) { return x * weight; }
  Tensor weight = Tensor::ones({3}), count = Tensor::zeros({1}, Dtype::kInt64);
};

TEST_F(TrainCheckpointsTest, BuffersAreSavedAndResumed) {
  for (const std::int64_t step : {0, 5}) {
    launch(2, [&](RankContext&) {
      Counting model;
      optim::AdamW optimizer(model.named_parameters(), {});
      TrainState state{model, optimizer};
      TrainCheckpoints checkpoints(folder_ / "run", state);
      checkpoints.resume();
      EXPECT_EQ(state.step, step);
      EXPECT_EQ(model.count.item<std::int64_t>(), 8 * step);
      model.count = Tensor::full({1}, 40.0, Dtype::kInt64);
      state.step = 5;
      checkpoints.save();
      EXPECT_TRUE(checkpoints.finish());
    });
  }
}

TEST_F(TrainCheckpointsTest, MayHaveSkippedEachStepButNoMore) {
  ASSERT_EQ(run(options_), 0);
  rewrite_record([](auto& values) { values[kSkippedSteps] = "3"; });
  EXPECT_EQ(refusal([](TrainConfig&) {}),
            "resume: " + step_folder(2) + ": skipped_steps: must be an integer from 0 to 2, got 3");
  rewrite_record([](auto& values) { values[kSkippedSteps] = "2"; });
  TrainConfig options = options_;
  options.checkpoint.resume = true;
  EXPECT_EQ(run(options), 0);
}

// Between the batches of the first validation, of one in between and of the last one, after a step,
// and between the bytes of the sample.
TEST_F(TrainCheckpointsTest, ARunThatIsToldToStopAtAnyPointGoesOnWithTheSameBits) {
  options_.optim.steps = 3;
  options_.output.validation_interval = 2;
  options_.output.sample_bytes = 3;
  options_.data.validation_sequences = 4;
  options_.checkpoint.interval = 0;
  int asked = 0;
  ASSERT_EQ(run(options_, {.stop_requested = [&] { return ++asked, 0; }}), 0);
  const int points = asked;
  EXPECT_EQ(points, 2 * 3 + 3 + 3);  // two batches for each of two ranks
  const auto weights = [&] { return read_file(step_folder(3) + "/rank-00001.safetensors"); };
  const auto undisturbed = weights();
  int last_steps = 0;
  for (int point = 1; point <= points; ++point) {
    std::filesystem::remove_all(options_.checkpoint.dir);
    std::filesystem::remove(options_.output.metrics);
    asked = 0;
    TrainConfig options = options_;
    const auto code = run(options, {.stop_requested = [&] { return ++asked == point ? 7 : 0; }});
    last_steps += code == 0 ? 1 : 0;  // where there is nothing left to stop
    EXPECT_EQ(code, code == 0 ? 0 : -7);
    EXPECT_EQ(asked, code == 0 ? points : point);
    options.checkpoint.resume = true;
    EXPECT_EQ(run(options), 0);
    EXPECT_EQ(weights(), undisturbed) << point;
  }
  EXPECT_EQ(last_steps, 1);
}

TEST_F(TrainCheckpointsTest, AFailedSaveIsInTheExitCodeThoughALaterOneSucceeds) {
  bool first = true;
  const auto lose_first = [&](int rank, CheckpointPoint point) {
    if (rank != 0 || point != CheckpointPoint::kFilesAgreed || !std::exchange(first, false)) return;
    std::filesystem::remove_all(options_.checkpoint.dir + "/.step-00000001.tmp");
  };
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(run(options_, {.at_checkpoint_point = lose_first}), 1);
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("checkpoint: saving step 1 failed"),
            std::string::npos);
  EXPECT_TRUE(std::filesystem::exists(step_folder(2)));
}

TEST_F(TrainCheckpointsTest, NothingIsSavedInAFolderThatHasTakenTheNameOfTheLockedOne) {
  const auto moved = (folder_ / "moved").string();
  for (const bool replaced : {false, true}) {
    int copies = 0;
    const auto move_folder = [&](int rank, CheckpointPoint point) {
      if (rank != 0 || point != CheckpointPoint::kCopied || ++copies != 2) return;
      std::filesystem::rename(options_.checkpoint.dir, moved);
      if (replaced) std::filesystem::create_directories(step_folder(2) + ".other");
      if (replaced) write_file(options_.checkpoint.dir + "/.lock", "another's");
    };
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(run(options_, {.at_checkpoint_point = move_folder}), 1);
    const auto said = ::testing::internal::GetCapturedStderr();
    EXPECT_NE(
        said.find("checkpoint: saving step 2 failed on rank 0: lock: " + options_.checkpoint.dir +
                  " must stay where it was locked, got it moved or removed since"),
        std::string::npos)
        << said;
    EXPECT_FALSE(std::filesystem::exists(step_folder(2)));
    EXPECT_TRUE(std::filesystem::exists(moved + "/step-00000001"));
    EXPECT_EQ(std::filesystem::exists(options_.checkpoint.dir), replaced);
    EXPECT_EQ(replaced, replaced && read_file(options_.checkpoint.dir + "/.lock") == "another's");
    std::filesystem::remove_all(moved);
  }
}

}  // namespace
}  // namespace moegrad::training::train_checkpoints_test
