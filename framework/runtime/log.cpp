// SPDX-License-Identifier: Apache-2.0
#include "framework/runtime/log.h"

#include <spdlog/logger.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <memory>
#include <string>

#include "framework/runtime/rank_context.h"
#include "framework/runtime/status_line.h"
#include "framework/runtime/utf8.h"

namespace moegrad {
namespace {

// One logger per thread; their sinks share spdlog's console mutex.
spdlog::logger& logger() {
  thread_local const auto instance = [] {
    auto logger = std::make_unique<spdlog::logger>(
        "moegrad", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    logger->set_level(spdlog::level::trace);  // log_enabled() decides
    logger->set_pattern("%H:%M:%S.%e %l %v");
    return logger;
  }();
  return *instance;
}

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      break;
  }
  return spdlog::level::err;
}

}  // namespace

bool log_enabled(LogLevel level) {
  const auto* const rank = RankContext::find();
  return level >= (rank != nullptr ? rank->log_level() : LogLevel::kInfo);
}

void log(LogLevel level, std::string_view message) {
  if (!log_enabled(level)) return;
  std::string shown;  // names in a message may come from files
  append_printable(shown, message, /*more=*/false);
  const auto* const rank = RankContext::find();
  const auto who = rank != nullptr ? "rank " + std::to_string(rank->rank()) : "no rank";
  print_above_status_line([&] { logger().log(to_spdlog(level), "[{}] {}", who, shown); });
}

}  // namespace moegrad
