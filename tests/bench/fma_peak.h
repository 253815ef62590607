// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace moegrad::bench {

/// Fused multiply-adds that `threads` threads reach together, each in vector registers alone, in
/// FLOP/s of float32 (two per element). The median of runs of about 5 ms, over `seconds` on the
/// clock: cores of a shared machine change speed, so measure it beside whatever is given as a share
/// of it.
double fma_peak(int threads, double seconds = 0.2);

/// The same of one run of about 0.2 ms, on the threads of the current rank: to alternate with what
/// takes as little.
double fma_rate();

}  // namespace moegrad::bench
