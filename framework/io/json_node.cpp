// SPDX-License-Identifier: Apache-2.0
#include "framework/io/json_node.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "framework/io/strict_json.h"
#include "framework/runtime/utf8.h"

namespace moegrad {

using nlohmann::json;

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
