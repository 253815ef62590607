// SPDX-License-Identifier: Apache-2.0
#include "framework/runtime/log.h"

#include <gtest/gtest.h>

#include <regex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "framework/runtime/rank_context.h"

namespace moegrad {
namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
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
  const std::string time = R"(\d\d:\d\d:\d\d\.\d\d\d )";
  EXPECT_TRUE(
      std::regex_match(lines[0], std::regex(time + R"(info \[rank 3\] step 1 of \{\} 100%)")))
      << lines[0];
  EXPECT_TRUE(std::regex_match(lines[1], std::regex(time + R"(warning \[rank 3\] careful)")))
      << lines[1];
  EXPECT_TRUE(std::regex_match(lines[2], std::regex(time + R"(error \[rank 3\] no)"))) << lines[2];
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
  const std::regex whole(R"(\d\d:\d\d:\d\d\.\d\d\d info \[rank [0-3]\] 0123456789)");
  for (const auto& line : lines) EXPECT_TRUE(std::regex_match(line, whole)) << line;
}

}  // namespace
}  // namespace moegrad
