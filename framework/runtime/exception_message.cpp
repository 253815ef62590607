// SPDX-License-Identifier: Apache-2.0
#include "framework/runtime/exception_message.h"

#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <fstream>
#include <new>
#include <stdexcept>
#include <string_view>

#include "framework/runtime/arena.h"

namespace moegrad {
namespace {

std::string megabytes(double bytes) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.0f MB", bytes / 1e6);
  return text.data();
}

// The memory in use. When operator new fails, it does not say how much was requested.
std::string memory_in_use() {
  double pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  std::string text = megabytes(pages * static_cast<double>(sysconf(_SC_PAGESIZE))) + " in use";
  rlimit limit = {};
  if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    text +=
        " of the " + megabytes(static_cast<double>(limit.rlim_cur)) + " that `ulimit -v` allows";
  }
  return text;
}

}  // namespace

std::string message_of_exception(const std::exception_ptr& exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const OutOfMemoryError& error) {
    return error.what();
  } catch (const std::bad_alloc&) {
    return "out of memory, " + memory_in_use();
  } catch (const std::length_error& error) {
    // The library's own name a function of it: "vector::reserve".
    if (std::string_view(error.what()).find("::") == std::string_view::npos) return error.what();
    return std::string("out of memory, more elements asked for than an array can hold (") +
           error.what() + "), " + memory_in_use();
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "unknown exception";
  }
}

}  // namespace moegrad
