// SPDX-License-Identifier: Apache-2.0
#include "train/data/step_data.h"

namespace moegrad::training {

std::vector<MicroBatch> step_batches(const StepData& data, std::int64_t step) {
  std::vector<MicroBatch> batches;
  for (std::int64_t i = 0; i < data.micro_batches(); ++i) {
    batches.push_back(data.micro_batch(step, i));
  }
  return batches;
}

}  // namespace moegrad::training
