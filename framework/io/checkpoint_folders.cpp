// SPDX-License-Identifier: Apache-2.0
#include "framework/io/checkpoint_folders.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cinttypes>
#include <cstdio>
#include <optional>
#include <string_view>
#include <system_error>

#include "framework/io/atomic_file.h"
#include "framework/runtime/error.h"

namespace moegrad {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step-";
constexpr std::string_view kHiddenPrefix = ".step-";
constexpr std::string_view kHiddenSuffix = ".tmp";
constexpr std::size_t kDigits = 8;

std::string name_of(std::int64_t step) {
  std::array<char, 40> name{};
  std::snprintf(name.data(), name.size(), "step-%08" PRId64, step);
  return name.data();
}

std::optional<std::int64_t> step_of(const std::string& name) {
  if (!name.starts_with(kPrefix) || name.size() < kPrefix.size() + kDigits) return std::nullopt;
  std::int64_t step = 0;
  const auto [end, failure] =
      std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), step);
  if (failure != std::errc() || name_of(step) != name) return std::nullopt;
  return step;
}

void require(const std::error_code& failure, std::string_view step, const fs::path& path) {
  check(!failure, "checkpoint: cannot ", step, " ", path.string(), ": ", failure.message());
}

void require(bool ok, std::string_view step, const fs::path& path) {
  if (!ok) require(std::error_code(errno, std::generic_category()), step, path);
}

void move(const fs::path& from, const fs::path& to) {
  require(rename(from.c_str(), to.c_str()) == 0, "rename", from);
}

void remove_tree(const fs::path& path) {
  std::error_code failure;
  fs::remove_all(path, failure);
  require(failure, "remove", path);
}

fs::path hidden_name(const fs::path& root, const std::string& name) {
  fs::path path = root / ".";
  return path.concat(name).concat(kHiddenSuffix);
}

// Makes the folder and all missing folders above it, durably.
void make_folders(const fs::path& path) {
  if (path.empty() || fs::is_directory(path)) return;
  const auto parent = path.parent_path();
  make_folders(parent);
  std::error_code failure;
  fs::create_directory(path, failure);
  require(failure, "create", path);
  flush_folder(parent.empty() ? fs::path(".") : parent);
}

// First removes its name, durably, so that nobody takes a half removed folder for a checkpoint.
void remove_checkpoint(const fs::path& path) {
  const auto hidden = hidden_name(path.parent_path(), path.filename().string() + ".old");
  remove_tree(hidden);
  move(path, hidden);
  flush_folder(path.parent_path());
  remove_tree(hidden);
}

}  // namespace

std::vector<CheckpointFolder> list_checkpoints(const fs::path& root) {
  std::vector<CheckpointFolder> found;
  std::error_code failure;
  for (const auto& entry : fs::directory_iterator(root, failure)) {
    if (const auto step = step_of(entry.path().filename().string())) {
      found.push_back({*step, entry.path()});
    }
  }
  if (failure != std::errc::no_such_file_or_directory) require(failure, "list", root);
  std::ranges::sort(found, std::greater<>(), &CheckpointFolder::step);
  return found;
}

std::optional<std::int64_t> step_of_folder(const fs::path& folder) {
  // "root/step-00000008/" has an empty last part.
  return step_of((folder.has_filename() ? folder : folder.parent_path()).filename().string());
}

bool is_checkpoint(const std::filesystem::path& folder) {
  std::error_code failure;
  return std::filesystem::exists(folder / kManifestFile, failure);
}

bool is_in_checkpoint(const std::filesystem::path& path) {
  std::error_code failure;
  const auto whole = std::filesystem::absolute(path, failure);
  auto folder = std::filesystem::weakly_canonical(whole, failure);
  if (failure) folder = whole.lexically_normal();
  for (; folder != folder.parent_path(); folder = folder.parent_path()) {
    if (is_checkpoint(folder)) return true;
  }
  return false;
}

CheckpointCommit::CheckpointCommit(fs::path root, std::int64_t step)
    : root_(std::move(root)),
      step_(step),
      path_(root_ / name_of(step)),
      temporary_(hidden_name(root_, name_of(step))) {
  check<ValueError>(step >= 0, "checkpoint: step must not be negative, got ", step);
}

void remove_leftovers(const fs::path& root) {
  std::error_code failure;
  std::vector<fs::path> stale;
  for (const auto& entry : fs::directory_iterator(root, failure)) {
    const auto name = entry.path().filename().string();
    if (name.starts_with(kHiddenPrefix) && name.ends_with(kHiddenSuffix))
      stale.push_back(entry.path());
  }
  require(failure, "list", root);
  for (const auto& path : stale) remove_tree(path);
}

void CheckpointCommit::begin() const {
  make_folders(root_);
  remove_leftovers(root_);
  std::error_code failure;
  fs::create_directory(temporary_, failure);
  require(failure, "create", temporary_);
}

std::error_code CheckpointCommit::flush_folder() const { return moegrad::flush_folder(temporary_); }

void CheckpointCommit::rename_folder() const {
  // A folder cannot replace a folder that is not empty. Between the removal and the rename an older
  // checkpoint is the newest. A run that resumes from it reaches this step again, with the same
  // bits.
  if (fs::exists(fs::symlink_status(path_))) remove_checkpoint(path_);
  move(temporary_, path_);
}

std::error_code CheckpointCommit::flush_root() const { return moegrad::flush_folder(root_); }

void CheckpointCommit::move_latest() const {
  const auto link = hidden_name(root_, "step-latest");
  remove_tree(link);
  require(symlink(path_.filename().c_str(), link.c_str()) == 0, "create", link);
  move(link, root_ / kLatestLink);
}

void CheckpointCommit::remove_older(std::int64_t keep, const Test& opens,
                                    const Test& is_sound) const {
  std::int64_t kept = 0;
  for (const auto& [step, path] : list_checkpoints(root_)) {
    if (step > step_) continue;
    if (kept < keep) {
      if (opens(path)) ++kept;
    } else if (is_sound(path)) {
      remove_checkpoint(path);
    }
  }
}

void CheckpointCommit::abandon() const noexcept {
  std::error_code ignored;  // the next begin() tries again
  fs::remove_all(temporary_, ignored);
}

}  // namespace moegrad
