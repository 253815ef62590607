// SPDX-License-Identifier: Apache-2.0

// To be preloaded: a disk that stalls, and a file system that refuses. By the environment
//
//     STALL="CALL PATH SECONDS TIMES AFTER"   fsync, read or pread of a file whose path contains
//                                             PATH, after AFTER calls that do not stall
//     REFUSE="CALL ERRNO"                     every fsync of a folder, or every symlink

#include <dlfcn.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>

namespace {

template <class Call>
Call* real(const char* name) {
  return reinterpret_cast<Call*>(dlsym(RTLD_NEXT, name));
}

struct Stall {
  std::string call, path;
  double seconds = 0;
  std::atomic<int> times = 0;
  std::atomic<int> after = 0;
};

std::istringstream words_of(const char* name) {
  const char* const text = std::getenv(name);
  return std::istringstream(text == nullptr ? "" : text);
}

Stall& stall() {
  static Stall instance;
  static std::once_flag read;
  std::call_once(read, [] {
    auto words = words_of("STALL");
    int times = 0, after = 0;
    words >> instance.call >> instance.path >> instance.seconds >> times >> after;
    instance.times = times;
    instance.after = after;
  });
  return instance;
}

void wait_at(std::string_view call, int descriptor) {
  auto& how = stall();
  if (how.call != call || how.times <= 0) return;
  std::array<char, 4096> path{};
  const auto link = "/proc/self/fd/" + std::to_string(descriptor);
  if (readlink(link.c_str(), path.data(), path.size() - 1) < 0) return;
  if (std::string_view(path.data()).find(how.path) == std::string_view::npos) return;
  if (how.after-- > 0) return;
  if (how.times-- > 0) std::this_thread::sleep_for(std::chrono::duration<double>(how.seconds));
}

int refusal_of(std::string_view call) {
  auto words = words_of("REFUSE");
  std::string name;
  int error = 0;
  words >> name >> error;
  return name == call ? error : 0;
}

}  // namespace

extern "C" int fsync(int descriptor) {
  wait_at("fsync", descriptor);
  struct stat status = {};
  const int error = refusal_of("fsync");
  if (error != 0 && fstat(descriptor, &status) == 0 && S_ISDIR(status.st_mode)) {
    errno = error;
    return -1;
  }
  return real<int(int)>("fsync")(descriptor);
}

extern "C" ssize_t read(int descriptor, void* buffer, size_t count) {
  wait_at("read", descriptor);
  return real<ssize_t(int, void*, size_t)>("read")(descriptor, buffer, count);
}

extern "C" ssize_t pread(int descriptor, void* buffer, size_t count, off_t offset) {
  wait_at("pread", descriptor);
  return real<ssize_t(int, void*, size_t, off_t)>("pread")(descriptor, buffer, count, offset);
}

extern "C" int symlink(const char* target, const char* path) noexcept {
  if (const int error = refusal_of("symlink"); error != 0) {
    errno = error;
    return -1;
  }
  return real<int(const char*, const char*)>("symlink")(target, path);
}
