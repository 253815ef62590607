// SPDX-License-Identifier: Apache-2.0
#include "framework/io/strict_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "framework/runtime/error.h"
#include "framework/runtime/parse_number.h"
#include "framework/runtime/utf8.h"

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

/// The first number of a JSON text that a double cannot hold. Empty if there is none.
std::string_view number_beyond_double(std::string_view text) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '"') {
      for (++i; i < text.size() && text[i] != '"'; ++i) i += text[i] == '\\' ? 1 : 0;
    } else if (text[i] == '-' || ('0' <= text[i] && text[i] <= '9')) {
      const auto end = std::min(text.find_first_not_of("+-.eE0123456789", i), text.size());
      const auto number = text.substr(i, end - i);
      if (!to_number<double>(number)) return number;
      i = end - 1;
    }
  }
  return {};
}

[[noreturn]] void refuse_number(std::string_view number, const std::string& subject) {
  throw ValueError(subject + ": numbers must fit in a double, got " + on_one_line(number));
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
  bool any_zero = false;                    // written as a real number, maybe one that is too small
  const auto watch = [&](int depth, json::parse_event_t event, json& parsed) {
    using Event = json::parse_event_t;
    const bool opens = event == Event::object_start || event == Event::array_start;
    check<ValueError>(!opens || depth < max_depth, subject, ": must be at most ", max_depth,
                      " levels deep, got more");
    any_zero = any_zero ||
               (event == Event::value && parsed.is_number_float() && parsed.get<double>() == 0);
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
    auto parsed = json::parse(text, watch);
    const auto small = any_zero ? number_beyond_double(text) : std::string_view();
    if (!small.empty()) refuse_number(small, subject);
    return parsed;
  } catch (const json::parse_error& error) {
    // `byte` counts from 1, up to and including the character that is not allowed there.
    const auto position = error.byte == 0 ? 0 : error.byte - 1;
    throw ValueError(subject + ": must be JSON, got an error at " +
                     line_and_column(text, position));
  } catch (const json::out_of_range&) {
    refuse_number(number_beyond_double(text), subject);
  }
}

}  // namespace moegrad
