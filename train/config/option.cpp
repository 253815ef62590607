// SPDX-License-Identifier: Apache-2.0
#include "train/config/option.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <concepts>
#include <sstream>
#include <type_traits>

#include "framework/runtime/error.h"
#include "framework/runtime/program.h"
#include "framework/runtime/utf8.h"

namespace moegrad::training {
namespace {

// The value as messages show it.
std::string shown(const OptionValue& value) {
  if (const auto* text = std::get_if<std::string>(&value)) return in_quotes(*text);
  return to_literal(value);
}

template <class T>
std::string bounds_text(Bounds<T> bounds) {
  std::ostringstream text;
  text << bounds.least << " to " << bounds.most;
  return text.str();
}

// A number from a file. Files have only one type of integers.
template <class T>
std::optional<T> number_of(const OptionValue& value, Bounds<T> bounds) {
  const auto within = [&](auto number) { return bounds.least <= number && number <= bounds.most; };
  if (const auto* integer = std::get_if<std::int64_t>(&value)) {
    if constexpr (std::floating_point<T>) {
      const auto number = static_cast<T>(*integer);
      return within(number) ? std::optional(number) : std::nullopt;
    } else {
      const bool fits =
          std::cmp_less_equal(bounds.least, *integer) && std::cmp_less_equal(*integer, bounds.most);
      return fits ? std::optional(static_cast<T>(*integer)) : std::nullopt;
    }
  }
  if constexpr (std::floating_point<T>) {
    const auto* number = std::get_if<double>(&value);
    if (number != nullptr && within(*number)) return *number;
  }
  return std::nullopt;
}

template <class T>
OptionValue to_value(T number) {
  if constexpr (std::floating_point<T>) {
    return number;
  } else {
    return static_cast<std::int64_t>(number);
  }
}

template <class T, class Variable>
Option number(std::string name, Variable& variable, Bounds<T> bounds, std::string description) {
  const auto label = "--" + name;
  constexpr bool kInteger = std::is_integral_v<T>;
  Option option{.name = std::move(name),
                .description = std::move(description),
                .type = std::string(kInteger ? "INT:[" : "FLOAT:[")};
  std::ostringstream range;
  range << bounds.least << " - " << bounds.most << ']';
  option.type += range.str();
  option.get = [&variable]() -> OptionValue {
    if constexpr (std::is_same_v<Variable, T>) {
      return to_value(variable);
    } else {
      return variable ? to_value(*variable) : OptionValue();
    }
  };
  option.set = [&variable, bounds, label](const OptionValue& value) {
    const auto read = number_of<T>(value, bounds);
    check<ValueError>(read.has_value(), label, ": must be ", kInteger ? "an integer" : "a number",
                      " from ", bounds_text(bounds), ", got ", shown(value));
    variable = *read;
  };
  option.parse = [bounds, label](const std::string& text) {
    return to_value(parse_number<T>(label, text, bounds));
  };
  return option;
}

[[noreturn]] void refuse_boolean(const std::string& name, const std::string& got) {
  throw ValueError(name + ": must be true or false, got " + got);
}

Option boolean(std::string name, bool& variable, std::string type, std::string description) {
  const auto label = "--" + name;
  Option option{
      .name = std::move(name), .description = std::move(description), .type = std::move(type)};
  option.get = [&variable]() -> OptionValue { return variable; };
  option.set = [&variable, label](const OptionValue& value) {
    const auto* read = std::get_if<bool>(&value);
    const auto* digit = std::get_if<std::int64_t>(&value);  // as on the command line
    if (read == nullptr && (digit == nullptr || (*digit != 0 && *digit != 1))) {
      refuse_boolean(label, shown(value));
    }
    variable = read != nullptr ? *read : *digit == 1;
  };
  option.parse = [label](const std::string& text) -> OptionValue {
    return parse_boolean(label, text);
  };
  return option;
}

// An option whose texts are passed to `take`.
Option text(std::string name, std::string type, std::string description,
            std::function<void(const std::string&)> take) {
  const auto label = "--" + name;
  Option option{
      .name = std::move(name), .description = std::move(description), .type = std::move(type)};
  option.set = [label, take = std::move(take)](const OptionValue& value) {
    const auto* read = std::get_if<std::string>(&value);
    check<ValueError>(read != nullptr, label, ": must be a text, got ", shown(value));
    check<ValueError>(read->find('\0') == std::string::npos, label,
                      ": must be a text without the character NUL, got ", shown(value));
    take(*read);
  };
  option.parse = [](const std::string& given) -> OptionValue { return given; };
  return option;
}

std::string braced(const std::vector<std::string_view>& names) {
  std::string all = "{";
  for (const auto name : names) all.append(all.size() > 1 ? "," : "").append(name);
  return all + "}";
}

}  // namespace

Option Option::with_spelling(std::string spelling) && {
  spellings.push_back(std::move(spelling));
  return std::move(*this);
}

Option Option::excluding(std::string other) && {
  excludes.push_back(std::move(other));
  return std::move(*this);
}

Option Option::needing(std::string other) && {
  needs.push_back(std::move(other));
  return std::move(*this);
}

Option Option::at_resume_of(AtResume what) && {
  at_resume = what;
  return std::move(*this);
}

Option Option::as_argument() && {
  positional = required = true;
  return std::move(*this);
}

Option Option::not_in_file() && {
  in_file = false;
  return std::move(*this);
}

Option number_option(std::string name, int& value, Bounds<int> bounds, std::string description) {
  return number<int>(std::move(name), value, bounds, std::move(description));
}

Option number_option(std::string name, std::int64_t& value, Bounds<std::int64_t> bounds,
                     std::string description) {
  return number<std::int64_t>(std::move(name), value, bounds, std::move(description));
}

Option number_option(std::string name, std::uint64_t& value, Bounds<std::uint64_t> bounds,
                     std::string description) {
  check(bounds.most <= kMostSeed, "--", name, ": must have bounds of at most ", kMostSeed);
  return number<std::uint64_t>(std::move(name), value, bounds, std::move(description));
}

Option number_option(std::string name, double& value, Bounds<double> bounds,
                     std::string description) {
  return number<double>(std::move(name), value, bounds, std::move(description));
}

Option number_option(std::string name, std::optional<std::int64_t>& value,
                     Bounds<std::int64_t> bounds, std::string description) {
  return number<std::int64_t>(std::move(name), value, bounds, std::move(description));
}

Option number_option(std::string name, std::optional<double>& value, Bounds<double> bounds,
                     std::string description) {
  return number<double>(std::move(name), value, bounds, std::move(description));
}

bool parse_boolean(const std::string& name, const std::string& text) {
  const bool on = text == "1" || text == "true";
  if (!on && text != "0" && text != "false") refuse_boolean(name, in_quotes(text));
  return on;
}

Option flag_option(std::string name, bool& value, std::string description) {
  return boolean(std::move(name), value, "", std::move(description));
}

Option switch_option(std::string name, bool& value, std::string description) {
  return boolean(std::move(name), value, "{0,1,false,true}", std::move(description));
}

Option text_option(std::string name, std::string& value, std::string description) {
  auto option = text(std::move(name), "TEXT", std::move(description),
                     [&value](const std::string& given) { value = given; });
  option.get = [&value]() -> OptionValue { return value; };
  return option;
}

Option texts_option(std::string name, std::vector<std::string>& value, std::string description) {
  // The given values replace the whole default.
  const auto add = [&value, first = true](const std::string& given) mutable {
    if (std::exchange(first, false)) value.clear();
    value.push_back(given);
  };
  auto option = text(std::move(name), "TEXT", std::move(description), add);
  option.get = [&value]() -> OptionValue {
    std::string all;
    for (const auto& one : value) all.append(all.empty() ? "" : ",").append(one);
    return all;
  };
  option.several = true;
  return option;
}

namespace {

// The same option, whose values must be among `names`.
Option among(Option option, std::vector<std::string> names) {
  const std::vector<std::string_view> views(names.begin(), names.end());
  option.type = braced(views);
  option.set = [names, label = option.label(), list = listed(views),
                set = std::move(option.set)](const OptionValue& value) {
    const auto* given = std::get_if<std::string>(&value);
    check<ValueError>(given == nullptr || std::ranges::find(names, *given) != names.end(), label,
                      ": must be ", list, ", got ", shown(value));
    set(value);
  };
  return option;
}

}  // namespace

Option choice_of_text(std::string name, std::string& value, std::vector<std::string> names,
                      std::string description) {
  return among(text_option(std::move(name), value, std::move(description)), std::move(names));
}

Option choice_of_texts(std::string name, std::vector<std::string>& value,
                       std::vector<std::string> names, std::string description) {
  return among(texts_option(std::move(name), value, std::move(description)), std::move(names));
}

Option path_option(std::string name, std::string& value, PathKind kind, std::string description) {
  constexpr std::string_view kTypes[] = {"INPUT", "OUTPUT", "OUTPUT-LOG", "OUTPUT-FOLDER",
                                         "EXPORT-FOLDER"};
  auto option = text_option(std::move(name), value, std::move(description));
  option.type = kTypes[static_cast<std::size_t>(kind)];
  option.path = kind;
  // On a command line an empty path is a variable that the shell does not know: an output would be
  // lost, an input not read.
  option.parse = [label = "--" + option.name](const std::string& text) -> OptionValue {
    check<ValueError>(!text.empty(), label, ": must be a path, got an empty one");
    return text;
  };
  return option;
}

Option choice_option(std::string name, const std::vector<std::string_view>& names,
                     std::function<std::optional<std::size_t>()> get,
                     std::function<void(std::size_t)> set, std::string description) {
  const auto label = "--" + name;
  const std::vector<std::string> all(names.begin(), names.end());
  const auto take = [all, set = std::move(set), label,
                     list = listed(names)](const std::string& given) {
    const auto found = std::ranges::find(all, given);
    check<ValueError>(found != all.end(), label, ": must be ", list, ", got ", in_quotes(given));
    set(static_cast<std::size_t>(found - all.begin()));
  };
  auto option = text(std::move(name), braced(names), std::move(description), take);
  // A file has its own values true and false.
  option.set = [set_text = std::move(option.set)](const OptionValue& value) {
    set_text(std::holds_alternative<bool>(value) ? to_text(value) : value);
  };
  option.get = [all, get = std::move(get)]() -> OptionValue {
    const auto index = get();
    return index ? OptionValue(all[*index]) : OptionValue();
  };
  return option;
}

std::string listed(const std::vector<std::string_view>& names) {
  std::string all;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (i > 0) all += i + 1 < names.size() ? ", " : " or ";
    all += names[i];
  }
  return all;
}

std::string to_text(const OptionValue& value) {
  struct ToText {
    std::string operator()(std::monostate) const { return "none"; }
    std::string operator()(bool on) const { return on ? "true" : "false"; }
    std::string operator()(std::int64_t number) const { return std::to_string(number); }
    std::string operator()(double number) const {  // the shortest digits that mean `number`
      std::array<char, 64> text{};
      return {text.data(), std::to_chars(text.data(), text.data() + text.size(), number).ptr};
    }
    std::string operator()(const std::string& given) const { return given; }
  };
  return std::visit(ToText{}, value);
}

std::string to_literal(const OptionValue& value) {
  auto text = to_text(value);
  const auto* number = std::get_if<double>(&value);
  const bool looks_whole = text.find_first_of(".e") == std::string::npos;
  return number != nullptr && std::isfinite(*number) && looks_whole ? text + ".0" : text;
}

void check_product(const std::string& what, std::int64_t a, std::int64_t b, std::int64_t most) {
  check<UsageError>(a == 0 || b <= most / a, what, ": must be at most ", most, ", got ", a, " x ",
                    b);
}

}  // namespace moegrad::training
