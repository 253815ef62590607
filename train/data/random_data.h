// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "train/data/step_data.h"

namespace moegrad::training {

struct RandomDataOptions {
  std::int64_t vocab_size = 256;
  std::int64_t length = 128;       // tokens of a sequence
  std::int64_t sequences = 1;      // of a micro-batch
  std::int64_t micro_batches = 1;  // of a step
  bool same_in_every_step = false;
};

/// Random tokens with random targets, to measure or to inspect a training step. A model can only
/// memorise them. Each sequence depends on its number alone: the number in the run, or in the step
/// with same_in_every_step. So neither the rank count nor the size of a micro-batch changes it.
class RandomData final : public StepData {
 public:
  /// ValueError unless all sizes are at least 1.
  explicit RandomData(const RandomDataOptions& options);

  std::int64_t micro_batches() const override { return options_.micro_batches; }
  MicroBatch micro_batch(std::int64_t step, std::int64_t index) const override;

 private:
  RandomDataOptions options_;
};

}  // namespace moegrad::training
