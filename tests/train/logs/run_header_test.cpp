// SPDX-License-Identifier: Apache-2.0
#include "train/logs/run_header.h"

#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>
#include <thread>

#include "tests/framework/io/files.h"
#include "tests/testing.h"
#include "train/logs/metrics.h"
#include "train/logs/run_header_json.h"

namespace moegrad::training::run_header_test {
namespace {

using nlohmann::json;
using namespace test;

TEST(RunHeader, TellsOfTheRunThatStarts) {
  TrainConfig options;
  options.data.text = "/a/b/kjv.txt";
  options.optim.steps = 7;
  options.optim.max_grad_norm = 0.5;
  options.command = {"train", "--steps", "7"};
  const auto header = run_header(options, "byte", {{"seed", "1"}});
  EXPECT_EQ(header.title, "small on kjv.txt");
  EXPECT_EQ(run_header(options, "token", {{"seed", "1"}}).identity, header.identity);
  EXPECT_NE(run_header(options, "byte", {{"seed", "2"}}).identity, header.identity);
  EXPECT_EQ(header.version, MOEGRAD_VERSION);
  EXPECT_EQ(header.command, options.command);
  EXPECT_EQ(header.unit, "byte");
  EXPECT_EQ(header.steps, 7);
  EXPECT_EQ(header.max_grad_norm, 0.5);
  std::tm date = {};
  ASSERT_NE(strptime(header.date.c_str(), "%Y-%m-%dT%H:%M:%SZ", &date), nullptr) << header.date;
  EXPECT_LT(std::abs(std::difftime(std::time(nullptr), timegm(&date))), 60);
  std::istringstream cpuinfo(read_file("/proc/cpuinfo"));
  if (!cpu_model(cpuinfo).empty()) {
    EXPECT_TRUE(std::regex_match(header.cpu, std::regex(".+, \\d+ CPUs?"))) << header.cpu;
  }
}

TEST(RunHeader, NamesACpuAsItsSystemDoes) {
  std::istringstream amd(
      "processor\t: 0\nmodel\t\t: 1\nmodel name\t: AMD EPYC 7B13\n\nmodel name\t: x\n");
  EXPECT_EQ(cpu_model(amd), "AMD EPYC 7B13");
  std::istringstream arm(
      "processor\t: 0\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU part\t: 0xd0c\n");
  EXPECT_EQ(cpu_model(arm), "implementer 0x41, part 0xd0c");
  std::istringstream neither("processor\t: 0\nhart\t: 1\n");
  EXPECT_EQ(cpu_model(neither), "");
}

TEST(RunHeader, HasATitleForEveryKindOfModelAndData) {
  TrainConfig options;
  const auto title = [&] { return run_header(options, "", {}).title; };
  EXPECT_EQ(title(), "small on the King James text");
  options.data.text = "texts/t";
  EXPECT_EQ(title(), "small on t");
  options.model.preset = "tiny";
  options.data.tokens = "d/ids.bin";
  EXPECT_EQ(title(), "tiny on ids.bin");
  options.model.config = "c/config.json";
  EXPECT_EQ(title(), "config.json on ids.bin");
  options.model.hf_model = "models/qwen/";
  EXPECT_EQ(title(), "qwen on ids.bin");
  options.model.hf_model = "models/qwen";
  EXPECT_EQ(title(), "qwen on ids.bin");
  options.model.hf_model = "//";
  EXPECT_EQ(title(), "// on ids.bin");
}

RunHeader header_of(const std::string& text) {
  return run_header_of(JsonNode::parse(text, 2, "who"));
}

TEST(RunHeader, IsTheSameAfterJson) {
  const RunHeader header = {.identity = "i",
                            .title = "a",
                            .date = "b",
                            .version = "c",
                            .cpu = "d",
                            .command = {"e", ""},
                            .unit = "f",
                            .steps = 9,
                            .max_grad_norm = 0.1};
  const auto again = header_of(to_json(header).dump());
  EXPECT_EQ(to_json(again), to_json(header));
  EXPECT_EQ(again.command, header.command);
  EXPECT_EQ(again.max_grad_norm, 0.1);
  EXPECT_EQ(to_json(RunHeader()), json::object());
  const auto nothing = header_of("{}");
  EXPECT_TRUE(nothing.identity.empty() && nothing.title.empty() && nothing.date.empty() &&
              nothing.version.empty() && nothing.cpu.empty() && nothing.command.empty() &&
              nothing.unit.empty());
  EXPECT_FALSE(nothing.steps || nothing.max_grad_norm);
}

TEST(RunHeader, NamesThePartThatIsWrong) {
  const auto refusal = [](const std::string& text) {
    return message_of<ValueError>([&] { header_of(text); });
  };
  for (const std::string key : {"identity", "title", "date", "version", "cpu", "unit"}) {
    EXPECT_EQ(refusal("{\"" + key + "\":1}"), "who: " + key + " must be a string, got 1");
  }
  EXPECT_EQ(refusal(R"({"command":"a"})"), "who: command must be an array, got \"a\"");
  EXPECT_EQ(refusal(R"({"command":["a",1]})"), "who: command[1] must be a string, got 1");
  EXPECT_EQ(refusal(R"({"steps":1.5})"),
            "who: steps must be an integer from 0 to 9223372036854775807, got 1.5");
  EXPECT_EQ(refusal(R"({"steps":9223372036854775808})"),
            "who: steps must be an integer from 0 to 9223372036854775807, got "
            "9223372036854775808");
  EXPECT_EQ(refusal(R"({"max_grad_norm":"1"})"),
            "who: max_grad_norm must be a number or null, got \"1\"");
}

TEST(RunHeader, IsOnTheFirstLineThatARunWrites) {
  const TemporaryFolder folder;
  const auto path = (folder / "run.jsonl").string();
  {
    MetricsFile file(path, 0, RunHeader{.title = "first"});
    file.write_validation(0, 5);
    file.write({.step = 0, .seconds = 1});
  }
  {
    MetricsFile file(path, 1, RunHeader{.title = "again \xFF"});
    file.write({.step = 1, .seconds = 1});
    file.write_validation(2, 4);
  }
  std::istringstream lines(read_file(path));
  std::vector<json> all;
  for (std::string line; std::getline(lines, line);) all.push_back(json::parse(line));
  ASSERT_EQ(all.size(), 4U);
  EXPECT_EQ(all[0]["run"]["title"], "first");
  EXPECT_FALSE(all[1].contains("run"));
  EXPECT_EQ(all[2]["run"]["title"], "again \uFFFD");
  EXPECT_FALSE(all[3].contains("run"));
}

TEST(RunHeader, AFileThatCannotBeReadToItsEndIsAnError) {
  EXPECT_EQ(test::message_of<ValueError>([] { MetricsFile("/proc/self/mem", 1, RunHeader{}); }),
            "--metrics: cannot read file '/proc/self/mem' to its end");
}

// A run of a constant rate may be resumed with fewer steps than its file has.
TEST(RunHeader, SaysIfAResumedRunWritesAllLinesAgain) {
  const TemporaryFolder folder;
  const auto path = (folder / "run.jsonl").string();
  const auto resume_until = [&](std::int64_t steps, std::int64_t due = 2) {
    ::testing::internal::CaptureStdout();
    {
      MetricsFile file(path, 0, RunHeader{.identity = "a", .steps = 6});
      for (std::int64_t step = 0; step < 6; ++step) {
        file.write({.step = step, .seconds = 1});
        if (step % 2 == 1) file.write_validation(step + 1, 4);
      }
    }
    const auto before = read_file(path);
    MetricsFile(path, 2, RunHeader{.identity = "a", .steps = steps, .validation_interval = due});
    ::testing::internal::GetCapturedStdout();
    const auto kept = path + ".1";
    const bool is_kept = std::filesystem::exists(kept) && read_file(kept) == before;
    std::filesystem::remove(kept);
    std::filesystem::remove(path);
    return is_kept;
  };
  EXPECT_FALSE(resume_until(6));
  EXPECT_FALSE(resume_until(9));
  EXPECT_TRUE(resume_until(5));
  EXPECT_TRUE(resume_until(3));
  EXPECT_TRUE(resume_until(6, 0));  // without the validation losses in between
  EXPECT_FALSE(resume_until(6, 4));
  EXPECT_TRUE(resume_until(6, 5));
  EXPECT_FALSE(resume_until(6, 1));
}

// A run that is stopped before its first step has lost nothing.
TEST(RunHeader, AResumedRunKeepsTheValidationLossWhereItBegins) {
  const TemporaryFolder folder;
  const auto path = (folder / "run.jsonl").string();
  const auto lines = [&](std::int64_t steps, std::int64_t resumed_at) {
    std::filesystem::remove(path);
    {
      MetricsFile file(path, 0, RunHeader{.identity = "a", .steps = 2});
      for (std::int64_t step = 0; step < 2; ++step) file.write({.step = step, .seconds = 1});
      file.write_validation(2, 4);
      file.write_validation(2, 4);  // as earlier versions did
    }
    const MetricsFile again(path, resumed_at, RunHeader{.identity = "a", .steps = steps});
    EXPECT_EQ(again.had_validation(), steps > 2 && resumed_at == 2);
    const auto text = read_file(path);
    return std::ranges::count(text, '\n');
  };
  EXPECT_EQ(lines(4, 2), 3);
  EXPECT_EQ(lines(2, 2), 2);  // the end of the run writes it
  EXPECT_EQ(lines(4, 1), 1);
}

TEST(ShellWord, HasQuotesWhereACharacterNeedsThem) {
  EXPECT_EQ(shell_word("--text=a/b_c.d"), "--text=a/b_c.d");
  EXPECT_EQ(shell_word(""), "''");
  EXPECT_EQ(shell_word("a b"), "'a b'");
  EXPECT_EQ(shell_word("it's"), "'it'\\''s'");
  EXPECT_EQ(shell_word("$(rm)"), "'$(rm)'");
  EXPECT_EQ(shell_word("a\nb"), "'a\nb'");
  EXPECT_EQ(shell_word("~"), "'~'");
  EXPECT_EQ(shell_word("caf\u00E9"), "caf\u00E9");
}

}  // namespace
}  // namespace moegrad::training::run_header_test
