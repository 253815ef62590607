// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace moegrad::kernels::bf16 {

/// Whether denormal inputs count as zero, and denormal results become zero, on this thread until
/// the end. Only x86 and arm64 have such a mode.
template <bool kFlushes>
class DenormalMode {
 public:
  DenormalMode() : before_(mode()) { set_mode(kFlushes ? before_ | kFlush : before_ & ~kFlush); }
  ~DenormalMode() { set_mode(before_); }
  DenormalMode(const DenormalMode&) = delete;
  DenormalMode& operator=(const DenormalMode&) = delete;

 private:
#if defined(__x86_64__)
  using Mode = unsigned;
  static constexpr Mode kFlush = 1U << 6U | 1U << 15U;  // DAZ, FTZ
  static Mode mode() { return _mm_getcsr(); }
  static void set_mode(Mode mode) { _mm_setcsr(mode); }
#elif defined(__aarch64__)
  using Mode = std::uint64_t;
  static constexpr Mode kFlush = 1U << 24U;  // FZ
  static Mode mode() {
    Mode mode;
    asm volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
  }
  static void set_mode(Mode mode) { asm volatile("msr fpcr, %0" : : "r"(mode)); }
#else
  using Mode = int;
  static constexpr Mode kFlush = 0;
  static Mode mode() { return 0; }
  static void set_mode(Mode) {}
#endif
  Mode before_;
};
using FlushDenormals = DenormalMode<true>;
using KeepDenormals = DenormalMode<false>;

}  // namespace moegrad::kernels::bf16
