// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace moegrad::training {

/// The FLOP/s of float32 that the threads of all ranks reach together with fused multiply-adds in
/// vector registers alone: the best of a few runs of about 2 ms. It is what the machine gives this
/// process now, not the figure of a data sheet. The same on every rank. Collective.
double measure_peak_flops();

}  // namespace moegrad::training
