// SPDX-License-Identifier: Apache-2.0
#include "tests/framework/io/watched_calls.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <string>
#include <system_error>

#include "tests/framework/io/recorded_disk.h"

namespace moegrad::test {
namespace {

WatchedCalls* watcher = nullptr;

bool fails(const std::string& call) {
  if (watcher == nullptr) return false;
  const int error = watcher->note(call);
  if (error != 0) errno = error;
  return error != 0;
}

std::filesystem::path path_of(int descriptor) {
  std::error_code failure;
  return std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(descriptor), failure);
}

std::filesystem::path path_in(int folder, const char* name) {
  return folder == AT_FDCWD ? std::filesystem::path(name) : path_of(folder) / name;
}

template <class Note>
void note_done(bool done, const Note& note) {
  auto* const disk = RecordedDisk::current();
  if (disk == nullptr || !done) return;
  const int before = errno;
  note(*disk);
  errno = before;
}

}  // namespace

WatchedCalls::WatchedCalls() { watcher = this; }

WatchedCalls::~WatchedCalls() { watcher = nullptr; }

WatchedCalls* WatchedCalls::current() { return watcher; }

void WatchedCalls::fail(int call, int error) {
  failing_ = call;
  error_ = error;
}

int WatchedCalls::note(const std::string& call) {
  calls_ += (calls_.empty() ? "" : " ") + call;
  if (count_++ == failing_) return error_;
  const auto refused = refused_.find(call);
  return refused == refused_.end() ? 0 : refused->second;
}

}  // namespace moegrad::test

// The program's own definitions come before those of the C library.
using namespace moegrad::test;

extern "C" ssize_t pwrite(int descriptor, const void* bytes, size_t count, off_t offset) {
  if (fails("write")) return -1;
  const auto* const current = WatchedCalls::current();
  if (current != nullptr) count = std::min(count, current->most_written());
  const ssize_t written = syscall(SYS_pwrite64, descriptor, bytes, count, offset);
  note_done(written >= 0, [&](RecordedDisk& disk) {
    disk.wrote(path_of(descriptor), static_cast<std::size_t>(offset),
               {static_cast<const char*>(bytes), static_cast<std::size_t>(written)});
  });
  return written;
}

extern "C" ssize_t write(int descriptor, const void* bytes, size_t count) {
  if (fails("write")) return -1;
  const auto* const current = WatchedCalls::current();
  if (current != nullptr) count = std::min(count, current->most_written());
  return syscall(SYS_write, descriptor, bytes, count);
}

extern "C" int fsync(int descriptor) {
  struct stat status = {};
  const bool folder = fstat(descriptor, &status) == 0 && S_ISDIR(status.st_mode);
  if (fails(folder ? "fsync(folder)" : "fsync(file)")) return -1;
  // That the disk has it is only of interest where nothing is recorded.
  if (RecordedDisk::current() == nullptr) return static_cast<int>(syscall(SYS_fsync, descriptor));
  note_done(true, [&](RecordedDisk& disk) { disk.flushed(path_of(descriptor)); });
  return 0;
}

extern "C" int rename(const char* from, const char* to) noexcept {
  if (fails("rename")) return -1;
  const auto result = static_cast<int>(syscall(SYS_renameat, AT_FDCWD, from, AT_FDCWD, to));
  note_done(result == 0, [&](RecordedDisk& disk) { disk.renamed(from, to); });
  return result;
}

extern "C" int mkdir(const char* path, mode_t mode) noexcept {
  if (fails("mkdir")) return -1;
  const auto result = static_cast<int>(syscall(SYS_mkdirat, AT_FDCWD, path, mode));
  note_done(result == 0, [&](RecordedDisk& disk) { disk.made_folder(path); });
  return result;
}

extern "C" int symlink(const char* target, const char* path) noexcept {
  if (fails("symlink")) return -1;
  const auto result = static_cast<int>(syscall(SYS_symlinkat, target, AT_FDCWD, path));
  note_done(result == 0, [&](RecordedDisk& disk) { disk.linked(path, target); });
  return result;
}

extern "C" int unlinkat(int folder, const char* name, int flags) noexcept {
  if (fails("unlink")) return -1;
  const auto path = path_in(folder, name);
  const auto result = static_cast<int>(syscall(SYS_unlinkat, folder, name, flags));
  note_done(result == 0, [&](RecordedDisk& disk) { disk.removed(path); });
  return result;
}

extern "C" int unlink(const char* path) noexcept { return unlinkat(AT_FDCWD, path, 0); }

extern "C" int rmdir(const char* path) noexcept { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }
