// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "framework/distributed/process_group.h"
#include "framework/runtime/counters.h"
#include "train/logs/counter_meter.h"

namespace moegrad::training {

/// What a step has swapped (Note [Tensors that are swapped]). Each figure is the largest of any
/// rank.
struct SwapFigures {
  std::int64_t bytes_out = 0;  // to the host
  std::int64_t bytes_in = 0;   // and back
  double wait_seconds = 0;     // of threads of a rank, for either
};

/// Reads a rank's Counters from step to step.
class SwapMeter {
 public:
  explicit SwapMeter(const Counters& counters)
      : meter_(counters,
               {&Counters::swapped_out_bytes, &Counters::swapped_in_bytes, &Counters::swap_wait}) {}
  void begin() { meter_.begin(); }
  /// Since begin(). Collective.
  SwapFigures read(ProcessGroup& group) const {
    const auto step = meter_.read(group, "swapped bytes");
    return {.bytes_out = step[0],
            .bytes_in = step[1],
            .wait_seconds = static_cast<double>(step[2]) * 1e-9};
  }

 private:
  CounterMeter meter_;
};

}  // namespace moegrad::training
