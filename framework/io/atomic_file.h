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

/// What the system refuses of a file; `reason` says why, in its words.
class FileError : public Error {
 public:
  FileError(const std::string& what, const std::string& reason)
      : Error(what + ": " + reason), reason_(reason) {}
  const std::string& reason() const { return reason_; }

 private:
  std::string reason_;
};

/// A file that appears complete or not at all: it is written under a temporary name in the same
/// folder, and commit() makes it durable before it takes the place of an earlier one, with that
/// one's permissions and, where the system allows it, its owner. Links are followed.
///
/// A process that is killed leaves `<name>.tmp.<process id>.<number>` behind.
class AtomicFile {
 public:
  /// Creates the temporary file. This and the rest throw FileError
  /// `atomic_file: cannot <step> <path>: <reason>`; Error as well if `path` is no regular file.
  explicit AtomicFile(const std::filesystem::path& path);
  /// Removes the temporary file unless it has been committed.
  ~AtomicFile();
  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&&) = delete;

  /// Writes all of `bytes` at `offset`; what is skipped reads as zero.
  void write_at(std::uint64_t offset, std::span<const std::byte> bytes);
  /// Flushes the file to the disk, renames it to `path`, flushes the folder if the file system can.
  void commit();

 private:
  std::filesystem::path path_;
  std::filesystem::path temporary_;  // empty after commit()
  int descriptor_ = -1;
};

/// Makes durable what was created, renamed or removed in a folder. Throws FileError
/// `atomic_file: cannot <step> <folder>: <reason>`, but where the file system does not do that for
/// folders at all (EINVAL, EPERM, ENOSYS, EOPNOTSUPP) it returns that reason.
std::error_code flush_folder(const std::filesystem::path& folder);

/// Writes a whole file in this way.
void write_file_atomically(const std::filesystem::path& path, std::string_view contents);

}  // namespace moegrad
