// SPDX-License-Identifier: Apache-2.0
#include "train/config/toml_options.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <sstream>
#include <utility>
#include <variant>

#define TOML_EXCEPTIONS 0
#include <toml++/toml.h>

#include "framework/io/input_file.h"
#include "framework/runtime/error.h"
#include "framework/runtime/parse_number.h"
#include "framework/runtime/utf8.h"

namespace moegrad::training {
namespace {

constexpr std::int64_t kMostBytes = 1 << 20;
// The most dots in a line. The parser makes nested tables from the parts of a dotted key and
// destroys them recursively. A file could have more dots than the stack has room for.
constexpr std::int64_t kMostDots = 1000;

// The value of a node; none if its type is no option's type.
std::optional<OptionValue> value_of(const toml::node& node) {
  if (const auto* value = node.as_boolean()) return **value;
  if (const auto* value = node.as_integer()) return **value;
  if (const auto* value = node.as_floating_point()) return **value;
  if (const auto* value = node.as_string()) return **value;
  return std::nullopt;
}

void check_dots(const std::string& text, const std::string& begin) {
  std::istringstream lines(text);
  std::int64_t number = 1;
  for (std::string line; std::getline(lines, line); ++number) {
    check(std::ranges::count(line, '.') <= kMostDots, begin, number, ": must have at most ",
          kMostDots, " dots");
  }
}

// What the value of an option is written as, on line `number` of `text`, without underscores.
std::string literal_on_line(const std::string& text, toml::source_index number) {
  std::istringstream lines(text);
  std::string line;
  while (number-- > 0) std::getline(lines, line);
  const auto begin = line.find_first_not_of(" \t", line.find('=') + 1);
  auto literal = line.substr(begin, line.find_first_of(" \t\r#", begin) - begin);
  std::erase(literal, '_');
  return literal;
}

std::string type_of(const toml::node& node) {
  std::ostringstream name;
  name << node.type();
  return name.str();
}

std::string toml_text(const OptionValue& value) {
  if (std::holds_alternative<std::monostate>(value)) return "";
  const auto* text = std::get_if<std::string>(&value);
  if (text == nullptr) return to_literal(value);
  std::ostringstream out;
  const toml::value node(*text);
  // Writes the text on one line, with escapes.
  out << toml::toml_formatter(node, toml::format_flags::allow_unicode_strings);
  return out.str();
}

}  // namespace

std::set<std::string> set_from_toml(std::vector<Option>& options, const std::string& path,
                                    std::string_view subject) {
  const auto text = read_input_file(path, std::string(subject), kMostBytes);
  const auto begin = std::string(subject) + ": " + path + ":";
  const auto message_begin = [&begin](const toml::source_region& region) {
    return begin + std::to_string(region.begin.line) + ": ";
  };
  check_dots(text, begin);
  const auto parsed = toml::parse(text, path);
  if (!parsed) {
    throw Error(message_begin(parsed.error().source()) + std::string(parsed.error().description()));
  }
  std::set<std::string> seen, changed;
  for (const auto& [key, node] : parsed.table()) {
    const auto where = message_begin(key.source());
    std::string name(key.str());
    std::ranges::replace(name, '_', '-');
    const auto option = std::ranges::find(options, name, &Option::name);
    check(option != options.end(), where, "unknown option ", in_quotes(key.str()));
    check(option->in_file, where, option->label(), ": must be given on the command line");
    check(seen.insert(name).second, where, name, " must appear once");
    const auto value = value_of(node);
    check(value.has_value(), where, option->label(),
          ": must be a text, a number, true or false, got ", "a TOML ", type_of(node));
    if (node.is_floating_point()) {
      const auto literal = literal_on_line(text, node.source().begin.line);
      check(to_number<double>(literal).has_value(), where, option->label(),
            ": must be a number that a double can hold, got ", literal);
    }
    const auto before = option->get();
    try {
      option->set(*value);
    } catch (const ValueError& error) {
      throw Error(where + error.what());
    }
    if (option->get() != before) changed.insert(name);
  }
  return changed;
}

std::string to_toml(const std::vector<Option>& options) {
  std::string all;
  for (const auto& option : options) {
    if (!option.in_file) continue;
    const auto value = option.get();
    const auto* text = std::get_if<std::string>(&value);
    check<ValueError>(text == nullptr || valid_utf8_prefix(*text) == text->size(), option.label(),
                      ": must be UTF-8 to be written as TOML, got ",
                      text == nullptr ? std::string() : in_quotes(*text));
    const bool is_set = !std::holds_alternative<std::monostate>(value);
    all += (is_set ? "" : "# ") + option.name + " = " + toml_text(value) + "\n";
  }
  return all;
}

}  // namespace moegrad::training
