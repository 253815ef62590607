// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

namespace moegrad {

/// kDebug shows what this library does, a line each: the call of every module (`forward
/// layers.0.mlp`), a backward that enters its part of the tape (`backward layers.0.mlp`), and what
/// fully_shard does to a group of parameters (`unshard layers.0`). Ops have no lines: spans
/// (span.h) show them.
enum class LogLevel : std::uint8_t { kDebug, kInfo, kWarning, kError };

/// Whether the current rank prints messages of this level: RankContext::set_log_level. Ask before
/// building a message that costs something.
bool log_enabled(LogLevel level);

/// Writes one line `time level [rank r] message` to stderr if the level is enabled. Lines of
/// several threads do not mix, nor do they with a StatusLine.
void log(LogLevel level, std::string_view message);

}  // namespace moegrad
