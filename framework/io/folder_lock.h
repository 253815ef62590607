// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>

namespace moegrad {

/// Keeps other programs that take the same lock out of a folder while it lives. Readers need none.
///
/// The lock is the system's (flock) on the file `.lock` in the folder. The file also says which
/// process has the lock. The lock ends with the process, however that ends. A file that a killed
/// process left has no effect.
class FolderLock {
 public:
  /// Makes the folder if there is none. Logs a warning if the file system has no locks. Throws
  /// Error
  ///
  ///     lock: <folder> must not be in a checkpoint
  ///     lock: <folder> must be written by one program at a time, got process <id> on <host> at ...
  ///     lock: cannot <step> <path>: <reason>
  explicit FolderLock(const std::filesystem::path& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

  /// Throws Error `lock: <folder> must stay where it was locked, got it moved or removed since`.
  /// Then another folder may have the name, and this lock does not protect it.
  void check_held() const;

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
};

/// Whether the file that `descriptor` has open is still the one that `path` names.
bool is_still_at(int descriptor, const std::filesystem::path& path);

}  // namespace moegrad
