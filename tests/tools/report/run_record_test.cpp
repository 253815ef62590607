// SPDX-License-Identifier: Apache-2.0
#include "tools/report/run_record.h"

#include <cmath>

#include "tests/framework/io/files.h"
#include "tests/testing.h"
#include "train/logs/metrics.h"

namespace moegrad::tools::run_record_test {
namespace {

using namespace training;

using namespace test;

RunRecord read(const std::string& text) {
  const TemporaryFolder folder;
  write_file(folder / "run.jsonl", text);
  return read_run_record((folder / "run.jsonl").string());
}

/// What follows the number of the line in the message.
std::string refusal(const std::string& line) {
  const auto message = message_of<ValueError>([&] { read(line + "\n"); });
  const std::string where = "/run.jsonl: line 1: ";
  return message.substr(message.find(where) + where.size());
}

/// The least that a line has, and `more`.
std::string step_line(int step, const std::string& more = {}) {
  return "{\"step\":" + std::to_string(step) +
         R"(,"ce":2,"grad_norm":1,"lr":0.5,"tokens_per_second":32,"tokens":64,"seconds":2)" + more +
         "}\n";
}

StepReport report_of(std::int64_t step) {
  StepReport report = {
      .step = step, .lr = 0.25, .seconds = 2, .data_seconds = 0.5, .tokens = 64, .world_size = 2};
  report.result.ce = 3.5;
  report.result.grad_norm = 1.5;
  report.result.tokens_per_expert = {{10, 30}, {20, 20}};
  report.result.router_entropy = 0.75;
  report.result.model_flops = 5e9;
  report.peak_flops = 1e10;
  report.skipped_steps = step - 3;
  report.peak_bytes = {1, 2, 3, 4, 5, 6};
  report.peak_total = 20;
  return report;
}

TEST(ReadRunRecord, ReadsWhatTrainingWrites) {
  const TemporaryFolder folder;
  const auto path = (folder / "run.jsonl").string();
  {
    MetricsFile file(path);
    auto report = report_of(4);
    report.configuration = "  model  tiny\n";
    report.axes = {{.axis = "tp+ep", .bytes_sent = 1, .bytes_received = 2, .wait_seconds = 0.25}};
    file.write(report);
    report = report_of(5);
    report.peak_bytes = {6, 5, 4, 3, 2, 1};
    report.peak_total = 10;
    report.result.ce = NAN;
    report.axes = {{.axis = "tp+ep", .bytes_sent = 3, .bytes_received = 4, .wait_seconds = 0.5},
                   {.axis = "world", .bytes_sent = 5}};
    report.profile = {.steps = 2, .timeline = {.compute = 0.5, .gather = 0.25}};
    report.profile->timeline.exposed_gather = 0.125;
    report.profile->timeline.other_bytes = 7;
    file.write(report);
    file.write_validation(6, 2.5);
  }
  const auto run = read_run_record(path);
  EXPECT_EQ(run.path, path);
  EXPECT_EQ(run.steps, 2);
  EXPECT_EQ(run.first_step, 4);
  EXPECT_EQ(run.last_step, 5);
  EXPECT_EQ(run.ce.bins()[0].mean(), 3.5);
  EXPECT_EQ(run.ce.missing(), 1);
  EXPECT_EQ(run.grad_norm.last(), 1.5);
  EXPECT_EQ(run.lr.last(), 0.25);
  EXPECT_EQ(run.tokens_per_second.last(), 32);
  EXPECT_EQ(run.data_percent.last(), 25);
  EXPECT_EQ(run.mfu_percent.last(), 25);
  EXPECT_EQ(run.router_entropy.last(), 0.75);
  EXPECT_EQ(run.skipped_steps, 2);
  EXPECT_EQ(run.validation.last(), 2.5);
  EXPECT_EQ(run.validation.bins()[0].step(), 6);
  EXPECT_EQ(run.tokens, 128);
  EXPECT_EQ(run.total_seconds, 4);
  EXPECT_EQ(run.total_data_seconds, 1);
  ASSERT_TRUE(run.loads && run.memory && run.communication);
  EXPECT_EQ(run.loads->loads(0), (std::vector<std::vector<double>>{{0.5, 1.5}, {0.5, 1.5}}));
  EXPECT_EQ(run.memory->tags, (std::array<double, kMemoryTags>{6, 5, 4, 4, 5, 6}));
  EXPECT_EQ(run.memory->total, 20);
  EXPECT_EQ(run.communication->steps, 2);
  EXPECT_EQ(run.communication->compute_seconds, 0.5);
  EXPECT_EQ(run.communication->gather.seconds, 0.25);
  EXPECT_EQ(run.communication->gather.exposed_seconds, 0.125);
  EXPECT_EQ(run.communication->other.bytes, 7);
  ASSERT_EQ(run.axes.size(), 2U);
  const auto& tp = run.axes.at("tp+ep");
  EXPECT_EQ(tp.steps, 2);
  EXPECT_EQ(tp.seconds, 4);
  EXPECT_EQ(tp.bytes_sent, 4);
  EXPECT_EQ(tp.bytes_received, 6);
  EXPECT_EQ(tp.wait_seconds, 0.75);
  EXPECT_EQ(run.axes.at("world").steps, 1);
  EXPECT_EQ(run.axes.at("world").bytes_sent, 5);
  EXPECT_EQ(run.configuration, "  model  tiny\n");
  EXPECT_EQ(run.starts, std::vector<std::int64_t>{4});
}

TEST(ReadRunRecord, DoesWithoutWhatEarlierVersionsDidNotWrite) {
  const auto run = read(step_line(0) + step_line(1) + "{\"step\":2,\"ce\"");
  EXPECT_EQ(run.steps, 2);
  EXPECT_EQ(run.bytes_left_out, 14U);
  EXPECT_FALSE(run.loads || run.memory || run.communication);
  EXPECT_TRUE(run.axes.empty());
  EXPECT_TRUE(run.configuration.empty() && run.starts.empty() && run.parts.empty());
  EXPECT_EQ(run.clipping.steps, 0);
  EXPECT_TRUE(run.data_percent.bins().empty());
  EXPECT_TRUE(run.mfu_percent.bins().empty());
  EXPECT_TRUE(run.router_entropy.bins().empty());
  EXPECT_EQ(run.skipped_steps, 0);
}

TEST(ReadRunRecord, TakesTheConfigurationOfTheLastPartAndKnowsWhereEachBegan) {
  const auto run = read(step_line(0, ",\"configuration\":\"a\"") + step_line(1) +
                        step_line(2, ",\"configuration\":\"b\""));
  EXPECT_EQ(run.configuration, "b");
  EXPECT_EQ(run.starts, (std::vector<std::int64_t>{0, 2}));
}

std::string step_of_norm(int step, const std::string& grad_norm, const std::string& more = {}) {
  return "{\"step\":" + std::to_string(step) +
         R"(,"ce":2,"lr":0.5,"tokens_per_second":32,"tokens":64,"seconds":2,"grad_norm":)" +
         grad_norm + more + "}\n";
}

TEST(ReadRunRecord, CountsTheStepsAboveTheLimitOfTheirPart) {
  const auto limit = [](const std::string& value) {
    return ",\"run\":{\"max_grad_norm\":" + value + "}";
  };
  // Above 2: the second and third of four finite norms. Above 4: one of two.
  const auto run = read(step_of_norm(0, "2", limit("2")) + step_of_norm(1, "2.5") +
                        step_of_norm(2, "5") + step_of_norm(3, "null") + step_of_norm(4, "1") +
                        step_of_norm(5, "3", limit("4")) + step_of_norm(6, "4.5"));
  EXPECT_EQ(run.clipping.clipped, 3);
  EXPECT_EQ(run.clipping.steps, 6);
  ASSERT_EQ(run.parts.size(), 2U);
  EXPECT_EQ(run.parts[0].first_step, 0);
  EXPECT_EQ(run.parts[1].first_step, 5);
  EXPECT_EQ(run.parts[1].header.max_grad_norm, 4);
  for (const std::string& none : {limit("0"), limit("null"), limit("-1"), std::string()}) {
    EXPECT_EQ(read(step_of_norm(0, "3", none)).clipping.steps, 0) << none;
  }
}

TEST(ReadRunRecord, FindsTheHeaderOnALineOfAValidationLoss) {
  const auto run = read(
      "{\"step\":0,\"validation_loss\":5,\"run\":{\"unit\":\"byte\",\"command\":[\"a\"],"
      "\"max_grad_norm\":0.5}}\n" +
      step_line(0));
  ASSERT_EQ(run.parts.size(), 1U);
  EXPECT_EQ(run.parts[0].header.unit, "byte");
  EXPECT_EQ(run.parts[0].header.command, std::vector<std::string>{"a"});
  EXPECT_EQ(run.clipping.clipped, 1);
}

TEST(ReadRunRecord, KeepsTheThroughputOfEachStep) {
  std::string text;
  for (const char* value : {"30", "10", "null", "70", "20"}) {
    auto line = step_line(0);
    text += line.replace(line.find(":32,"), 4, ":" + std::string(value) + ",");
  }
  const auto run = read(text);
  EXPECT_EQ(run.throughputs, (std::vector<double>{30, 10, 70, 20}));
}

TEST(ReadRunRecord, NamesWhatIsWrong) {
  EXPECT_EQ(refusal("{\"step\":0}"), "must have ce, got none");
  EXPECT_EQ(refusal("{\"step\":1000000000000001,\"validation_loss\":1}"),
            "step must be at most 1000000000000000, got 1000000000000001");
  const auto of = [](const std::string& more) {
    auto line = step_line(0, "," + more);
    line.pop_back();
    return refusal(line);
  };
  const std::string counts = "\"tokens_per_expert\":";
  EXPECT_EQ(of(counts + "3"), "tokens_per_expert must be an array, got 3");
  EXPECT_EQ(of(counts + "[1]"), "tokens_per_expert[0] must be an array, got 1");
  EXPECT_EQ(of(counts + "[[1],[]]"), "tokens_per_expert[1] must have an expert, got none");
  for (const std::string value : {"-1", "1.5", "\"a\""}) {
    EXPECT_EQ(
        of(counts + "[[1," + value + "]]"),
        "tokens_per_expert[0][1] must be an integer from 0 to 18446744073709551615, got " + value);
  }
  EXPECT_EQ(of("\"peak_bytes\":1"), "peak_bytes must be an object, got 1");
  EXPECT_EQ(of("\"peak_bytes\":{}"), "peak_bytes must have parameters, got none");
  EXPECT_EQ(of("\"configuration\":{}"), "configuration must be a string, got {}");
  EXPECT_EQ(of("\"run\":1"), "run must be an object, got 1");
  EXPECT_EQ(of("\"run\":{\"cpu\":1}"), "run.cpu must be a string, got 1");
  EXPECT_EQ(of("\"communication\":[]"), "communication must be an object, got []");
  EXPECT_EQ(of("\"communication\":{\"steps\":1,\"compute_seconds\":1}"),
            "communication must have gather, got none");
  EXPECT_EQ(of("\"communication\":{\"steps\":1,\"compute_seconds\":1,\"gather\":{}}"),
            "communication.gather must have seconds, got none");
  const auto two = message_of<ValueError>([] {
    read(step_line(0, ",\"tokens_per_expert\":[[1]]") +
         step_line(1, ",\"tokens_per_expert\":[[1,2]]"));
  });
  EXPECT_TRUE(
      two.ends_with(": line 2: tokens_per_expert must be of 1 layers of 1 experts, got 1 "
                    "layers of 2 experts"))
      << two;
  EXPECT_TRUE(message_of<ValueError>([] {
                read("{\"step\":0,\"validation_loss\":1}\n");
              }).ends_with("/run.jsonl: must have a training step, got none"));
}

}  // namespace
}  // namespace moegrad::tools::run_record_test
