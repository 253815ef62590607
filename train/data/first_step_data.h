// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "train/data/training_data.h"

namespace moegrad::training {

/// The batches of the first step in every step: a sound model soon knows them by heart.
class FirstStepData final : public TrainingData {
 public:
  explicit FirstStepData(std::unique_ptr<const TrainingData> data) : data_(std::move(data)) {}

  std::int64_t micro_batches() const override { return data_->micro_batches(); }
  MicroBatch micro_batch(std::int64_t /*step*/, std::int64_t index) const override {
    return data_->micro_batch(0, index);
  }
  std::int64_t tokens_before(std::int64_t step) const override {
    return step * data_->tokens_before(1);
  }
  std::int64_t validation_batches() const override { return data_->validation_batches(); }
  MicroBatch validation_batch(std::int64_t index) const override {
    return data_->validation_batch(index);
  }
  const TokenSource& source() const override { return data_->source(); }
  std::string describe() const override { return data_->describe(); }

 private:
  std::unique_ptr<const TrainingData> data_;
};

}  // namespace moegrad::training
