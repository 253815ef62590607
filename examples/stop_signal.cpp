// SPDX-License-Identifier: Apache-2.0
#include "examples/stop_signal.h"

#include <signal.h>

#include <atomic>

namespace moegrad::examples {
namespace {

// A signal belongs to the process, and so does this.
std::atomic<int> noted = 0;
static_assert(std::atomic<int>::is_always_lock_free);

void note(int signal) { noted = signal; }

}  // namespace

void note_stop_signals() {
  struct sigaction action = {};
  action.sa_handler = note;
  action.sa_flags = SA_RESETHAND | SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

int stop_signal() { return noted; }

}  // namespace moegrad::examples
