// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "train/config/train_config.h"
#include "train/data/training_data.h"

namespace moegrad::training {

/// What --text or --data names, in windows or packed. The King James text is packed by chapters,
/// other texts by what blank lines separate, a tokenized file by its end-of-document ids, which are
/// below `vocab_size`. The order of windows or documents depends on `seed`.
std::unique_ptr<const TrainingData> open_data(const TrainConfig::Data& options,
                                              std::int64_t vocab_size, std::uint64_t seed);

}  // namespace moegrad::training
