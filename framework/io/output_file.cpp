// SPDX-License-Identifier: Apache-2.0
#include "framework/io/output_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <system_error>

#include "framework/io/append.h"
#include "framework/io/atomic_file.h"
#include "framework/io/folder_lock.h"
#include "framework/runtime/error.h"
#include "framework/runtime/log.h"

namespace moegrad {
namespace {

std::string reason_of(int error) { return std::generic_category().message(error); }

}  // namespace

OutputFile::OutputFile(const std::string& path) : path_(path) {
  struct stat status = {};
  const bool exists = lstat(path.c_str(), &status) == 0;
  if (!path.empty() && (!exists || S_ISREG(status.st_mode))) {
    if (exists && access(path.c_str(), W_OK) != 0) fail(reason_of(errno));
    try {
      const AtomicFile attempt(path);
    } catch (const FileError& error) {
      fail(error.reason());
    }
    return;
  }
  // Without O_NONBLOCK a pipe that nobody reads would hold up the program.
  descriptor_ = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666);
  if (descriptor_ < 0) fail(reason_of(errno));
  fcntl(descriptor_, F_SETFL, fcntl(descriptor_, F_GETFL) & ~O_NONBLOCK);
}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

void OutputFile::finish() {
  if (!good()) fail("out of memory");  // which a stream hides
  if (descriptor_ >= 0) return write_in_place();
  try {
    write_file_atomically(path_, view());
  } catch (const FileError& error) {
    fail(error.reason());
  }
}

void OutputFile::write_in_place() {
  struct stat status = {};
  if (fstat(descriptor_, &status) != 0) fail(reason_of(errno));
  if (S_ISREG(status.st_mode) && ftruncate(descriptor_, 0) != 0) fail(reason_of(errno));
  const int error = append_whole(descriptor_, view());
  if (error != 0) fail(reason_of(error));
}

void OutputFile::fail(const std::string& reason) const {
  throw ValueError("cannot write file '" + path_ + "': " + reason);
}

void LostWrites::record(const std::string& reason) {
  if (lost_++ == 0) log(LogLevel::kError, option_ + ": " + reason + "; the run goes on");
}

bool LostWrites::report() const {
  if (lost_ == 0) return true;
  log(LogLevel::kError, option_ + ": " + std::to_string(lost_) + " records could not be written");
  return false;
}

LineFile::LineFile(const std::string& path, std::string option)
    : path_(path), option_(std::move(option)), lost_(option_) {
  open(O_CREAT, 0666);
}

LineFile::~LineFile() { close(descriptor_); }

void LineFile::fail() const {
  throw ValueError(option_ + ": cannot write file '" + path_ + "': " + reason_of(errno));
}

void LineFile::open(int flags, unsigned mode) {
  do {
    if (descriptor_ >= 0) close(descriptor_);
    // Without O_NONBLOCK a pipe that nobody reads would hold up the program.
    descriptor_ = ::open(path_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC | O_NONBLOCK | flags, mode);
    struct stat status = {};
    if (descriptor_ < 0 || fstat(descriptor_, &status) != 0) fail();
    regular_ = S_ISREG(status.st_mode);
    empty_ = status.st_size == 0;
    if (!regular_) {
      fcntl(descriptor_, F_SETFL, fcntl(descriptor_, F_GETFL) & ~O_NONBLOCK);
      return;
    }
    const bool locked = flock(descriptor_, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
    check<ValueError>(locked, option_, ": '", path_,
                      "' must be written by one program at a time, got another at work on it");
  } while (!is_still_at(descriptor_, path_));  // else it has been set aside meanwhile
}

void LineFile::set_aside(std::int64_t bytes) {
  if (!regular_ || empty_) return;
  const auto target = std::filesystem::canonical(path_).string();
  struct stat status = {};
  fstat(descriptor_, &status);
  int number = 1;
  const auto is_taken = [](const std::string& name) {
    return std::filesystem::exists(std::filesystem::symlink_status(name));
  };
  while (is_taken(target + "." + std::to_string(number))) ++number;
  const auto kept = target + "." + std::to_string(number);
  check<ValueError>(rename(target.c_str(), kept.c_str()) == 0, option_, ": must keep the earlier '",
                    path_, "' as '", kept, "', got ", reason_of(errno));
  open(O_CREAT, 0600);
  fchmod(descriptor_, status.st_mode & 07777);
  std::cout << option_ << ": the earlier " << path_ << " is kept as " << kept << std::endl;
  std::ifstream earlier(kept, std::ios::binary);
  std::string block;
  for (; bytes > 0; bytes -= std::ssize(block)) {
    block.resize(static_cast<std::size_t>(std::min<std::int64_t>(bytes, 1 << 20)));
    earlier.read(block.data(), std::ssize(block));
    check<ValueError>(earlier.gcount() == std::ssize(block), option_, ": cannot read file '", kept,
                      "'");
    append(block);
  }
}

void LineFile::cut(std::int64_t bytes) {
  if (!regular_) return;
  if (ftruncate(descriptor_, bytes) != 0) fail();
}

void LineFile::write(std::string_view line) {
  const int failure = append_whole(descriptor_, std::string(line) + "\n");
  if (failure == 0) return;
  lost_.record("cannot write file '" + path_ + "': " + reason_of(failure));
}

void LineFile::end_line() { append("\n"); }

void LineFile::append(std::string_view text) {
  errno = append_whole(descriptor_, text);
  if (errno != 0) fail();
}

}  // namespace moegrad
