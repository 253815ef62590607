// SPDX-License-Identifier: Apache-2.0
#include "framework/io/append.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace moegrad {
namespace {

// Removes the part that was written, unless another program has cut or extended the file meanwhile.
void remove_part(int descriptor, off_t size, off_t part) {
  struct stat now = {};
  if (fstat(descriptor, &now) != 0 || !S_ISREG(now.st_mode) || now.st_size != size + part) return;
  [[maybe_unused]] const int removed = ftruncate(descriptor, size);
}

}  // namespace

int append_whole(int descriptor, std::string_view text) {
  struct stat before = {};
  if (fstat(descriptor, &before) != 0) return errno;
  if (S_ISREG(before.st_mode) && before.st_nlink == 0) return ENOENT;
  std::size_t done = 0;
  while (done < text.size()) {
    const auto count = write(descriptor, text.data() + done, text.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      const int reason = errno;
      if (done > 0) remove_part(descriptor, before.st_size, static_cast<off_t>(done));
      return reason;
    }
    done += static_cast<std::size_t>(count);
  }
  return 0;
}

}  // namespace moegrad
