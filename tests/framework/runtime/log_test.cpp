// SPDX-License-Identifier: Apache-2.0
#include "framework/runtime/log.h"

#include <gtest/gtest.h>

#include <map>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "framework/runtime/rank_context.h"

namespace moegrad::log_test {
namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// Checks and cuts off the time in front.
std::string after_time(const std::string& line) {
  constexpr std::string_view kTime = "00:00:00.000 ";
  if (line.size() < kTime.size()) return "no time: " + line;
  for (std::size_t i = 0; i < kTime.size(); ++i) {
    const bool digit = '0' <= line[i] && line[i] <= '9';
    if (kTime[i] == '0' ? !digit : line[i] != kTime[i]) return "no time: " + line;
  }
  return line.substr(kTime.size());
}

TEST(Log, PrintsTimeLevelRankAndMessageOnOneLineOfStderr) {
  RankContext context({.rank = 3, .world_size = 4});
  const RankContextGuard guard(context);
  ::testing::internal::CaptureStderr();
  log(LogLevel::kInfo, "step 1 of {} 100%");
  log(LogLevel::kWarning, "careful");
  log(LogLevel::kError, "no");
  const auto lines = lines_of(::testing::internal::GetCapturedStderr());
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(after_time(lines[0]), "info [rank 3] step 1 of {} 100%");
  EXPECT_EQ(after_time(lines[1]), "warning [rank 3] careful");
  EXPECT_EQ(after_time(lines[2]), "error [rank 3] no");
}

TEST(Log, ShowsControlCharactersEscaped) {
  ::testing::internal::CaptureStderr();
  log(LogLevel::kInfo, "folder a\x1b[2Jb\nc of J\u00fcrgen");
  EXPECT_EQ(after_time(::testing::internal::GetCapturedStderr()),
            "info [rank 0] folder a\\x1b[2Jb\nc of J\u00fcrgen\n");
}

TEST(Log, KeepsItsLevelPerRank) {
  RankContext quiet({.log_level = LogLevel::kError});
  RankContext chatty({.log_level = LogLevel::kDebug});
  const RankContextGuard outer(quiet);
  ::testing::internal::CaptureStderr();
  log(LogLevel::kWarning, "not shown");
  EXPECT_FALSE(log_enabled(LogLevel::kWarning));
  EXPECT_TRUE(log_enabled(LogLevel::kError));
  {
    const RankContextGuard inner(chatty);
    EXPECT_TRUE(log_enabled(LogLevel::kDebug));
    log(LogLevel::kDebug, "shown");
    chatty.set_log_level(LogLevel::kInfo);
    log(LogLevel::kDebug, "not shown either");
  }
  const auto lines = lines_of(::testing::internal::GetCapturedStderr());
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_NE(lines[0].find("debug [rank 0] shown"), std::string::npos);
}

TEST(Log, TheDefaultLevelIsInfo) {
  RankContext context;
  const RankContextGuard guard(context);
  EXPECT_FALSE(log_enabled(LogLevel::kDebug));
  EXPECT_TRUE(log_enabled(LogLevel::kInfo));
}

TEST(Log, LinesOfSeveralThreadsDoNotMix) {
  constexpr int kThreads = 4;
  constexpr int kLines = 50;
  ::testing::internal::CaptureStderr();
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < kThreads; ++rank) {
      threads.emplace_back([rank] {
        RankContext context({.rank = rank, .world_size = kThreads});
        const RankContextGuard guard(context);
        for (int i = 0; i < kLines; ++i) log(LogLevel::kInfo, "0123456789");
      });
    }
  }
  const auto lines = lines_of(::testing::internal::GetCapturedStderr());
  EXPECT_EQ(lines.size(), static_cast<std::size_t>(kThreads * kLines));
  std::map<std::string, int> counts;
  for (const auto& line : lines) ++counts[after_time(line)];
  EXPECT_EQ(counts.size(), static_cast<std::size_t>(kThreads));
  for (int rank = 0; rank < kThreads; ++rank) {
    EXPECT_EQ(counts["info [rank " + std::to_string(rank) + "] 0123456789"], kLines);
  }
}

}  // namespace
}  // namespace moegrad::log_test
