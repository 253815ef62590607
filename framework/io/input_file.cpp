// SPDX-License-Identifier: Apache-2.0
#include "framework/io/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "framework/runtime/error.h"

namespace moegrad {

InputFile::InputFile(const std::filesystem::path& path, const std::string& subject,
                     InputChanges allowed)
    // Without O_NONBLOCK a pipe of that name would block until somebody writes to it.
    : path_(path),
      subject_(subject),
      allowed_(allowed),
      descriptor_(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
  struct stat status = {};
  std::string reason;
  if (descriptor_ < 0 || fstat(descriptor_, &status) != 0) {
    reason = std::generic_category().message(errno);
  } else if (!S_ISREG(status.st_mode)) {
    reason = S_ISDIR(status.st_mode)    ? "a folder"
             : S_ISFIFO(status.st_mode) ? "a pipe"
                                        : "a device";
  }
  if (!reason.empty()) {
    if (descriptor_ >= 0) close(descriptor_);
    throw Error(subject + ": " + path.string() + ": must be a readable regular file, got " +
                reason);
  }
  size_ = status.st_size;
  changed_seconds_ = status.st_mtim.tv_sec;
  changed_nanoseconds_ = status.st_mtim.tv_nsec;
}

InputFile::~InputFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

InputFile::InputFile(InputFile&& other) noexcept
    : path_(std::move(other.path_)),
      subject_(std::move(other.subject_)),
      allowed_(other.allowed_),
      descriptor_(std::exchange(other.descriptor_, -1)),
      size_(other.size_),
      changed_seconds_(other.changed_seconds_),
      changed_nanoseconds_(other.changed_nanoseconds_) {}

void InputFile::check_unchanged() const {
  struct stat status = {};
  const bool known = fstat(descriptor_, &status) == 0;
  if (known && allowed_ == InputChanges::kGrowth && status.st_size >= size_) return;
  check(known && status.st_size == size_, subject_, ": ", path_.string(),
        ": must not change while it is read, got ", status.st_size, " bytes after ", size_);
  check(status.st_mtim.tv_sec == changed_seconds_ && status.st_mtim.tv_nsec == changed_nanoseconds_,
        subject_, ": ", path_.string(), ": must not change while it is read, got other contents");
}

void InputFile::read(std::int64_t offset, std::span<std::byte> bytes) const {
  check(offset >= 0 && std::ssize(bytes) <= size_ - offset, subject_, ": ", path_.string(),
        ": bytes [", offset, ", ", offset + std::ssize(bytes), ") must be within ", size_);
  while (!bytes.empty()) {
    const auto count = pread(descriptor_, bytes.data(), bytes.size(), offset);
    if (count < 0 && errno == EINTR) continue;
    check(count >= 0, subject_, ": ", path_.string(), ": must be readable, got ",
          std::generic_category().message(errno));
    if (count == 0) break;  // cut short
    bytes = bytes.subspan(static_cast<std::size_t>(count));
    offset += count;
  }
  check_unchanged();  // after reading: so the bytes are those of the file as it was opened
  check(bytes.empty(), subject_, ": ", path_.string(),
        ": must not change while it is read, got its end");
}

std::string read_input_file(const std::filesystem::path& path, const std::string& subject,
                            std::int64_t most, InputChanges allowed) {
  const InputFile file(path, subject, allowed);
  check<ValueError>(file.size() <= most, subject, ": ", path.string(), ": must be of at most ",
                    most, " bytes, got ", file.size());
  std::string text(static_cast<std::size_t>(file.size()), '\0');
  file.read(0, std::as_writable_bytes(std::span(text)));
  return text;
}

}  // namespace moegrad
