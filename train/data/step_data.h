// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "train/data/micro_batch.h"

namespace moegrad::training {

/// The micro-batches of each step. All ranks use the same object: any thread may call it, and the
/// results do not depend on the caller.
class StepData {
 public:
  virtual ~StepData() = default;

  /// M, the micro-batches of a step.
  virtual std::int64_t micro_batches() const = 0;
  /// One of them; ValueError unless 0 <= index < M.
  virtual MicroBatch micro_batch(std::int64_t step, std::int64_t index) const = 0;
};

/// All M micro-batches of a step.
std::vector<MicroBatch> step_batches(const StepData& data, std::int64_t step);

}  // namespace moegrad::training
