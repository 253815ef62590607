// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <ostream>
#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "framework/runtime/error.h"

namespace moegrad {

/// Parses JSON and refuses what other parsers accept silently: duplicate keys (by default the last
/// one wins), nesting deeper than `max_depth` (an array or object at the top has depth 1), a byte
/// order mark, NUL bytes (by default the end of the text), invalid UTF-8, text after the value, and
/// numbers that a double cannot hold (by default one that is too small is 0).
///
/// `subject` starts every message, for example "model.safetensors.index.json". Throws ValueError
/// `<subject>: <requirement>, got <what>`.
nlohmann::json parse_strict_json(std::string_view text, int max_depth, const std::string& subject);

/// A value of a JSON text and the path to it, which every message shows:
///
///     train.json: variants 'slow'.betas[1] must be a number, got "high"
///
/// All members that read throw such a ValueError if the value has another type. A node keeps the
/// whole text's values alive.
class JsonNode {
 public:
  /// The value of the whole text. Refuses what parse_strict_json() refuses. `subject` starts every
  /// message.
  static JsonNode parse(std::string_view text, int max_depth, const std::string& subject);

  /// Whether an object has the key, even if its value is null.
  bool contains(std::string_view key) const;
  /// Whether an object has the key and its value is not null.
  bool has(std::string_view key) const;
  /// A member that an object must have.
  JsonNode operator[](std::string_view key) const;
  /// The members of an object whose keys are any names, such as names of tensors. Paths quote them.
  std::vector<std::pair<std::string, JsonNode>> members() const;
  /// Refuses an object that has other keys.
  void allow_only(std::initializer_list<std::string_view> keys) const;

  /// The elements of an array.
  std::vector<JsonNode> elements() const;
  /// The elements of an array as `read` reads each, such as &JsonNode::number.
  template <class Read>
  auto list(Read read) const {
    std::vector<std::decay_t<std::invoke_result_t<Read, const JsonNode&>>> list;
    for (const auto& element : elements()) list.push_back(std::invoke(read, element));
    return list;
  }

  double number() const;
  /// Reads null as NaN: JSON has no other way to write NaN or an infinity.
  double number_or_nan() const;
  std::int64_t integer() const;
  std::uint64_t unsigned_up_to(std::uint64_t most) const;
  /// An integer from 0 to the largest int64.
  std::int64_t count() const;
  bool boolean() const;
  const std::string& text() const;
  const nlohmann::json& value() const { return *value_; }

  /// Throws ValueError `<subject>: <path> <requirement>` unless `ok`.
  template <class... Parts>
  void require(bool ok, const Parts&... requirement) const {
    if (ok) return;
    std::ostringstream message;
    message << subject_and_path() << ' ';
    (message << ... << requirement);
    throw ValueError(message.str());
  }

  /// The value as messages show it: on one line, shortened.
  friend std::ostream& operator<<(std::ostream& out, const JsonNode& node);

 private:
  struct Document;

  JsonNode(std::shared_ptr<const Document> document, const nlohmann::json& value, std::string path)
      : document_(std::move(document)), value_(&value), path_(std::move(path)) {}

  std::string subject_and_path() const;
  const nlohmann::json& object() const;

  std::shared_ptr<const Document> document_;
  const nlohmann::json* value_;
  std::string path_;  // empty: the whole text
};

}  // namespace moegrad
