// SPDX-License-Identifier: Apache-2.0
#include "train/config/paths.h"

#include <sys/stat.h>

#include <filesystem>
#include <system_error>
#include <utility>

#include "framework/io/checkpoint_folders.h"
#include "framework/runtime/program.h"
#include "models/causal_lm/save_pretrained.h"

namespace moegrad::training {
namespace {

namespace fs = std::filesystem;

// The absolute path without links, as far as it exists.
fs::path resolved(const std::string& path) {
  std::error_code failure;
  const auto whole = fs::absolute(path, failure);
  auto found = fs::weakly_canonical(whole, failure);
  if (failure) found = whole.lexically_normal();
  return found.has_filename() ? found : found.parent_path();  // without a slash at the end
}

bool same_file_or_folder(const std::string& a, const std::string& b) {
  struct stat first = {}, second = {};
  const bool exist = stat(a.c_str(), &first) == 0, other = stat(b.c_str(), &second) == 0;
  if (!exist && !other) return resolved(a) == resolved(b);
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
  const auto name = resolved(path).string(), begin = resolved(log).string() + ".";
  return name.starts_with(begin) && name.find_first_not_of("0123456789", begin.size()) == name.npos;
}

// Whether an export to `folder` may write or remove the file.
bool may_be_exported_over(const std::string& file, const NamedPath& folder) {
  const auto path = resolved(file);
  return folder.kind == PathKind::kExportFolder && path.parent_path() == resolved(folder.path) &&
         models::is_export_name(path.filename());
}

void check_pair(const NamedPath& output, const NamedPath& other) {
  if (output.kind == PathKind::kOutputFolder && other.kind == PathKind::kOutputFolder) return;
  for (const auto& [path, log] : {std::pair(output, other), std::pair(other, output)}) {
    check<UsageError>(log.kind != PathKind::kOutputLog || !is_name_of_earlier(path.path, log.path),
                      path.name, ": must not be a name under which an earlier ", log.name,
                      " is kept, got '", path.path, "'");
  }
  check<UsageError>(!same_file_or_folder(output.path, other.path), output.name,
                    ": must not be what ", other.name, " names, got '", output.path, "'");
  std::error_code failure;
  const bool is_file = output.kind == PathKind::kOutput || output.kind == PathKind::kOutputLog;
  const bool into_input = other.kind == PathKind::kInput && is_file &&
                          fs::is_directory(other.path, failure) &&
                          resolved(output.path).parent_path() == resolved(other.path);
  check<UsageError>(!into_input, output.name, ": must not be in the folder that ", other.name,
                    " names, got '", output.path, "'");
  for (const auto& [folder, file] : {std::pair(output, other), std::pair(other, output)}) {
    check<UsageError>(!may_be_exported_over(file.path, folder), folder.name,
                      ": must not be the folder of what ", file.name, " names, got '", folder.path,
                      "'");
  }
}

}  // namespace

void check_paths(const std::vector<NamedPath>& paths) {
  for (std::size_t i = 0; i < paths.size(); ++i) {
    const auto& output = paths[i];
    if (output.kind == PathKind::kInput) continue;
    check<UsageError>(!is_in_checkpoint(output.path), output.name,
                      ": must not be in a checkpoint, got '", output.path, "'");
    const bool exports = output.kind == PathKind::kExportFolder;
    check<UsageError>(!exports || (!is_checkpoint(output.path) && !holds_checkpoints(output.path)),
                      output.name, ": must not be a folder of checkpoints, got '", output.path,
                      "'");
    for (std::size_t j = 0; j < paths.size(); ++j) {
      // Each pair of outputs is checked once; the message names the later one.
      if (j != i && (paths[j].kind == PathKind::kInput || j < i)) check_pair(output, paths[j]);
    }
  }
}

}  // namespace moegrad::training
