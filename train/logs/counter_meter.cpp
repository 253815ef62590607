// SPDX-License-Identifier: Apache-2.0
#include "train/logs/counter_meter.h"

#include <algorithm>
#include <functional>
#include <span>
#include <utility>

#include "framework/distributed/collectives.h"

namespace moegrad::training {

CounterMeter::CounterMeter(const Counters& counters, Members members)
    : counters_(counters), members_(std::move(members)), before_(counts()) {}

std::vector<std::int64_t> CounterMeter::counts() const {
  std::vector<std::int64_t> counts;
  for (const auto member : members_) counts.push_back(counters_.*member);
  return counts;
}

std::vector<std::int64_t> CounterMeter::read(ProcessGroup& group, const std::string& label) const {
  auto step = counts();
  std::ranges::transform(step, before_, step.begin(), std::minus());
  all_reduce(group, std::span(step), ReduceOp::kMax, {.label = label});
  return step;
}

}  // namespace moegrad::training
