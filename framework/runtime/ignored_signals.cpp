// SPDX-License-Identifier: Apache-2.0
#include "framework/runtime/ignored_signals.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>

// Compiled for every CPU of the architecture, since it runs before the check of Note [CPU check].

namespace moegrad {
namespace {

constexpr int kSignals = 32;  // all but those of real time
bool ignored_at_start[kSignals] = {};

// As the kernel writes it.
struct KernelAction {
  void (*handler)(int);
  unsigned long flags;
  void (*restorer)();
  std::uint64_t mask;
};

// A sanitizer, which takes sigaction() over, is not ready yet.
[[maybe_unused]] __attribute__((no_sanitize("address", "thread", "undefined"))) void
read_ignored() {
  for (int number = 1; number < kSignals; ++number) {
    KernelAction action = {};
    const long failed = syscall(SYS_rt_sigaction, number, nullptr, &action, sizeof(action.mask));
    ignored_at_start[number] = failed == 0 && action.handler == SIG_IGN;
  }
}

// A shared library cannot have it: what is compiled for one restores nothing.
#if !defined(__PIC__) || defined(__PIE__)
[[gnu::section(".preinit_array"), gnu::used]] void (*const kReadIgnored)() = read_ignored;
#endif

}  // namespace

void restore_ignored_signals() {
  for (int number = 1; number < kSignals; ++number) {
    if (ignored_at_start[number]) std::signal(number, SIG_IGN);
  }
}

}  // namespace moegrad
