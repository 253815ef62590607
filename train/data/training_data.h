// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "train/data/step_data.h"
#include "train/data/token_source.h"
#include "train/data/validation_data.h"

namespace moegrad::training {

/// The last twentieth of the tokens is held out for validation.
inline constexpr std::int64_t kHeldOut = 20;

/// The data that a run is trained and validated on, from one source of tokens.
class TrainingData : public StepData, public ValidationData {
 public:
  /// Tokens of all steps before `step`.
  virtual std::int64_t tokens_before(std::int64_t step) const = 0;

  virtual const TokenSource& source() const = 0;
  /// How the tokens become batches, apart from what the options of a run already say.
  virtual std::string describe() const = 0;
};

}  // namespace moegrad::training
