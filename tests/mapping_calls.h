// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace moegrad::test {

/// From now on mapping_calls() counts the process's calls of mmap, munmap, mremap, mprotect and
/// brk: a seccomp filter sends each to a signal handler, which counts it and passes it on. Threads
/// started later inherit the filter, those that run already are not counted. False where the
/// system grants no filter; there is no way back.
bool count_mapping_calls();

std::int64_t mapping_calls();

}  // namespace moegrad::test
