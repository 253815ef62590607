// SPDX-License-Identifier: Apache-2.0
#include "train/data/windowed_data.h"

#include <algorithm>
#include <utility>

#include "framework/runtime/error.h"

namespace moegrad::training {

WindowedData::WindowedData(TextData data, const WindowOptions& options)
    : data_(std::move(data)),
      options_(options),
      validation_sequences_(std::min(options.validation_sequences, data_.validation_sequences())),
      validation_size_(std::min(options.sequences, validation_sequences_)) {
  const auto least =
      std::min({options.micro_batches, options.sequences, options.validation_sequences});
  check<ValueError>(least >= 1,
                    "data: micro_batches, sequences and validation_sequences must be at "
                    "least 1, got ",
                    least);
}

MicroBatch WindowedData::micro_batch(std::int64_t step, std::int64_t index) const {
  check<ValueError>(0 <= index && index < options_.micro_batches,
                    "data: a micro-batch must be in [0, ", options_.micro_batches, "), got ",
                    index);
  return data_.training_batch(options_.seed, step, index, options_.micro_batches,
                              options_.sequences);
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
