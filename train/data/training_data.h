// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "train/data/micro_batch.h"
#include "train/data/token_source.h"

namespace moegrad::training {

/// The last twentieth of the tokens is held out for validation.
inline constexpr std::int64_t kHeldOut = 20;

/// The data that a run is trained and validated on. All ranks use the same object: any thread may
/// call it, and the results do not depend on the caller.
class TrainingData {
 public:
  virtual ~TrainingData() = default;

  /// M, the micro-batches of a step.
  virtual std::int64_t micro_batches() const = 0;
  /// One of them; ValueError unless 0 <= index < M.
  virtual MicroBatch micro_batch(std::int64_t step, std::int64_t index) const = 0;
  /// Tokens of all steps before `step`.
  virtual std::int64_t tokens_before(std::int64_t step) const = 0;

  /// Held-out batches, the same at each validation.
  virtual std::int64_t validation_batches() const = 0;
  virtual MicroBatch validation_batch(std::int64_t index) const = 0;

  virtual const TokenSource& source() const = 0;
  /// How the tokens become batches, apart from what the options of a run already say.
  virtual std::string describe() const = 0;
};

/// All M micro-batches of a step.
std::vector<MicroBatch> step_batches(const TrainingData& data, std::int64_t step);

}  // namespace moegrad::training
