// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "train/config/train_config.h"

namespace moegrad::training {

/// Bytes that rank 0 of a run asks of its arena, padding included; no rank asks for more. What
/// activations take, logits among them, is not counted.
///
/// Exact but for the two that say so.
struct RankMemory {
  std::int64_t parameters = 0;     // shards
  std::int64_t optimizer = 0;      // AdamW's moments, and a count of steps per parameter
  std::int64_t checkpoint = 0;     // the copy that is written in the background
  std::int64_t gathered = 0;       // whole parameters of the groups in use and prefetched, at most
                                   // at a time: the peak of MemoryTag::kParameters less parameters
  std::int64_t gradients = 0;      // of the shards, when backward has ended
  std::int64_t backward = 0;       // bound of MemoryTag::kGradients: whole gradients until they are
                                   // reduced, and the gradients of shards so far
  std::int64_t communication = 0;  // bound of MemoryTag::kCommunication: what travels in another
                                   // dtype, and padding

  /// A bound of all at once; `gradients` are part of `backward`.
  std::int64_t total() const;
};

/// For a run with these options. Allocates nothing of that size: the model is made and sharded on
/// the meta device, by the code of the run.
RankMemory rank_memory(const TrainConfig& options);

}  // namespace moegrad::training
