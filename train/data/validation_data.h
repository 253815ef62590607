// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "train/data/micro_batch.h"

namespace moegrad::training {

/// Held-out batches, the same at each validation. Any thread may call it.
class ValidationData {
 public:
  virtual ~ValidationData() = default;

  virtual std::int64_t validation_batches() const = 0;
  virtual MicroBatch validation_batch(std::int64_t index) const = 0;
};

}  // namespace moegrad::training
