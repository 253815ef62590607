// SPDX-License-Identifier: Apache-2.0
#include "examples/output_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <iostream>
#include <system_error>

#include "framework/io/folder_lock.h"
#include "framework/runtime/error.h"
#include "framework/runtime/log.h"

namespace moegrad::examples {

std::ofstream open_for_writing(const std::string& path) {
  std::ofstream file(path);
  check<ValueError>(file.good(), "cannot write file '", path, "'");
  return file;
}

void finish_writing(std::ofstream& file, const std::string& path) {
  check<ValueError>(file.flush().good(), "cannot write file '", path, "'");
}

void LostWrites::note(const std::string& reason) {
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
  const auto reason = std::generic_category().message(errno);
  throw ValueError(option_ + ": cannot write file '" + path_ + "': " + reason);
}

void LineFile::open(int flags, unsigned mode) {
  do {
    if (descriptor_ >= 0) close(descriptor_);
    // Without O_NONBLOCK a pipe that nobody reads would hold up the program.
    descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CLOEXEC | O_NONBLOCK | flags, mode);
    struct stat status = {};
    if (descriptor_ < 0 || fstat(descriptor_, &status) != 0) fail();
    regular_ = S_ISREG(status.st_mode);
    size_ = status.st_size;
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
  if (!regular_ || size_ == 0) return;
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
                    path_, "' as '", kept, "', got ", std::generic_category().message(errno));
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
    if (!write_whole(block)) fail();
  }
}

void LineFile::cut(std::int64_t bytes) {
  if (!regular_) return;
  if (ftruncate(descriptor_, bytes) != 0) fail();
  size_ = bytes;
}

void LineFile::write(std::string_view line) {
  if (write_whole(std::string(line) + "\n")) return;
  lost_.note("cannot write file '" + path_ + "': " + std::generic_category().message(errno));
}

void LineFile::end_line() {
  if (!write_whole("\n")) fail();
}

bool LineFile::write_whole(std::string_view text) {
  std::string_view rest = text;
  while (!rest.empty()) {
    const auto at = size_ + std::ssize(text) - std::ssize(rest);
    const auto count = regular_ ? pwrite(descriptor_, rest.data(), rest.size(), at)
                                : ::write(descriptor_, rest.data(), rest.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      const int reason = errno;
      // A part of a line must not stand before the next one.
      if (regular_) [[maybe_unused]]
        const int removed = ftruncate(descriptor_, size_);
      errno = reason;
      return false;
    }
    rest.remove_prefix(static_cast<std::size_t>(count));
  }
  size_ += std::ssize(text);
  return true;
}

}  // namespace moegrad::examples
