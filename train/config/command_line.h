// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "train/config/option.h"

namespace moegrad::training {

/// The command line of a program: a view of its options (Note [Options]) with --help.
class CommandLine {
 public:
  CommandLine(std::string description, std::vector<Option> options)
      : description_(std::move(description)), options_(std::move(options)) {}

  /// The text at the end of --help.
  void set_footer(std::string footer) { footer_ = std::move(footer); }
  /// Adds an option --`name` FILE: a TOML file of these options. The command line overrides it.
  void add_option_file(std::string name, std::string description);
  /// A program that has commands must be given one; their options are positional.
  void add_command(std::string name, std::string description, std::vector<Option> options);
  /// At least one of these options must be given.
  void require_one_of(std::vector<std::string> names) { one_of_ = std::move(names); }

  /// Sets the options, first from the option file, then from the command line, and checks the paths
  /// (check_paths, which throws). Prints help or what is wrong and returns the exit code when the
  /// program should end: 0, or 2 for wrong usage.
  std::optional<int> parse(int argc, const char* const* argv);

  /// After parse(): the command that was given.
  const std::string& command() const { return command_; }
  /// After parse(): the paths that options name.
  const std::vector<NamedPath>& paths() const { return paths_; }

 private:
  struct Command {
    std::string name;
    std::string description;
    std::vector<Option> options;
  };

  std::string description_;
  std::string footer_;
  std::vector<Option> options_;
  std::vector<Command> commands_;
  std::vector<std::string> one_of_;
  std::optional<std::pair<std::string, std::string>> option_file_;  // name, description
  std::string command_;
  std::vector<NamedPath> paths_;
};

}  // namespace moegrad::training
