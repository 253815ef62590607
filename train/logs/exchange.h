// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "framework/distributed/process_group.h"
#include "framework/runtime/counters.h"
#include "train/logs/counter_meter.h"
#include "train/train_step.h"

namespace moegrad::training {

/// What a step of expert parallelism exchanged. Each figure is the largest of any rank.
struct ExchangeFigures {
  std::int64_t rows_sent = 0;  // to experts on other ranks
  std::int64_t rows_received = 0;
  // Bytes of those rows with their weights, results and gradients; a two-level exchange counts both
  // levels.
  std::int64_t bytes_sent = 0;
  std::int64_t bytes_received = 0;
  double wait_seconds = 0;  // of the step, waiting for exchanges
};

/// Reads a rank's Counters from step to step.
class ExchangeMeter {
 public:
  explicit ExchangeMeter(const Counters& counters);
  /// A step begins: what has been counted before is not of it.
  void begin() { meter_.begin(); }
  /// What has been counted since begin(), or since construction. Collective.
  ExchangeFigures read(ProcessGroup& group) const;

 private:
  CounterMeter meter_;
};

/// The experts of a layer in as many equal parts as an expert group has `ranks`: the tokens of the
/// busiest part, over all expert groups, divided by the mean; per mixture layer.
std::vector<double> rank_load(const StepResult& result, int ranks);

}  // namespace moegrad::training
