// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <system_error>

#include "framework/runtime/error.h"

namespace moegrad {

/// The system has refused an operation on a file. `reason` is the system's reason.
class FileError : public Error {
 public:
  FileError(const std::string& what, const std::string& reason)
      : Error(what + ": " + reason), reason_(reason) {}
  const std::string& reason() const { return reason_; }

 private:
  std::string reason_;
};

/// A file that appears complete or not at all. It is written under a temporary name in the same
/// folder. commit() makes it durable before it replaces an earlier file. It then has the earlier
/// file's permissions and, if the system allows it, its owner. Links are followed.
///
/// A process that is killed leaves `<name>.tmp.<process id>.<number>` behind, with the first 200
/// bytes of a longer name.
class AtomicFile {
 public:
  /// Creates the temporary file. All functions throw FileError
  /// `atomic_file: cannot <step> <path>: <reason>`. Error if `path` is not a regular file.
  explicit AtomicFile(const std::filesystem::path& path);
  /// Removes the temporary file unless it has been committed.
  ~AtomicFile();
  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&&) = delete;

  /// Writes all of `bytes` at `offset`. Bytes that are skipped read as zero.
  void write_at(std::uint64_t offset, std::span<const std::byte> bytes);
  /// Flushes the file to the disk, renames it to `path`, and flushes the folder if the file system
  /// can do that.
  void commit();

 private:
  std::filesystem::path path_;
  std::filesystem::path temporary_;  // empty after commit()
  int descriptor_ = -1;
};

/// Makes durable what was created, renamed or removed in a folder. Throws FileError
/// `atomic_file: cannot <step> <folder>: <reason>`. If the file system cannot flush folders at all
/// (EINVAL, EPERM, ENOSYS, EOPNOTSUPP), returns that reason instead.
std::error_code flush_folder(const std::filesystem::path& folder);

/// Writes a whole file through an AtomicFile.
void write_file_atomically(const std::filesystem::path& path, std::string_view contents);

}  // namespace moegrad
