// SPDX-License-Identifier: Apache-2.0
#include "framework/io/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string>
#include <system_error>

#include "framework/io/checkpoint_folders.h"
#include "framework/runtime/error.h"
#include "framework/runtime/log.h"
#include "framework/runtime/utf8.h"

namespace moegrad {
namespace {

std::string reason_of(int error) { return std::generic_category().message(error); }

void require(bool ok, std::string_view step, const std::filesystem::path& path, int error) {
  check(ok, "lock: cannot ", step, " ", path.string(), ": ", reason_of(error));
}

std::string this_process() {
  std::array<char, 256> host{};
  if (gethostname(host.data(), host.size() - 1) != 0) host = {"an unknown host"};
  return "process " + std::to_string(getpid()) + " on " + host.data();
}

// What the process that holds the lock has written.
std::string owner(int descriptor) {
  std::array<char, 300> text{};
  const auto count = pread(descriptor, text.data(), text.size(), 0);
  std::string shown;
  append_printable(shown, {text.data(), static_cast<std::size_t>(count > 0 ? count : 0)}, false);
  shown.erase(std::min(shown.find('\n'), shown.size()));
  return shown.empty() ? "another process" : shown;
}

}  // namespace

bool is_still_at(int descriptor, const std::filesystem::path& path) {
  struct stat opened = {}, named = {};
  return fstat(descriptor, &opened) == 0 && stat(path.c_str(), &named) == 0 &&
         opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
}

FolderLock::FolderLock(const std::filesystem::path& folder) : path_(folder / ".lock") {
  check(!is_in_checkpoint(folder), "lock: ", folder.string(), " must not be in a checkpoint");
  std::error_code failure;
  std::filesystem::create_directories(folder, failure);
  require(!failure, "create", folder, failure.value());
  while (descriptor_ < 0) {
    const int file = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    require(file >= 0, "open", path_, errno);
    if (flock(file, LOCK_EX | LOCK_NB) != 0) {
      const int error = errno;
      const auto other = owner(file);
      close(file);
      check(error != EWOULDBLOCK, "lock: ", folder.string(),
            " must be written by one program at a time, got ",
            other == this_process() ? "another writer of this process" : other, " at work in it");
      log(LogLevel::kWarning, "lock: cannot lock " + path_.string() + ": " + reason_of(error) +
                                  "; no other program must write to the folder meanwhile");
      path_.clear();
      return;
    }
    // The previous owner may have removed the file since it was opened here.
    if (is_still_at(file, path_)) {
      descriptor_ = file;
    } else {
      close(file);
    }
  }
  const auto text = this_process() + "\n";
  const bool written = ftruncate(descriptor_, 0) == 0 &&
                       pwrite(descriptor_, text.data(), text.size(), 0) == std::ssize(text);
  if (!written) {
    // On a full disk the lock still works; only the owner's name is missing.
    [[maybe_unused]] const int emptied = ftruncate(descriptor_, 0);
  }
}

void FolderLock::check_held() const {
  check(descriptor_ < 0 || is_still_at(descriptor_, path_), "lock: ", path_.parent_path().string(),
        " must stay where it was locked, got it moved or removed since");
}

FolderLock::~FolderLock() {
  if (descriptor_ < 0) return;
  // Removed while it is locked: see is_still_at() above. If another folder has taken the name, the
  // file there is not ours.
  if (is_still_at(descriptor_, path_)) unlink(path_.c_str());
  close(descriptor_);
}

}  // namespace moegrad
