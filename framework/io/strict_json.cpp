// SPDX-License-Identifier: Apache-2.0
#include "framework/io/strict_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "framework/io/utf8.h"
#include "framework/runtime/error.h"

namespace moegrad {
namespace {

using nlohmann::json;

/// The position as "line 2, column 5"; only the column if the text is a single line.
std::string line_and_column(std::string_view text, std::size_t position) {
  const auto before = text.substr(0, position);
  const auto lines = std::ranges::count(before, '\n');
  const auto start = before.rfind('\n');
  const auto column = start == std::string_view::npos ? before.size() : before.size() - start - 1;
  const bool one_line = text.find('\n') == std::string_view::npos;
  const auto line = one_line ? "" : "line " + std::to_string(lines + 1) + ", ";
  return line + "column " + std::to_string(column + 1);
}

}  // namespace

json parse_strict_json(std::string_view text, int max_depth, const std::string& subject) {
  if (text.starts_with("\xef\xbb\xbf")) {
    throw ValueError(subject + ": must start with its value, got a byte order mark");
  }
  const auto valid = valid_utf8_prefix(text);
  if (valid < text.size()) {
    throw ValueError(subject + ": must be UTF-8, got an invalid byte at " +
                     line_and_column(text, valid));
  }
  const auto nul = text.find('\0');
  if (nul != std::string_view::npos) {
    throw ValueError(subject + ": must hold no NUL, got one at " + line_and_column(text, nul));
  }

  std::vector<std::set<std::string>> keys;  // of the objects around the current place
  const auto watch = [&](int depth, json::parse_event_t event, json& parsed) {
    using Event = json::parse_event_t;
    const bool opens = event == Event::object_start || event == Event::array_start;
    check<ValueError>(!opens || depth < max_depth, subject, ": must be at most ", max_depth,
                      " levels deep, got more");
    if (event == Event::object_start) keys.emplace_back();
    if (event == Event::object_end) keys.pop_back();
    if (event == Event::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      check<ValueError>(keys.back().insert(key).second, subject,
                        ": keys of an object must differ, got ", in_quotes(key), " twice");
    }
    return true;
  };
  try {
    return json::parse(text, watch);
  } catch (const json::parse_error& error) {
    // `byte` counts from 1, up to and including the character that is not allowed there.
    const auto position = error.byte == 0 ? 0 : error.byte - 1;
    throw ValueError(subject + ": must be JSON, got an error at " +
                     line_and_column(text, position));
  } catch (const json::out_of_range&) {
    throw ValueError(subject + ": numbers must fit in a double, got one that does not");
  }
}

}  // namespace moegrad
