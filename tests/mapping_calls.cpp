// SPDX-License-Identifier: Apache-2.0
#include "tests/mapping_calls.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstddef>

namespace moegrad::test {
namespace {

std::atomic<std::int64_t> calls = 0;

// Not shorter than the C library's ::syscall(), whose calls the filter lets pass: the C library
// itself never makes these through it, the handler only so.
constexpr std::uint32_t kSizeOfSyscall = 64;  // bytes of code

void pass_on(int /*signal*/, siginfo_t* info, void* context) {
  calls.fetch_add(1, std::memory_order_relaxed);
  const int interrupted_errno = errno;
  auto& registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  const auto result =
      ::syscall(info->si_syscall, registers[REG_RDI], registers[REG_RSI], registers[REG_RDX],
                registers[REG_R10], registers[REG_R8], registers[REG_R9]);
  registers[REG_RAX] = result == -1 ? -errno : result;
  errno = interrupted_errno;
}

constexpr sock_filter load(std::size_t offset) {
  return {BPF_LD | BPF_W | BPF_ABS, 0, 0, static_cast<std::uint32_t>(offset)};
}

// Skips the next `if_true` or `if_false` instructions.
constexpr sock_filter jump(std::uint16_t test, std::uint32_t value, std::uint8_t if_true,
                           std::uint8_t if_false) {
  return {static_cast<std::uint16_t>(BPF_JMP | test | BPF_K), if_true, if_false, value};
}

constexpr sock_filter verdict(std::uint32_t value) { return {BPF_RET | BPF_K, 0, 0, value}; }

}  // namespace

std::int64_t mapping_calls() { return calls; }

bool count_mapping_calls() {
  struct sigaction action = {};
  action.sa_sigaction = pass_on;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  if (sigaction(SIGSYS, &action, nullptr) != 0) return false;

  const auto passage = reinterpret_cast<std::uintptr_t>(&::syscall);
  const auto low = static_cast<std::uint32_t>(passage);
  const auto high = static_cast<std::uint32_t>(passage >> 32);
  std::array filter = {
      load(offsetof(seccomp_data, nr)),  jump(BPF_JEQ, SYS_mmap, 5, 0),
      jump(BPF_JEQ, SYS_munmap, 4, 0),   jump(BPF_JEQ, SYS_mremap, 3, 0),
      jump(BPF_JEQ, SYS_mprotect, 2, 0), jump(BPF_JEQ, SYS_brk, 1, 0),
      verdict(SECCOMP_RET_ALLOW),        load(offsetof(seccomp_data, instruction_pointer) + 4),
      jump(BPF_JEQ, high, 0, 4),         load(offsetof(seccomp_data, instruction_pointer)),
      jump(BPF_JGE, low, 0, 2),          jump(BPF_JGT, low + kSizeOfSyscall, 1, 0),
      verdict(SECCOMP_RET_ALLOW),        verdict(SECCOMP_RET_TRAP),
  };
  const sock_fprog program = {.len = static_cast<unsigned short>(filter.size()),
                              .filter = filter.data()};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

}  // namespace moegrad::test
