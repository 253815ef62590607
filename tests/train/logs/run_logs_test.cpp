// SPDX-License-Identifier: Apache-2.0
#include "train/logs/run_logs.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "framework/distributed/collectives.h"
#include "framework/distributed/launch.h"
#include "models/causal_lm/config_json.h"
#include "tests/framework/io/files.h"
#include "tests/testing.h"
#include "tests/train/logs/event_reader.h"
#include "train/config/train_options.h"
#include "train/data/windowed_data.h"
#include "train/logs/exchange.h"
#include "train/train_step.h"
#include "train/training_run.h"

namespace moegrad::training::run_logs_test {
namespace {

using nlohmann::json;
using namespace test;

constexpr double kGibibyte = 1 << 30;

class RunLogsTest : public ::testing::Test {
 protected:
  RunLogsTest() {
    options_.model.preset = "tiny";
    options_.optim.steps = 4;
    options_.data.batch = 1;
    options_.data.sequence_length = 16;
    options_.output.sample_bytes = 0;
    options_.data.validation_sequences = 2;
    options_.output.metrics = path("metrics.jsonl");
  }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  /// Returns what it printed.
  std::string run(const TrainingEvents& events = {}, int exit_code = 0) const {
    std::string text;
    for (int i = 0; i < 100; ++i) text += std::to_string(i) + " sheep went to the water.\n";
    const WindowedData data(TextData(text, "sheep", options_.data.sequence_length),
                            {.micro_batches = options_.data.micro_batches,
                             .sequences = options_.data.batch,
                             .validation_sequences = options_.data.validation_sequences,
                             .seed = options_.optim.seed});
    ::testing::internal::CaptureStdout();
    EXPECT_EQ(run_training(options_, data, events), exit_code);
    return ::testing::internal::GetCapturedStdout();
  }

  std::vector<json> lines() const {
    std::ifstream file(options_.output.metrics);
    std::vector<json> all;
    for (std::string line; std::getline(file, line);) all.push_back(json::parse(line));
    return all;
  }

  /// The part of each line that is the same in every run.
  std::vector<json> losses(bool with_validation = true) const {
    std::vector<json> all;
    for (const auto& line : lines()) {
      if (!with_validation && line.contains("validation_loss")) continue;
      json kept;
      for (const char* key : {"step", "loss", "ce", "grad_norm", "validation_loss"}) {
        if (line.contains(key)) kept[key] = line[key];
      }
      all.push_back(kept);
    }
    return all;
  }

  std::vector<std::filesystem::path> event_files() const {
    std::set<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator(options_.output.tensorboard)) {
      files.insert(entry.path());
    }
    return {files.begin(), files.end()};
  }

