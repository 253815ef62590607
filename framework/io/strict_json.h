// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace moegrad {

/// Parses JSON and refuses what other parsers accept silently: duplicate keys (by default the last
/// one wins), nesting deeper than `max_depth` (an array or object at the top has depth 1), a byte
/// order mark, NUL bytes (by default the end of the text), invalid UTF-8, text after the value, and
/// numbers that a double cannot hold (by default one that is too small is 0).
///
/// `subject` starts every message, for example "model.safetensors.index.json". Throws ValueError
/// `<subject>: <requirement>, got <what>`.
nlohmann::json parse_strict_json(std::string_view text, int max_depth, const std::string& subject);

}  // namespace moegrad
