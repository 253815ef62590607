// SPDX-License-Identifier: Apache-2.0
#include "framework/io/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "framework/runtime/error.h"

namespace moegrad {
namespace {

class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() {
    if (number_ >= 0) close(number_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  int number() const { return number_; }

 private:
  int number_;
};

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path, const std::string& subject) {
  const auto require = [&](bool ok) {
    if (ok) return;
    const auto reason = std::generic_category().message(errno);
    check(false, subject, ": ", path.string(), ": must be a readable regular file, got ", reason);
  };
  // Without O_NONBLOCK a pipe of that name would block until somebody writes to it.
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  require(file.number() >= 0);
  struct stat status = {};
  require(fstat(file.number(), &status) == 0);
  check(S_ISREG(status.st_mode), subject, ": ", path.string(),
        ": must be a readable regular file, got ",
        S_ISDIR(status.st_mode) ? "a folder" : "a device");
  const auto size = static_cast<std::size_t>(status.st_size);
  if (size == 0) return;  // cannot be mapped
  void* const memory = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.number(), 0);
  require(memory != MAP_FAILED);
  bytes_ = {static_cast<const std::byte*>(memory), size};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

MappedFile::MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

}  // namespace moegrad
