// SPDX-License-Identifier: Apache-2.0
#include "train/config/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <set>
#include <sstream>
#include <variant>

#include "framework/runtime/cpu_kernels.h"
#include "framework/runtime/error.h"
#include "framework/runtime/utf8.h"
#include "train/config/toml_options.h"

namespace moegrad::training {
namespace {

// An option and its counterpart in CLI11.
struct Bound {
  Option* option;
  CLI::Option* given;
};

std::string default_text(const Option& option) {
  std::ostringstream text;
  std::visit(
      [&text]<class T>(const T& value) {
        if constexpr (!std::is_same_v<T, std::monostate>) text << std::boolalpha << value;
      },
      option.get());
  return text.str();
}

CLI::Option* add_to(CLI::App& app, const Option& option) {
  std::string names = option.label();
  for (const auto& spelling : option.spellings) names += "," + spelling;
  if (option.type.empty()) return app.add_flag(names, option.description);
  // The callback stores nothing: the texts are read from CLI::Option::results().
  CLI::Option* added = nullptr;
  if (option.several) {
    added = app.add_option_function<std::vector<std::string>>(
        names, [](const std::vector<std::string>&) {}, option.description);
    if (option.type.starts_with('{')) added->delimiter(',');
  } else {
    added = app.add_option_function<std::string>(
        names, [](const std::string&) {}, option.description);
  }
  return added->type_name(option.type)
      ->default_str(default_text(option))
      ->required(option.required);
}

std::vector<Bound> add_all(CLI::App& app, std::vector<Option>& options) {
  std::vector<Bound> bound;
  for (auto& option : options) bound.push_back({&option, add_to(app, option)});
  return bound;
}

bool is_spelling_of(const Option& option, std::string_view word) {
  return (!option.positional && word == option.label()) ||
         std::ranges::find(option.spellings, word) != option.spellings.end();
}

// The words after the program's name, checked where CLI11 is too lenient or names no option: it
// takes the next word as the value of an option that has none, even if it is an option's name, and
// any number as true. `--name=value` becomes two words, so that an empty value is one, too.
std::vector<std::string> words_of(int argc, const char* const* argv,
                                  const std::vector<const Option*>& options) {
  const auto named = [&](std::string_view word) -> const Option* {
    const auto found = std::ranges::find_if(
        options, [&](const Option* option) { return is_spelling_of(*option, word); });
    return found == options.end() ? nullptr : *found;
  };
  constexpr std::string_view kTruths[] = {"true", "false", "1", "0"};
  std::set<const Option*> seen;
  std::vector<std::string> words;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    const auto equals = word.starts_with("--") ? word.find('=') : word.npos;
    const auto* const option = named(word.substr(0, equals));
    if (option == nullptr) {
      words.emplace_back(word);
      continue;
    }
    const auto label = option->label();
    check<ValueError>(seen.insert(option).second || option->several, label, ": must be given once");
    const bool has_value = equals != word.npos;
    const auto value = has_value ? word.substr(equals + 1) : "";
    if (option->type.empty()) {
      check<ValueError>(!has_value || std::ranges::find(kTruths, value) != std::end(kTruths), label,
                        ": must be true or false, got ", in_quotes(value));
      words.emplace_back(word);
      continue;
    }
    words.emplace_back(word.substr(0, equals));
    if (has_value) {
      words.emplace_back(value);
    } else if (i + 1 < argc) {
      const std::string_view next = argv[++i];
      check<ValueError>(named(next) == nullptr && next != "--help" && next != "-h", label,
                        ": must be given a value, got the option ", next);
      words.emplace_back(next);
    }
  }
  return words;
}

// The options that are given, by name.
using Given = std::set<std::string>;

void check_together(const std::vector<Bound>& bound, const Given& given,
                    const std::vector<std::string>& one_of) {
  for (const auto& [option, unused] : bound) {
    if (!given.contains(option->name)) continue;
    for (const auto& other : option->excludes) {
      if (given.contains(other)) throw CLI::ExcludesError(option->label(), "--" + other);
    }
    for (const auto& other : option->needs) {
      if (!given.contains(other)) throw CLI::RequiresError(option->label(), "--" + other);
    }
  }
  const auto is_given = [&](const auto& name) { return given.contains(name); };
  if (one_of.empty() || std::ranges::any_of(one_of, is_given)) return;
  std::string names;
  for (const auto& name : one_of) names.append(names.empty() ? "--" : " or --").append(name);
  throw CLI::RequiredError(names);
}

void set_from_command_line(const std::vector<Bound>& bound) {
  for (const auto& [option, given] : bound) {
    if (given->count() == 0) continue;
    if (option->type.empty()) {
      option->set(given->as<bool>());
    } else {
      for (const auto& text : given->results()) option->set(option->parse(text));
    }
  }
}

void add_paths(std::vector<NamedPath>& paths, const std::vector<Option>& options) {
  for (const auto& option : options) {
    if (!option.path) continue;
    const auto path = to_text(option.get());
    if (!path.empty()) paths.push_back({option.label(), path, *option.path});
  }
}

}  // namespace

void CommandLine::add_option_file(std::string name, std::string description) {
  option_file_.emplace(std::move(name), std::move(description));
}

void CommandLine::add_command(std::string name, std::string description,
                              std::vector<Option> options) {
  commands_.push_back({std::move(name), std::move(description), std::move(options)});
}

std::optional<int> CommandLine::parse(int argc, const char* const* argv) {
  CLI::App app(description_);
  app.footer(footer_);
  app.set_version_flag("--version",
                       "moegrad " MOEGRAD_VERSION "\nkernels: " + names_of_cpu_kernels() +
                           "; default: " + std::string(to_string(fastest_cpu_kernels())));
  std::string file;
  const auto file_option =
      path_option(option_file_ ? option_file_->first : "", file, PathKind::kInput, "");
  if (option_file_) {
    app.add_option("--" + option_file_->first, file, option_file_->second)
        ->type_name("INPUT")
        ->each([&](const std::string& path) { file_option.parse(path); });
  }
  auto bound = add_all(app, options_);
  if (!commands_.empty()) app.require_subcommand(1);
  try {
    for (auto& command : commands_) {
      auto* const added = app.add_subcommand(command.name, command.description);
      for (const auto& one : add_all(*added, command.options)) bound.push_back(one);
    }
    std::vector<const Option*> known;
    for (const auto& [option, unused] : bound) known.push_back(option);
    if (option_file_) known.push_back(&file_option);
    auto words = words_of(argc, argv, known);
    app.name(std::filesystem::path(argv[0]).filename().string());
    std::ranges::reverse(words);  // CLI11 takes them from the back
    app.parse(words);
    Given given;
    for (const auto& [option, on_command_line] : bound) {
      if (on_command_line->count() > 0) given.insert(option->name);
    }
    if (!file.empty()) given.merge(set_from_toml(options_, file, "--" + option_file_->first));
    set_from_command_line(bound);
    check_together(bound, given, one_of_);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  } catch (const Error& error) {
    return app.exit(CLI::ValidationError(error.what())) == 0 ? 0 : 2;
  }
  add_paths(paths_, options_);
  for (const auto& command : commands_) {
    if (!app.got_subcommand(command.name)) continue;
    command_ = command.name;
    add_paths(paths_, command.options);
  }
  if (!file.empty()) paths_.push_back({"--" + option_file_->first, file, PathKind::kInput});
  check_paths(paths_);
  return std::nullopt;
}

}  // namespace moegrad::training
