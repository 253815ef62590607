// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "framework/distributed/process_group.h"
#include "framework/runtime/counters.h"

namespace moegrad::training {

/// Reads some of a rank's Counters from step to step.
class CounterMeter {
 public:
  using Members = std::vector<std::atomic<std::int64_t> Counters::*>;

  CounterMeter(const Counters& counters, Members members);
  /// A step begins: what has been counted before is not of it.
  void begin() { before_ = counts(); }
  /// What has been counted since begin(), or since construction, in the order of the members; each
  /// the most of any rank. Collective, under this label.
  std::vector<std::int64_t> read(ProcessGroup& group, const std::string& label) const;

 private:
  std::vector<std::int64_t> counts() const;

  const Counters& counters_;
  Members members_;
  std::vector<std::int64_t> before_;
};

}  // namespace moegrad::training
