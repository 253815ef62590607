// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "train/config/option.h"

namespace moegrad::training {

// Options that several programs share, with the same name, bounds and description.

/// --world-size
Option world_size_option(int& value, int most = kMostThreads);
/// --threads-per-rank
Option threads_option(int& value);
/// --micro-batches
Option micro_batches_option(std::int64_t& value, std::string description);
/// --batch
Option batch_option(std::int64_t& value, std::string description);
/// --seq-len
Option sequence_length_option(std::int64_t& value);
/// --seed
Option seed_option(std::uint64_t& value, std::string description);
/// --lr
Option lr_option(double& value, std::string description);

}  // namespace moegrad::training
