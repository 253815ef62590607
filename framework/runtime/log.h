// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

namespace moegrad {

/// kDebug prints a line for each call of a module (`forward layers.0.mlp`), for each backward that
/// enters the module's part of the tape (`backward layers.0.mlp`), and for each thing that
/// fully_shard does to a group of parameters (`unshard layers.0`). It prints no lines for ops;
/// spans (span.h) show them.
enum class LogLevel : std::uint8_t { kDebug, kInfo, kWarning, kError };

/// Whether the current rank prints messages of this level: RankContext::set_log_level. Ask before
/// building a message that costs something.
bool log_enabled(LogLevel level);

/// Writes one line `time level [rank r] message` to stderr if the level is enabled. Lines of
/// several threads do not mix with each other or with a StatusLine.
void log(LogLevel level, std::string_view message);

}  // namespace moegrad
