// SPDX-License-Identifier: Apache-2.0
#include "train/config/program_options.h"

#include <sys/stat.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <sstream>
#include <string_view>
#include <utility>

#include "framework/io/checkpoint_folders.h"
#include "framework/runtime/error.h"

namespace moegrad::training {
namespace {

namespace fs = std::filesystem;

template <class T>
std::string shown(T value) {
  std::ostringstream text;
  text << value;
  return text.str();
}

template <class T, class Value>
CLI::Option* add(CLI::App& app, const std::string& name, Value& value, Bounds<T> bounds,
                 const std::string& description) {
  const auto first = name.substr(0, name.find(','));
  auto* const option = app.add_option_function<std::string>(
      name,
      [&value, bounds, first](const std::string& text) {
        try {
          value = parse_number<T>(first, text, bounds);
        } catch (const ValueError& error) {
          throw CLI::ValidationError(error.what());
        }
      },
      description);
  option->type_name((std::is_integral_v<T> ? "INT:[" : "FLOAT:[") + shown(bounds.least) + " - " +
                    shown(bounds.most) + "]");
  return option;
}

template <class T>
CLI::Option* add_with_default(CLI::App& app, const std::string& name, T& value, Bounds<T> bounds,
                              const std::string& description) {
  auto* const option = add<T>(app, name, value, bounds, description);
  option->default_str(shown(value));
  return option;
}

constexpr std::string_view kTypeNames[] = {"INPUT", "OUTPUT", "OUTPUT-LOG", "OUTPUT-FOLDER",
                                           "EXPORT-FOLDER"};

// Where a path leads, as far as that exists.
fs::path place(const std::string& path) {
  std::error_code failure;
  const auto whole = fs::absolute(path, failure);
  auto found = fs::weakly_canonical(whole, failure);
  return failure ? whole.lexically_normal() : found;
}

bool same_place(const std::string& a, const std::string& b) {
  struct stat first = {}, second = {};
  const bool exist = stat(a.c_str(), &first) == 0, other = stat(b.c_str(), &second) == 0;
  if (!exist && !other) return place(a) == place(b);
  if (!exist || !other || first.st_dev != second.st_dev || first.st_ino != second.st_ino)
    return false;
  return S_ISREG(first.st_mode) || S_ISDIR(first.st_mode);
}

bool holds_checkpoints(const std::string& path) {
  std::error_code failure;
  return fs::is_directory(path, failure) && !list_checkpoints(path).empty();
}

// Whether LineFile::set_aside may give `log` the name `path`.
bool is_name_of_earlier(const std::string& path, const std::string& log) {
  const auto name = place(path).string(), begin = place(log).string() + ".";
  return name.starts_with(begin) && name.find_first_not_of("0123456789", begin.size()) == name.npos;
}

void check_pair(const NamedPath& output, const NamedPath& other) {
  if (output.kind == PathKind::kOutputFolder && other.kind == PathKind::kOutputFolder) return;
  for (const auto& [path, log] : {std::pair(output, other), std::pair(other, output)}) {
    check<ValueError>(log.kind != PathKind::kOutputLog || !is_name_of_earlier(path.path, log.path),
                      path.name, ": must not be a name under which an earlier ", log.name,
                      " is kept, got '", path.path, "'");
  }
  check<ValueError>(!same_place(output.path, other.path), output.name, ": must not be what ",
                    other.name, " names, got '", output.path, "'");
  std::error_code failure;
  const bool is_file = output.kind == PathKind::kOutput || output.kind == PathKind::kOutputLog;
  const bool into_input = other.kind == PathKind::kInput && is_file &&
                          fs::is_directory(other.path, failure) &&
                          place(output.path).parent_path() == place(other.path);
  check<ValueError>(!into_input, output.name, ": must not be in the folder that ", other.name,
                    " names, got '", output.path, "'");
}

}  // namespace

CLI::Option* add_number(CLI::App& app, const std::string& name, int& value, Bounds<int> bounds,
                        const std::string& description) {
  return add_with_default(app, name, value, bounds, description);
}

CLI::Option* add_number(CLI::App& app, const std::string& name, std::int64_t& value,
                        Bounds<std::int64_t> bounds, const std::string& description) {
  return add_with_default(app, name, value, bounds, description);
}

CLI::Option* add_number(CLI::App& app, const std::string& name, std::uint64_t& value,
                        Bounds<std::uint64_t> bounds, const std::string& description) {
  return add_with_default(app, name, value, bounds, description);
}

CLI::Option* add_number(CLI::App& app, const std::string& name, double& value,
                        Bounds<double> bounds, const std::string& description) {
  return add_with_default(app, name, value, bounds, description);
}

CLI::Option* add_number(CLI::App& app, const std::string& name, std::optional<std::int64_t>& value,
                        Bounds<std::int64_t> bounds, const std::string& description) {
  return add<std::int64_t>(app, name, value, bounds, description);
}

CLI::Option* add_switch(CLI::App& app, const std::string& name, bool& value,
                        const std::string& description) {
  return app.add_option(name, value, description)
      ->check(CLI::IsMember({"0", "1", "false", "true"}))
      ->capture_default_str();
}

void add_config_file(CLI::App& app, const std::string& name, const std::string& description) {
  constexpr std::uintmax_t kMostBytes = 1 << 20;
  const auto is_sound = [](const std::string& path) -> std::string {
    std::error_code failure;
    if (!fs::exists(path, failure)) return "";  // the parser's own message
    if (!fs::is_regular_file(path, failure)) return "must be a regular file, got " + path;
    const auto size = fs::file_size(path, failure);
    if (size <= kMostBytes) return "";
    return "must be of at most " + shown(kMostBytes) + " bytes, got " + shown(size);
  };
  app.set_config(name, "", description)->check(CLI::Validator(is_sound, "", "config file"));
}

CLI::Option* add_path(CLI::App& app, const std::string& name, std::string& value, PathKind kind,
                      const std::string& description) {
  auto* const option = app.add_option(name, value, description);
  option->type_name(std::string(kTypeNames[static_cast<std::size_t>(kind)]));
  if (!value.empty()) option->capture_default_str();
  return option;
}

std::vector<NamedPath> paths_of(const CLI::App& app) {
  std::vector<NamedPath> paths;
  for (const auto* option : app.get_options()) {
    for (std::size_t kind = 0; kind < std::size(kTypeNames); ++kind) {
      if (option->get_type_name() != kTypeNames[kind]) continue;
      const auto values =
          option->empty() ? std::vector<std::string>{option->get_default_str()} : option->results();
      for (const auto& value : values) {
        if (!value.empty())
          paths.push_back({option->get_name(), value, static_cast<PathKind>(kind)});
      }
    }
  }
  for (const auto* command : app.get_subcommands()) {
    for (auto& path : paths_of(*command)) paths.push_back(std::move(path));
  }
  return paths;
}

void check_paths(const std::vector<NamedPath>& paths) {
  for (std::size_t i = 0; i < paths.size(); ++i) {
    const auto& output = paths[i];
    if (output.kind == PathKind::kInput) continue;
    check<ValueError>(!is_in_checkpoint(output.path), output.name,
                      ": must not be in a checkpoint, got '", output.path, "'");
    const bool exports = output.kind == PathKind::kExportFolder;
    check<ValueError>(!exports || (!is_checkpoint(output.path) && !holds_checkpoints(output.path)),
                      output.name, ": must not be a folder of checkpoints, got '", output.path,
                      "'");
    for (std::size_t j = 0; j < paths.size(); ++j) {
      // Of two outputs once, the later one by name.
      if (j != i && (paths[j].kind == PathKind::kInput || j < i)) check_pair(output, paths[j]);
    }
  }
}

void check_product(const std::string& what, std::int64_t a, std::int64_t b, std::int64_t most) {
  check<ValueError>(a == 0 || b <= most / a, what, ": must be at most ", most, ", got ", a, " x ",
                    b);
}

std::optional<int> parse_options(CLI::App& app, int argc, const char* const* argv) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  check_paths(paths_of(app));
  return std::nullopt;
}

}  // namespace moegrad::training
