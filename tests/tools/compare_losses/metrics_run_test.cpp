// SPDX-License-Identifier: Apache-2.0
#include "tools/compare_losses/metrics_run.h"

#include <cmath>
#include <filesystem>
#include <limits>

#include "tests/framework/io/files.h"
#include "tests/testing.h"
#include "train/logs/metrics.h"

namespace moegrad::tools::metrics_run_test {
namespace {

using namespace training;

using namespace test;

constexpr std::string_view kFirst = "{\"step\":0,\"loss\":3.5,\"ce\":3.25,\"grad_norm\":1}\n";
constexpr std::string_view kSecond = "{\"step\":1,\"loss\":2.5,\"ce\":2.25,\"grad_norm\":0.5}\n";

MetricsRun read(const std::string& text) {
  const TemporaryFolder folder;
  write_file(folder / "run.jsonl", text);
  return read_metrics((folder / "run.jsonl").string());
}

/// What follows the path in the message.
std::string refusal(const std::string& text) {
  const auto message = message_of<ValueError>([&] { read(text); });
  const std::string name = "/run.jsonl: ";
  return message.substr(message.find(name) + name.size());
}

TEST(ReadMetrics, ReadsWhatTrainingWritesToTheLastBit) {
  const TemporaryFolder folder;
  const auto path = (folder / "run.jsonl").string();
  {
    MetricsFile file(path);
    StepReport report = {.step = 7, .lr = 1e-3, .seconds = 1, .tokens = 64};
    report.result.loss = 1.0 / 3;
    report.result.ce = -0.0;
    report.result.grad_norm = 1e-300;
    file.write(report);
    report.step = 8;
    report.result.loss = NAN;
    report.result.ce = INFINITY;
    file.write(report);
    file.write_validation(9, 2);
  }
  const auto run = read_metrics(path);
  EXPECT_EQ(run.path, path);
  EXPECT_EQ(run.bytes_left_out, 0U);
  ASSERT_EQ(run.steps.size(), 2U);
  EXPECT_EQ(run.steps.at(7), (ComparedValues{1.0 / 3, 0, 1e-300}));
  EXPECT_TRUE(std::signbit(run.steps.at(7)[1]));
  EXPECT_TRUE(std::isnan(run.steps.at(8)[0]));
  EXPECT_TRUE(std::isnan(run.steps.at(8)[1]));  // JSON has no infinity either
  EXPECT_EQ(run.validation_losses, (std::map<std::int64_t, double>{{9, 2}}));
}

TEST(ReadMetrics, TakesTheLaterOfTwoLinesOfAStep) {
  const std::string again = "{\"step\":0,\"loss\":9,\"ce\":8,\"grad_norm\":7}\n";
  const auto run = read(std::string(kFirst) + std::string(kSecond) + again);
  ASSERT_EQ(run.steps.size(), 2U);
  EXPECT_EQ(run.steps.at(0), (ComparedValues{9, 8, 7}));
  EXPECT_EQ(run.steps.at(1), (ComparedValues{2.5, 2.25, 0.5}));
}

TEST(ReadMetrics, LeavesOutALastLineThatIsCutShort) {
  for (std::size_t size = 1; size < kSecond.size(); ++size) {
    const auto run = read(std::string(kFirst) + std::string(kSecond.substr(0, size)));
    const bool whole = size == kSecond.size() - 1;  // but for the end of the line
    EXPECT_EQ(run.steps.size(), whole ? 2U : 1U) << size;
    EXPECT_EQ(run.bytes_left_out, whole ? 0U : size);
  }
}

TEST(ReadMetrics, NamesTheLineThatIsWrong) {
  const std::string first(kFirst), second(kSecond);
  const auto refusal_of_line = [&](const std::string& line) {
    const auto message = refusal(first + line + "\n" + second);
    EXPECT_TRUE(message.starts_with("line 2: ")) << message;
    return message.substr(8);
  };
  EXPECT_EQ(refusal_of_line("{\"step\":1,\"lo"), "must be JSON, got an error at column 14");
  EXPECT_EQ(refusal_of_line(""), "must be JSON, got an error at column 1");
  EXPECT_EQ(refusal(first + second + "{\n"), "line 3: must be JSON, got an error at column 2");
  EXPECT_EQ(refusal_of_line("{\"step\":1,\"step\":1}"),
            "keys of an object must differ, got 'step' twice");
  EXPECT_EQ(refusal_of_line("[1]"), "must be an object, got [1]");
  EXPECT_EQ(refusal_of_line("{\"loss\":1}"), "must have step, got none");
  const std::string step = "step must be an integer from 0 to 9223372036854775807, got ";
  EXPECT_EQ(refusal_of_line("{\"step\":1.5}"), step + "1.5");
  EXPECT_EQ(refusal_of_line("{\"step\":-1}"), step + "-1");
  EXPECT_EQ(refusal_of_line("{\"step\":9223372036854775808}"), step + "9223372036854775808");
  EXPECT_EQ(refusal_of_line("{\"step\":1,\"loss\":1}"), "must have ce, got none");
  EXPECT_EQ(refusal_of_line("{\"step\":1,\"loss\":\"1\"}"),
            "loss must be a number or null, got \"1\"");
  // Whole as JSON, so not cut short.
  EXPECT_EQ(refusal(first + "{\"step\":1}"), "line 2: must have loss, got none");
}

TEST(ReadMetrics, RefusesAFileWithoutStepsAndOneThatCannotBeRead) {
  EXPECT_EQ(refusal(""), "must have a training step, got none");
  EXPECT_EQ(refusal("{\"step\":4,\"validation_loss\":1.5}\n"),
            "must have a training step, got none");
  EXPECT_EQ(message_of<Error>([] { read_metrics("/nowhere/run.jsonl"); }),
            "metrics: /nowhere/run.jsonl: must be a readable regular file, got No such file or "
            "directory");
  EXPECT_EQ(message_of<Error>([] { read_metrics("/"); }),
            "metrics: /: must be a readable regular file, got a folder");
}

}  // namespace
}  // namespace moegrad::tools::metrics_run_test