  TemporaryFolder folder_;
  TrainConfig options_;
};

class EventFilesTest : public RunLogsTest, public ::testing::WithParamInterface<int> {};
INSTANTIATE_TEST_SUITE_P(ExpertParallel, EventFilesTest, ::testing::Values(1, 2));

TEST_P(EventFilesTest, HoldTheValuesOfTheMetricsFile) {
  options_.parallel.expert_parallel = GetParam();
  if (GetParam() > 1) {
    options_.memory.plan = {.offload = "activations", .offload_window = 5000};
    options_.parallel.world_size = 2 * GetParam();  // two expert groups
    options_.data.micro_batches = options_.parallel.world_size;
  }
  options_.output.tensorboard = path("board");
  options_.output.validation_interval = 2;
  options_.output.log_every = 2;
  run();
  ASSERT_EQ(event_files().size(), 1U);
  std::map<std::pair<std::string, std::int64_t>, float> scalars;
  std::map<std::pair<std::string, std::int64_t>, std::vector<double>> histograms;
  for (const auto& event : read_event_file(event_files()[0]).events) {
    for (const auto& scalar : event.scalars) scalars[{scalar.tag, event.step}] = scalar.value;
    for (const auto& histogram : event.histograms) {
      histograms[{histogram.tag, event.step}] = histogram.counts;
    }
  }
  const auto take = [&](const std::string& tag, std::int64_t step, double expected) {
    const auto found = scalars.find({tag, step});
    ASSERT_NE(found, scalars.end()) << tag << ' ' << step;
    EXPECT_EQ(found->second, static_cast<float>(expected)) << tag << ' ' << step;
    scalars.erase(found);
  };
  for (const auto& line : lines()) {
    const auto step = line["step"].get<std::int64_t>();
    if (line.contains("validation_loss")) {
      take("validation_metrics/loss", step, line["validation_loss"]);
      continue;
    }
    const double seconds = line["seconds"], data_seconds = line["data_seconds"];
    take("loss_metrics/global_avg_loss", step, line["ce"]);
    take("loss_metrics/objective", step, line["loss"]);
    take("grad_norm", step, line["grad_norm"]);
    take("lr", step, line["lr"]);
    take("throughput(tps)", step, line["tgs"]);
    take("time_metrics/end_to_end(s)", step, seconds);
    take("time_metrics/data_loading(s)", step, data_seconds);
    take("time_metrics/data_loading(%)", step, 100 * data_seconds / seconds);
    take("mfu(%)", step, 100 * line["mfu"].get<double>());
    take("skipped_steps", step, line["skipped_steps"]);
    take("routing/worst_load", step, line["worst_load"]);
    take("routing/entropy", step, line["router_entropy"]);
    ASSERT_EQ(line.contains("exchange"), GetParam() > 1);
    if (GetParam() > 1) {
      const auto& exchange = line["exchange"];
      for (const std::string name :
           {"rows_sent", "rows_received", "bytes_sent", "bytes_received"}) {
        EXPECT_GT(exchange[name], 0);
        take("expert_parallel/" + name, step, exchange[name]);
      }
      const double waited = exchange["wait_seconds"];
      EXPECT_LT(waited, seconds);
      take("expert_parallel/waiting(%)", step, 100 * waited / seconds);
      const auto loads = exchange["rank_load"].get<std::vector<double>>();
      const StepResult routed{.tokens_per_expert = line["tokens_per_expert"]};
      EXPECT_EQ(loads, rank_load(routed, GetParam()));
      take("expert_parallel/worst_rank_load", step, *std::ranges::max_element(loads));
    }
    ASSERT_EQ(line.contains("swap"), GetParam() > 1);
    if (GetParam() > 1) {
      const auto& swap = line["swap"];
      EXPECT_GT(swap["bytes_in"], 0);
      EXPECT_GT(swap["bytes_out"], swap["bytes_in"]);
      take("swap/bytes_out", step, swap["bytes_out"]);
      take("swap/bytes_in", step, swap["bytes_in"]);
      const double waited = swap["wait_seconds"];
      take("swap/waiting(%)", step, 100 * waited / seconds);
    }
    std::set<std::string> axes;
    for (const auto& [axis, figures] : line["axes"].items()) {
      axes.insert(axis);
      for (const std::string name : {"bytes_sent", "bytes_received"}) {
        EXPECT_GT(figures[name], 0);
        take("axes/" + axis + '/' + name, step, figures[name]);
      }
      const double waited = figures["wait_seconds"];
      take("axes/" + axis + "/waiting(%)", step, 100 * waited / seconds);
    }
    EXPECT_EQ(axes, GetParam() == 1 ? std::set<std::string>({"dp_shard"})
                                    : std::set<std::string>({"dp_shard", "ep", "shard"}));
    take("memory/max_active(GiB)", step, line["peak_bytes"]["total"].get<double>() / kGibibyte);
    for (std::size_t i = 0; i < kMemoryTags; ++i) {
      const std::string tag(to_string(static_cast<MemoryTag>(i)));
      take("memory/max_" + tag + "(GiB)", step, line["peak_bytes"][tag].get<double>() / kGibibyte);
    }
    for (std::size_t layer = 0; layer < line["tokens_per_expert"].size(); ++layer) {
      const auto found =
          histograms.find({"tokens_per_expert/mixture_layer_" + std::to_string(layer), step});
      ASSERT_EQ(found != histograms.end(), step % 2 == 0 || step == 3) << step;
      if (found == histograms.end()) continue;
      EXPECT_EQ(found->second, line["tokens_per_expert"][layer].get<std::vector<double>>());
      histograms.erase(found);
    }
  }
  EXPECT_TRUE(scalars.empty()) << scalars.begin()->first.first;
  EXPECT_TRUE(histograms.empty());
}

TEST_F(RunLogsTest, ALineHasWhatAReportNeeds) {
  run();
  const auto all = lines();
  ASSERT_EQ(all.size(), 5U);
  for (const auto& line : std::span(all).first(4)) {
    ASSERT_EQ(line["tokens_per_expert"].size(), 4U);
    for (const auto& layer : line["tokens_per_expert"]) {
      const auto counts = layer.get<std::vector<std::int64_t>>();
      // Two micro-batches of a sequence, two experts per token.
      EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), std::int64_t{0}), 2 * 16 * 2);
    }
    std::int64_t most = 0, sum = 0;
    for (std::size_t tag = 0; tag < kMemoryTags; ++tag) {
      const std::int64_t bytes = line["peak_bytes"][to_string(static_cast<MemoryTag>(tag))];
      most = std::max(most, bytes);
      sum += bytes;
    }
    EXPECT_GT(line["peak_bytes"]["parameters"], 0);
    EXPECT_GE(line["peak_bytes"]["total"], most);
    EXPECT_LE(line["peak_bytes"]["total"], sum);
    const auto loads = line["expert_load"].get<std::vector<double>>();
    EXPECT_EQ(line["worst_load"], *std::ranges::max_element(loads));
    EXPECT_GT(line["router_entropy"], 0);
    EXPECT_LT(line["router_entropy"], std::log(8));
    // Two micro-batches of a sequence.
    EXPECT_EQ(line["model_flops"], 2 * 16 * models::flops_per_token(options_.model_config(), 16));
    EXPECT_EQ(line["mfu"], line["model_flops"].get<double>() /
                               (line["seconds"].get<double>() * line["peak_flops"].get<double>()));
    EXPECT_EQ(line["skipped_steps"], 0);
    EXPECT_GT(line["data_seconds"], 0);
    EXPECT_LT(line["data_seconds"], line["seconds"]);
    EXPECT_EQ(line.contains("configuration"), line["step"] == 0);
    EXPECT_FALSE(line.contains("communication"));
  }
  EXPECT_EQ(all[0]["configuration"], describe(options_));
  EXPECT_EQ(all[4].size(), 2U);
  EXPECT_EQ(all[4]["step"], 4);
}

