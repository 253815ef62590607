// SPDX-License-Identifier: Apache-2.0
#include "train/data/random_data.h"

#include <algorithm>
#include <vector>

#include "framework/runtime/error.h"
#include "framework/runtime/random.h"

namespace moegrad::training {

RandomData::RandomData(const RandomDataOptions& options) : options_(options) {
  const auto& [vocab_size, length, sequences, micro_batches, same_in_every_step] = options_;
  const auto least = std::min({vocab_size, length, sequences, micro_batches});
  check<ValueError>(least >= 1, "random data: every size must be at least 1, got ", least);
}

MicroBatch RandomData::micro_batch(std::int64_t step, std::int64_t index) const {
  const auto& [vocab_size, length, sequences, micro_batches, same_in_every_step] = options_;
  check<ValueError>(0 <= index && index < micro_batches,
                    "random data: a micro-batch must be in [0, ", micro_batches, "), got ", index);
  // The name is older than this file. Another one would change the runs that have been measured.
  const Random random(1, "bench tokens");
  const auto tokens = sequences * length;
  const auto first = ((same_in_every_step ? 0 : step) * micro_batches + index) * tokens;
  std::vector<std::int64_t> inputs, targets;
  for (auto i = first; i < first + tokens; ++i) {
    inputs.push_back(random.integer(static_cast<std::uint64_t>(2 * i), vocab_size));
    targets.push_back(random.integer(static_cast<std::uint64_t>(2 * i + 1), vocab_size));
  }
  return {
      .tokens = Tensor::from(inputs, {tokens}),
      .targets = Tensor::from(targets, {tokens}),
      .documents = Documents::of_lengths(std::vector(static_cast<std::size_t>(sequences), length))};
}

}  // namespace moegrad::training
