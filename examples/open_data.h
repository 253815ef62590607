// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "examples/train_options.h"
#include "examples/training_data.h"

namespace moegrad::examples {

/// What --text or --data names, in windows or packed. The King James text is packed by chapters,
/// other texts by what blank lines separate, a tokenized file by its end-of-document ids.
std::unique_ptr<const TrainingData> open_data(const TrainOptions& options);

}  // namespace moegrad::examples
