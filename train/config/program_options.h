// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "framework/runtime/parse_number.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace moegrad::training {

// Note [Options of programs]
// A number is declared with the least and the most that can be, and read whole: what is no number,
// is past these, or is NaN or infinite is a usage error. So none can be forgotten; products of
// options are checked where they are made. A path is declared as what it is, so that no output can
// be an input or another output (check_paths).

/// Bounds of counts that only time limits: steps, intervals, files to keep.
inline constexpr std::int64_t kManySteps = 1'000'000'000;
/// Of ranks, and of compute threads altogether.
inline constexpr int kMostThreads = 65536;
/// Of tokens that are in memory at once.
inline constexpr std::int64_t kMostTokens = std::int64_t{1} << 34;

CLI::Option* add_number(CLI::App& app, const std::string& name, int& value, Bounds<int> bounds,
                        const std::string& description);
CLI::Option* add_number(CLI::App& app, const std::string& name, std::int64_t& value,
                        Bounds<std::int64_t> bounds, const std::string& description);
CLI::Option* add_number(CLI::App& app, const std::string& name, std::uint64_t& value,
                        Bounds<std::uint64_t> bounds, const std::string& description);
CLI::Option* add_number(CLI::App& app, const std::string& name, double& value,
                        Bounds<double> bounds, const std::string& description);
CLI::Option* add_number(CLI::App& app, const std::string& name, std::optional<std::int64_t>& value,
                        Bounds<std::int64_t> bounds, const std::string& description);

/// 0 or 1, false or true.
CLI::Option* add_switch(CLI::App& app, const std::string& name, bool& value,
                        const std::string& description);

/// The option that names a file of options: a regular one of a sensible size.
void add_config_file(CLI::App& app, const std::string& name, const std::string& description);

enum class PathKind : std::uint8_t {
  kInput,         // a file or a folder that is read
  kOutput,        // a file that is written, and replaced
  kOutputLog,     // a file that is written, an earlier one kept as <path>.<number>
  kOutputFolder,  // a folder in which files are made that are not there yet
  kExportFolder,  // a folder in which files of fixed names are written
};

CLI::Option* add_path(CLI::App& app, const std::string& name, std::string& value, PathKind kind,
                      const std::string& description);

struct NamedPath {
  std::string name;  // of the option
  std::string path;
  PathKind kind;
};

/// The paths that were given to `app` or stand there by default.
std::vector<NamedPath> paths_of(const CLI::App& app);

/// ValueError if an output is an input or another output, by whatever name, is or would go into
/// a checkpoint, or has a name under which an earlier output is kept. Devices and pipes may be
/// several outputs.
void check_paths(const std::vector<NamedPath>& paths);

/// ValueError `<what>: must be at most <most>, got <a> x <b>` if the product is larger.
void check_product(const std::string& what, std::int64_t a, std::int64_t b, std::int64_t most);

/// Parses the command line and checks the paths; prints help or what is wrong and returns the exit
/// code when the program should end: 0, or 2 for a wrong usage.
std::optional<int> parse_options(CLI::App& app, int argc, const char* const* argv);

}  // namespace moegrad::training
