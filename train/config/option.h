// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "framework/runtime/parse_number.h"
#include "train/config/paths.h"

namespace moegrad::training {

// Note [Options]
// An option binds a name to a variable and knows which values the variable may have. The command
// line, option files, what is printed and what a checkpoint records are views of a list of options.
// So none of them can forget an option or read it differently. A number is declared with its bounds
// and read as a whole, so text that is not a number, NaN and infinities are refused. A path is
// declared with its kind, so that no output can be an input or another output (check_paths).

/// The value of an option; std::monostate if it is not set and has no default.
using OptionValue = std::variant<std::monostate, bool, std::int64_t, double, std::string>;

/// Whether an option may change when a run is resumed, and why.
enum class AtResume : std::uint8_t {
  kCompared,  // it must be the same
  kRanks,     // it says how many ranks and threads there are, and on what
  kLimits,    // it says when a run gives up; what it does until then is the same
  kMemory,    // it says what a rank keeps, for how long, and in which layout: the same bits
  kOutput,    // it says what a run shows and keeps of itself
  kContents,  // it names something that is read, whose contents are compared instead
};

struct Option {
  std::string name;         // such as "seq-len"
  std::string description;  // for --help
  std::string type;         // of its argument, for --help; empty for a flag, which has none
  std::function<OptionValue()> get = {};
  /// Throws ValueError `<label>: must be <what>, got <value>`.
  std::function<void(const OptionValue&)> set = {};
  /// The value that a text on the command line means; throws as `set` does.
  std::function<OptionValue(const std::string&)> parse = {};
  std::optional<PathKind> path = {};
  std::vector<std::string> spellings = {};  // other ones on the command line, such as "-o"
  std::vector<std::string> excludes = {};   // names of options that cannot be given with it
  std::vector<std::string> needs = {};      // names of options that must be given with it
  AtResume at_resume = AtResume::kCompared;
  bool positional = false;  // it has no name on the command line
  bool required = false;
  bool several = false;  // it may be given several times: `set` adds a value
  bool in_file = true;   // an option file may set it
  /// What runs had before the option existed. Where all such options have these values, records and
  /// descriptions are without them, as those runs' are.
  std::optional<OptionValue> formerly = {};

  /// Its name in messages: --seq-len.
  std::string label() const { return positional ? name : "--" + name; }

  Option with_spelling(std::string spelling) &&;
  Option excluding(std::string other) &&;
  Option needing(std::string other) &&;
  Option at_resume_of(AtResume what) &&;
  Option as_argument() &&;  // positional and required
  Option not_in_file() &&;
};

/// Bounds of counts that only time limits: steps, intervals, files to keep.
inline constexpr std::int64_t kManySteps = 1'000'000'000;
/// The most ranks, and the most compute threads altogether.
inline constexpr int kMostThreads = 65536;
/// The most tokens that are in memory at once.
inline constexpr std::int64_t kMostTokens = std::int64_t{1} << 34;
/// TOML has no larger integers.
inline constexpr std::uint64_t kMostSeed = 0x7fff'ffff'ffff'ffff;

Option number_option(std::string name, int& value, Bounds<int> bounds, std::string description);
Option number_option(std::string name, std::int64_t& value, Bounds<std::int64_t> bounds,
                     std::string description);
/// Bounds of at most kMostSeed.
Option number_option(std::string name, std::uint64_t& value, Bounds<std::uint64_t> bounds,
                     std::string description);
Option number_option(std::string name, double& value, Bounds<double> bounds,
                     std::string description);
Option number_option(std::string name, std::optional<std::int64_t>& value,
                     Bounds<std::int64_t> bounds, std::string description);
Option number_option(std::string name, std::optional<double>& value, Bounds<double> bounds,
                     std::string description);

/// Whether `text` is 1 or true and not 0 or false. ValueError `<name>: must be true or false, got
/// <text>` for any other.
bool parse_boolean(const std::string& name, const std::string& text);

/// An option without an argument on the command line. Its presence means true.
Option flag_option(std::string name, bool& value, std::string description);
/// An option with an argument: 0 or 1, false or true.
Option switch_option(std::string name, bool& value, std::string description);

Option text_option(std::string name, std::string& value, std::string description);
/// A list: given several times, or once with commas between the values.
Option texts_option(std::string name, std::vector<std::string>& value, std::string description);
/// One of `names`.
Option choice_of_text(std::string name, std::string& value, std::vector<std::string> names,
                      std::string description);
/// A list of `names`, as texts_option() reads it.
Option choice_of_texts(std::string name, std::vector<std::string>& value,
                       std::vector<std::string> names, std::string description);

/// An empty path means none.
Option path_option(std::string name, std::string& value, PathKind kind, std::string description);

/// Names of the values of an enumeration.
template <class E>
using Choices = std::span<const std::pair<std::string_view, E>>;

/// The name of `value` among `choices`.
template <class E>
std::string_view name_of(E value, Choices<E> choices) {
  for (const auto& [name, one] : choices) {
    if (one == value) return name;
  }
  return "unknown";
}

/// An option that is one of `names`; `get` gives its index, if any, and `set` takes one.
Option choice_option(std::string name, const std::vector<std::string_view>& names,
                     std::function<std::optional<std::size_t>()> get,
                     std::function<void(std::size_t)> set, std::string description);

template <class E>
Option choice_option(std::string name, E& value, Choices<E> choices, std::string description) {
  std::vector<std::string_view> names;
  for (const auto& choice : choices) names.push_back(choice.first);
  const auto get = [&value, choices]() -> std::optional<std::size_t> {
    for (std::size_t i = 0; i < choices.size(); ++i) {
      if (choices[i].second == value) return i;
    }
    return std::nullopt;
  };
  const auto set = [&value, choices](std::size_t i) { value = choices[i].second; };
  return choice_option(std::move(name), names, get, set, std::move(description));
}

/// "a, b or c".
std::string listed(const std::vector<std::string_view>& names);

/// `value` as text, with numbers in full, for records.
std::string to_text(const OptionValue& value);
/// The same, but a finite real number has a point or an exponent, by which it differs from an
/// integer: 2.0.
std::string to_literal(const OptionValue& value);

/// UsageError `<what>: must be at most <most>, got <a> x <b>` if the product is larger.
void check_product(const std::string& what, std::int64_t a, std::int64_t b, std::int64_t most);

}  // namespace moegrad::training
