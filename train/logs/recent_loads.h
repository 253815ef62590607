// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <deque>
#include <string>

#include "train/expert_counts.h"

namespace moegrad::training {

/// How evenly the experts of each layer were used in the last steps.
class RecentLoads {
 public:
  static constexpr std::size_t kSteps = 50;

  /// The counts of a step, per mixture layer and expert.
  void add(ExpertCounts tokens_per_expert);

  /// "0.89-1.16 0.80-1.23": for each layer the least and the most that an expert has had, divided
  /// by the mean over the layer's experts. Empty without steps or mixture layers.
  std::string text() const;
  /// The number of steps that text() is about.
  std::size_t steps() const { return counts_.size(); }

 private:
  std::deque<ExpertCounts> counts_;  // of the last kSteps steps
};

}  // namespace moegrad::training