TEST_F(RunLogsTest, OptionsOfTheUpdateAndOfTheSampleHaveTheirEffect) {
  const auto after = [&](auto change) {
    const auto before = options_;
    change(options_);
    run();
    options_ = before;
    return losses().back();
  };
  const auto usual = after([](TrainConfig&) {});
  EXPECT_EQ(after([](TrainConfig& o) { o.optim.weight_decay = 0.1; }), usual);  // the default
  EXPECT_NE(after([](TrainConfig& o) { o.optim.weight_decay = 0; }), usual);
  const auto loose = after([](TrainConfig& o) { o.optim.max_grad_norm = 1e30; });
  EXPECT_NE(loose, usual);
  EXPECT_EQ(after([](TrainConfig& o) { o.optim.max_grad_norm = 0; }), loose);  // no limit
  options_.output.sample_bytes = 16;
  const auto sample = [&](double temperature) {
    options_.output.temperature = temperature;
    const auto printed = run();
    const auto at = printed.find("sample: ");
    EXPECT_NE(at, std::string::npos) << printed;
    return printed.substr(at, printed.find('\n', at) - at);
  };
  EXPECT_NE(sample(0), sample(100));
}

TEST_F(RunLogsTest, PeaksAreTheMostOfAnyRankSinceTheLineBefore) {
  ::testing::internal::CaptureStdout();
  launch(2, [&](RankContext& context) {
    StepProfile profile({}, "");
    RunLogs logs(options_.output, {.steps = 4}, context, profile);
    const MemoryTagGuard tag(MemoryTag::kGradients);
    const auto use = [&](std::int64_t bytes) { Tensor::zeros({bytes / 8}, Dtype::kFloat64); };
    use(context.rank() == 0 ? 800 : 8000);
    logs.end_step({.step = 0, .seconds = 1});
    use(context.rank() == 0 ? 160 : 80);
    logs.end_step({.step = 1, .seconds = 1});
  });
  ::testing::internal::GetCapturedStdout();
  const auto all = lines();
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all[0]["peak_bytes"]["gradients"], 8000);
  EXPECT_EQ(all[0]["peak_bytes"]["total"], 8000);
  EXPECT_EQ(all[0]["peak_bytes"]["activations"], 0);
  EXPECT_EQ(all[1]["peak_bytes"]["gradients"], 160);
  EXPECT_EQ(all[1]["peak_bytes"]["total"], 160);
}

