// SPDX-License-Identifier: Apache-2.0
#include "framework/io/json_node.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "framework/runtime/parse_number.h"
#include "framework/runtime/utf8.h"

namespace moegrad {

using nlohmann::json;

namespace {

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

struct JsonNode::Document {
  json root;
  std::string subject;
};

JsonNode JsonNode::parse(std::string_view text, int max_depth, const std::string& subject) {
  auto document = std::make_shared<const Document>(
      Document{parse_strict_json(text, max_depth, subject), subject});
  const auto& root = document->root;
  return {std::move(document), root, ""};
}

std::string JsonNode::subject_and_path() const {
  return document_->subject + ":" + (path_.empty() ? "" : " " + path_);
}

std::ostream& operator<<(std::ostream& out, const JsonNode& node) {
  return out << on_one_line(node.value_->dump());
}

const json& JsonNode::object() const {
  require(value_->is_object(), "must be an object, got ", *this);
  return *value_;
}

bool JsonNode::contains(std::string_view key) const { return object().contains(key); }

bool JsonNode::has(std::string_view key) const {
  const auto found = object().find(key);
  return found != value_->end() && !found->is_null();
}

JsonNode JsonNode::operator[](std::string_view key) const {
  const auto found = object().find(key);
  require(found != value_->end(), "must have ", key, ", got none");
  return {document_, *found, (path_.empty() ? "" : path_ + ".") + std::string(key)};
}

std::vector<std::pair<std::string, JsonNode>> JsonNode::members() const {
  std::vector<std::pair<std::string, JsonNode>> members;
  const std::string before = path_.empty() ? "" : path_ + " ";
  for (const auto& [key, member] : object().items()) {
    members.emplace_back(key, JsonNode(document_, member, before + in_quotes(key)));
  }
  return members;
}

void JsonNode::allow_only(std::initializer_list<std::string_view> keys) const {
  for (const auto& [key, member] : object().items()) {
    require(std::ranges::find(keys, key) != keys.end(), "must have known keys alone, got ",
            in_quotes(key));
  }
}

std::vector<JsonNode> JsonNode::elements() const {
  require(value_->is_array(), "must be an array, got ", *this);
  std::vector<JsonNode> elements;
  elements.reserve(value_->size());
  for (const auto& element : *value_) {
    const auto index = std::to_string(elements.size());
    elements.push_back({document_, element, path_ + "[" + index + "]"});
  }
  return elements;
}

double JsonNode::number() const {
  require(value_->is_number(), "must be a number, got ", *this);
  return value_->get<double>();
}

double JsonNode::number_or_nan() const {
  if (value_->is_null()) return std::numeric_limits<double>::quiet_NaN();
  require(value_->is_number(), "must be a number or null, got ", *this);
  return value_->get<double>();
}

std::int64_t JsonNode::integer() const {
  constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  require(value_->is_number_integer(), "must be an integer, got ", *this);
  require(!value_->is_number_unsigned() || value_->get<std::uint64_t>() <= kMost,
          "must be below 2^63, got ", *this);
  return value_->get<std::int64_t>();
}

std::uint64_t JsonNode::unsigned_up_to(std::uint64_t most) const {
  require(value_->is_number_unsigned() && value_->get<std::uint64_t>() <= most,
          "must be an integer from 0 to ", most, ", got ", *this);
  return value_->get<std::uint64_t>();
}

std::int64_t JsonNode::count() const {
  return static_cast<std::int64_t>(unsigned_up_to(std::numeric_limits<std::int64_t>::max()));
}

bool JsonNode::boolean() const {
  require(value_->is_boolean(), "must be true or false, got ", *this);
  return value_->get<bool>();
}

const std::string& JsonNode::text() const {
  require(value_->is_string(), "must be a string, got ", *this);
  return value_->get_ref<const std::string&>();
}

}  // namespace moegrad
