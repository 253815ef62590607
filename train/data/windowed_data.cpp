// SPDX-License-Identifier: Apache-2.0
#include "train/data/windowed_data.h"

#include <algorithm>
#include <utility>

namespace moegrad::training {

WindowedData::WindowedData(TextData data, const WindowOptions& options)
    : data_(std::move(data)),
      options_(options),
      validation_sequences_(std::min(options.validation_sequences, data_.validation_sequences())),
      validation_size_(std::min(options.sequences, validation_sequences_)) {}

std::vector<MicroBatch> WindowedData::step_batches(std::int64_t step) const {
  std::vector<MicroBatch> batches;
  for (std::int64_t i = 0; i < options_.micro_batches; ++i) {
    batches.push_back(
        data_.training_batch(options_.seed, step, i, options_.micro_batches, options_.sequences));
  }
  return batches;
}

std::int64_t WindowedData::tokens_before(std::int64_t step) const {
  return step * options_.micro_batches * options_.sequences * data_.sequence_length();
}

std::int64_t WindowedData::validation_batches() const {
  return validation_sequences_ / validation_size_;
}

MicroBatch WindowedData::validation_batch(std::int64_t index) const {
  return data_.validation_batch(index * validation_size_, validation_size_);
}

}  // namespace moegrad::training