// What the logs exchange to know it does not count.
TEST_F(RunLogsTest, AxesHaveTheBytesAndTheWaitingOfTheStepAlone) {
  for (const int ranks : {1, 2}) {
    ::testing::internal::CaptureStdout();
    launch(ranks, [&](RankContext& context) {
      StepProfile profile({}, "");
      RunLogs logs(options_.output, {.steps = 2, .axes = {{"world", "tp"}}}, context, profile);
      for (std::int64_t step = 0; step < 2; ++step) {
        const std::vector<float> input(step == 0 ? 5 : 7);
        std::vector<float> output(input.size() * static_cast<std::size_t>(context.world_size()));
        logs.begin_step(step);
        all_gather(*context.group(), input, std::span(output));
        logs.end_step({.step = step, .seconds = 1});
      }
    });
    ::testing::internal::GetCapturedStdout();
    const auto all = lines();
    ASSERT_EQ(all.size(), 2U);
    for (std::size_t step = 0; step < 2; ++step) {
      EXPECT_EQ(all[step].contains("axes"), ranks > 1);
      if (ranks == 1) continue;
      auto axes = all[step]["axes"];
      const int bytes = step == 0 ? 20 : 28;
      EXPECT_GT(axes["tp"]["wait_seconds"], 0);
      axes["tp"].erase("wait_seconds");
      EXPECT_EQ(axes, json({{"tp", {{"bytes_sent", bytes}, {"bytes_received", bytes}}}}));
    }
  }
}

