// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "train/data/text_data.h"
#include "train/data/training_data.h"

namespace moegrad::training {

struct WindowOptions {
  std::int64_t micro_batches = 1;         // per step
  std::int64_t sequences = 1;             // per micro-batch
  std::int64_t validation_sequences = 1;  // at most
  std::uint64_t seed = 1;
};

/// Sequences of one length that start anywhere. They may cut documents.
class WindowedData final : public TrainingData {
 public:
  WindowedData(TextData data, const WindowOptions& options);

  std::int64_t micro_batches() const override { return options_.micro_batches; }
  MicroBatch micro_batch(std::int64_t step, std::int64_t index) const override;
  std::int64_t tokens_before(std::int64_t step) const override;
  std::int64_t validation_batches() const override;
  MicroBatch validation_batch(std::int64_t index) const override;
  const TokenSource& source() const override { return data_.source(); }
  std::string describe() const override { return "windows anywhere"; }

 private:
  TextData data_;
  WindowOptions options_;
  std::int64_t validation_sequences_;  // the number available
  std::int64_t validation_size_;       // the number per batch
};

}  // namespace moegrad::training
