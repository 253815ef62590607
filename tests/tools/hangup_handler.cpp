// SPDX-License-Identifier: Apache-2.0
// To be preloaded: a library that takes SIGHUP as it is loaded, and ends the program with exit
// code 9.
#include <unistd.h>

#include <csignal>

namespace {

[[gnu::constructor]] void take_hangup() {
  std::signal(SIGHUP, [](int) { _exit(9); });
}

}  // namespace
