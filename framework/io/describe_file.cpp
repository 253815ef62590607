// SPDX-License-Identifier: Apache-2.0
#include "framework/io/describe_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <span>
#include <system_error>
#include <vector>

#include "framework/distributed/slow_storage.h"
#include "framework/runtime/crc32c.h"
#include "framework/runtime/error.h"

namespace moegrad {

CheckpointFile describe_file(const std::filesystem::path& path) {
  const auto require = [&](bool ok) {
    if (ok) return;
    const auto reason = std::generic_category().message(errno);
    check(false, "checkpoint: ", path.string(), ": must be readable, got ", reason);
  };
  const SlowStorage storage("reading " + path.string());
  // Read, not mapped: if the disk fails, a mapping kills the process.
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  require(descriptor >= 0);
  constexpr std::size_t kBlock = 1 << 20;
  std::vector<std::byte> block(kBlock);
  CheckpointFile file;
  ssize_t count = 0;
  do {
    count = ::read(descriptor, block.data(), block.size());
    if (count <= 0) continue;
    const auto bytes = std::span(block).first(static_cast<std::size_t>(count));
    file.crc32c = crc32c(bytes, file.crc32c);
    file.bytes += bytes.size();
  } while (count > 0 || (count < 0 && errno == EINTR));
  const int reason = errno;
  close(descriptor);
  errno = reason;
  require(count == 0);
  return file;
}

}  // namespace moegrad
