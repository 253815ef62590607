// SPDX-License-Identifier: Apache-2.0
#include "framework/io/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <string>
#include <system_error>
#include <utility>

#include "framework/distributed/slow_storage.h"
#include "framework/runtime/error.h"

namespace moegrad {
namespace {

void require(bool ok, std::string_view step, const std::filesystem::path& path) {
  if (ok) return;
  const auto reason = std::generic_category().message(errno);
  throw FileError("atomic_file: cannot " + std::string(step) + " " + path.string(), reason);
}

// The file that a chain of links leads to. It need not exist.
std::filesystem::path follow_links(std::filesystem::path path) {
  constexpr int kMostLinks = 40;  // the system's limit
  std::error_code failure;        // ignored: looking for the file reports it
  for (int i = 0; std::filesystem::is_symlink(path, failure); ++i) {
    errno = ELOOP;
    require(i < kMostLinks, "follow the links of", path);
    const auto target = std::filesystem::read_symlink(path, failure);
    path = target.is_absolute() ? target : path.parent_path() / target;
  }
  return path;
}

bool flush(int descriptor) {
  int result = 0;
  do {
    result = fsync(descriptor);
  } while (result != 0 && errno == EINTR);
  return result == 0;
}

}  // namespace

AtomicFile::AtomicFile(const std::filesystem::path& path) : path_(follow_links(path)) {
  struct stat earlier = {};
  const bool replaces = stat(path_.c_str(), &earlier) == 0;
  require(replaces || errno == ENOENT, "create", path_);
  check(!replaces || S_ISREG(earlier.st_mode), "atomic_file: ", path_.string(),
        " must be a regular file, got ", S_ISDIR(earlier.st_mode) ? "a folder" : "a device");
  static std::atomic<std::uint64_t> number = 0;
  // Takes the next number if a killed process with the same id has left a file of this name.
  do {
    // The name itself may be the longest that there may be.
    temporary_ = path_.parent_path() / path_.filename().string().substr(0, 200);
    temporary_ += ".tmp." + std::to_string(getpid()) + "." + std::to_string(number++);
    descriptor_ = open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  } while (descriptor_ < 0 && errno == EEXIST);
  require(descriptor_ >= 0, "create", path_);
  if (!replaces) return;
  // If the owner cannot be set, the set-user-ID bits are dropped: nobody may run it as a new owner.
  const bool owned = (earlier.st_uid == geteuid() && earlier.st_gid == getegid()) ||
                     fchown(descriptor_, earlier.st_uid, earlier.st_gid) == 0;
  fchmod(descriptor_, earlier.st_mode & (owned ? 07777U : 0777U));
}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::exchange(other.temporary_, {})),
      descriptor_(std::exchange(other.descriptor_, -1)) {}

AtomicFile::~AtomicFile() {
  if (descriptor_ >= 0) close(descriptor_);
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

void AtomicFile::write_at(std::uint64_t offset, std::span<const std::byte> bytes) {
  const SlowStorage storage("writing " + path_.string());
  while (!bytes.empty()) {
    const auto count = pwrite(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    require(count >= 0, "write", path_);
    bytes = bytes.subspan(static_cast<std::size_t>(count));
    offset += static_cast<std::uint64_t>(count);
  }
}

void AtomicFile::commit() {
  check(!temporary_.empty(), "atomic_file: ", path_.string(), " must be committed once, got again");
  const SlowStorage storage("flushing " + path_.string());
  require(flush(descriptor_), "flush", path_);
  // An interrupted close() has closed it.
  require(close(std::exchange(descriptor_, -1)) == 0 || errno == EINTR, "close", path_);
  require(rename(temporary_.c_str(), path_.c_str()) == 0, "rename", path_);
  temporary_.clear();
  // A rename is durable once the folder is flushed.
  flush_folder(path_.has_parent_path() ? path_.parent_path() : std::filesystem::path("."));
}

std::error_code flush_folder(const std::filesystem::path& folder) {
  const SlowStorage storage("flushing " + folder.string());
  const int descriptor = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  require(descriptor >= 0, "open", folder);
  const bool flushed = flush(descriptor);
  const int reason = errno;
  close(descriptor);
  const bool unable =
      reason == EINVAL || reason == EPERM || reason == ENOSYS || reason == EOPNOTSUPP;
  if (!flushed && unable) return {reason, std::generic_category()};
  errno = reason;
  require(flushed, "flush", folder);
  return {};
}

void write_file_atomically(const std::filesystem::path& path, std::string_view contents) {
  AtomicFile file(path);
  file.write_at(0, std::as_bytes(std::span(contents)));
  file.commit();
}

}  // namespace moegrad