TEST_F(RunLogsTest, ValidationTraceAndTensorBoardChangeNoBitOfALoss) {
  run();
  const auto expected = losses();
  options_.output.validation_interval = 1;
  options_.output.tensorboard = path("board");
  options_.output.profile_steps = {{1, 3}};
  options_.output.profile = path("trace.json");
  const auto printed = run();
  EXPECT_EQ(losses(false), std::vector(expected.begin(), expected.end() - 1));
  std::vector<std::int64_t> validated;
  for (const auto& line : lines()) {
    if (line.contains("validation_loss")) validated.push_back(line["step"]);
  }
  EXPECT_EQ(validated, (std::vector<std::int64_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(lines().back()["validation_loss"], expected.back()["validation_loss"]);
  EXPECT_NE(printed.find(" nats per byte after 3 steps\n"), std::string::npos) << printed;
}

TEST_F(RunLogsTest, ATraceHoldsTheChosenStepsOfAllRanksAlone) {
  options_.output.profile_steps = {{1, 3}};
  options_.output.profile = path("trace.json");
  options_.output.validation_interval = 1;
  const auto printed = run();
  EXPECT_NE(printed.find("trace of steps 1 to 2 in " + options_.output.profile + ", for"),
            std::string::npos)
      << printed;
  std::map<std::pair<int, std::string>, int> phases;
  const auto trace = json::parse(read_file(options_.output.profile));
  for (const auto& event : trace["traceEvents"]) {
    if (event["ph"] != "X") continue;
    ++phases[{event["pid"].get<int>(), event["name"].get<std::string>()}];
  }
  for (const int rank : {0, 1}) {
    // A micro-batch per rank and step; a validation would be another forward.
    EXPECT_EQ((phases[{rank, "forward"}]), 2);
    EXPECT_EQ((phases[{rank, "optimizer"}]), 2);
    EXPECT_GT((phases[{rank, "all_gather model.layers.3"}]), 0);
    EXPECT_EQ((phases[{rank, "all_reduce peak bytes"}]), 0);
  }
  for (const auto& line : lines()) {
    ASSERT_EQ(line.contains("communication"), line["step"] == 2 && line.contains("loss"));
    if (!line.contains("communication")) continue;
    const auto& figures = line["communication"];
    EXPECT_EQ(figures["steps"], 2);
    EXPECT_GT(figures["compute_seconds"], 0);
    for (const char* lane : {"gather", "reduce"}) {
      EXPECT_GT(figures[lane]["bytes"], 0);
      EXPECT_GE(figures[lane]["seconds"], figures[lane]["exposed_seconds"]);
    }
  }
}

TEST_F(RunLogsTest, RecordingIsOffOutsideTheChosenSteps) {
  options_.output.profile_steps = {{1, 2}};
  options_.output.profile = path("trace.json");
  std::array<std::vector<bool>, 2> recorded;
  ::testing::internal::CaptureStdout();
  launch(2, [&](RankContext& context) {
    StepProfile profile(options_.output.profile_steps, options_.output.profile);
    if (context.rank() == 0) profile.open(0);
    auto& own = recorded[static_cast<std::size_t>(context.rank())];
    for (std::int64_t step = 0; step < 3; ++step) {
      profile.begin_step(step, context);
      own.push_back(context.spans().records(SpanKind::kCollective));
      const auto figures = profile.end_step(step, context);
      EXPECT_EQ(figures.has_value(), step == 1 && context.rank() == 0);
      own.push_back(context.spans().records(SpanKind::kPhase));
    }
  });
  ::testing::internal::GetCapturedStdout();
  const std::vector<bool> expected = {false, false, true, false, false, false};
  EXPECT_EQ(recorded[0], expected);
  EXPECT_EQ(recorded[1], expected);
}

// As far as a reader of one folder goes, each run has its own.
TEST_F(RunLogsTest, ARunThatBeginsKeepsEarlierEventFilesInAFolderOfTheirOwn) {
  options_.output.tensorboard = path("board");
  run();
  const auto first = event_files();
  ASSERT_EQ(first.size(), 1U);
  const auto bytes = read_file(first[0]);
  std::ofstream(path("board/events.out.tfevents.1700000000.host.1.0")) << "another program's";
  options_.optim.seed = 2;
  const auto printed = run();
  const auto kept = std::filesystem::path(path("board/1"));
  EXPECT_NE(printed.find("--tensorboard: the earlier event files of " + path("board") +
                         " are kept in " + kept.string() + "\n"),
            std::string::npos)
      << printed;
  EXPECT_EQ(read_file(kept / first[0].filename()), bytes);
  ASSERT_EQ(event_files().size(), 3U);  // with the folder, and what is not ours
  run();
  EXPECT_TRUE(std::filesystem::exists(path("board/2")));
  EXPECT_EQ(read_file(kept / first[0].filename()), bytes);
  EXPECT_EQ(event_files().size(), 4U);
}

TEST_F(RunLogsTest, EventFilesAreOfOneRunAtATime) {
  const auto board = path("board");
  std::optional<EventFileWriter> other(board);
  for (const std::int64_t first_step : {0, 3}) {
    EXPECT_EQ(test::message_of<ValueError>([&] { TensorboardLog(board, first_step); }),
              "--tensorboard: " + board +
                  " must be of one run at a time, got another that writes " +
                  other->path().filename().string());
  }
  other.reset();
  TensorboardLog(board, 3);
  EXPECT_FALSE(std::filesystem::exists(path("board/1")));
}

TEST_F(RunLogsTest, ATraceOfAResumedRunNamesTheStepsThatItHas) {
  ::testing::internal::CaptureStdout();
  launch(1, [&](RankContext&) { StepProfile({{1, 3}}, path("trace.json")).open(2); });
  EXPECT_TRUE(::testing::internal::GetCapturedStdout().starts_with("trace of steps 2 to 2 in "));
}

TEST_F(RunLogsTest, ARunNeedsTheVocabularyOfItsData) {
  options_.data.tokens = path("ids.bin");
  test::write_file(options_.data.tokens, std::string(2000, '\1'));
  const auto refusal = [&](TokenSource tokens) {
    const WindowedData data(TextData(std::move(tokens), options_.data.sequence_length),
                            {.micro_batches = 2});
    return test::message_of<ValueError>([&] { run_training(options_, data, {}); });
  };
  EXPECT_EQ(refusal(TokenSource::tokenized_file(options_.data.tokens, {}, 300)),
            "training: '" + options_.data.tokens +
                "' must have ids of the model's vocab_size 256, got ids of a vocab_size of 300");
  auto larger = models::CausalLMConfig::preset("tiny");
  larger.vocab_size = 257;
  options_.model.config = path("config.json");
  test::write_file(options_.model.config, to_json(larger));
  EXPECT_EQ(refusal(TokenSource::text(std::string(2000, 'a'), "letters")),
            "training: the bytes of a text need a model with a vocab_size of 256, got 257");
}

// The validation loss after the last step of the first part is one at the first step of the second.
TEST_F(RunLogsTest, ALongerRunKeepsTheValidationLossWhereItGoesOn) {
  options_.optim.schedule = ScheduleKind::kConstant;
  options_.output.tensorboard = path("board");
  options_.checkpoint.dir = path("checkpoints");
  run();
  const auto first = losses();
  ASSERT_EQ(first.size(), 5U);
  options_.optim.steps = 6;
  options_.checkpoint.resume = true;
  const auto printed = run();
  const auto all = losses();
  ASSERT_EQ(all.size(), 8U);
  EXPECT_EQ(std::vector(all.begin(), all.begin() + 5), first);
  EXPECT_EQ(all[7]["step"], 6);
  EXPECT_EQ(printed.find("after 4 steps"), std::string::npos) << printed;
  std::map<std::int64_t, float> shown;
  for (const auto& event : read_event_file(event_files()[1]).events) {
    for (const auto& scalar : event.scalars) {
      if (scalar.tag == "validation_metrics/loss") shown[event.step] = scalar.value;
    }
  }
  EXPECT_EQ(shown, (std::map<std::int64_t, float>{{4, first[4]["validation_loss"].get<float>()},
                                                  {6, all[7]["validation_loss"].get<float>()}}));
}

TEST_F(RunLogsTest, AResumedRunGoesOnWithItsFiles) {
  options_.output.validation_interval = 2;
  run();
  const auto expected = losses();
  options_.output.metrics = path("resumed.jsonl");
  options_.output.tensorboard = path("board");
  options_.checkpoint.dir = path("checkpoints");
  options_.output.profile_steps = {{0, 1}};
  options_.output.profile = path("trace.json");
  int steps = 0;
  // Asked before the batch of the first validation, then after each step.
  run({.stop_requested = [&] { return ++steps == 4; }}, -1);
  EXPECT_EQ(losses().size(), 4U);
  const auto trace = read_file(options_.output.profile);
  options_.checkpoint.resume = true;
  ::testing::internal::CaptureStderr();
  run();
  const auto said = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(losses(), expected);
  EXPECT_EQ(read_file(options_.output.profile), trace);
  EXPECT_NE(said.find("--profile-steps: no trace is written, since steps 0 to 0 lie before step 2, "
                      "where the run begins\n"),
            std::string::npos)
      << said;
  // Readers drop the steps from 2 on of the first file.
  ASSERT_EQ(event_files().size(), 2U);
  const auto events = read_event_file(event_files()[1]).events;
  EXPECT_TRUE(events[0].session_start);
  EXPECT_EQ(events[0].step, 2);
  EXPECT_EQ(std::ranges::count(events, true, &LogEvent::session_start), 1);
  for (const auto& event : read_event_file(event_files()[0]).events) {
    EXPECT_FALSE(event.session_start);
  }
  for (const auto& line : lines()) {
    EXPECT_EQ(line.contains("configuration"),
              line.contains("loss") && (line["step"] == 0 || line["step"] == 2));
  }
}

}  // namespace
}  // namespace moegrad::training::run_logs_test
