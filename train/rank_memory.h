// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "models/causal_lm/model.h"
#include "train/config/train_config.h"

namespace moegrad::training {

/// The bytes that rank 0 of a run requests from its arena, padding included. No rank requests more.
/// Activations, including logits and the rows of tokens that go to experts on other ranks, are not
/// counted, nor is what a step of an optimizer of matrices gathers (Note [Matrix optimizers]).
///
/// All figures are exact except the two that are marked as bounds.
struct RankMemory {
  std::int64_t parameters = 0;     // shards, and buffers, which are whole
  std::int64_t optimizer = 0;      // its state: AdamW's moments, and a count of steps per parameter
  std::int64_t checkpoint = 0;     // the copy that is written in the background
  std::int64_t gathered = 0;       // the most bytes of whole parameters at a time, in use and
                                   // prefetched: the peak of MemoryTag::kParameters - parameters
  std::int64_t gradients = 0;      // gradients of the shards when backward has ended
  std::int64_t backward = 0;       // bound of MemoryTag::kGradients: whole gradients until they are
                                   // reduced, and the gradients of shards so far
  std::int64_t communication = 0;  // bound of MemoryTag::kCommunication: values that travel in
                                   // another dtype, and padding; where mpirun has started this
                                   // process (mpi_environment), what processes stage as well

  /// A bound of the total; `gradients` are part of `backward`.
  std::int64_t total() const;
};

/// For a run with these options. Allocates nothing of that size: the model is made and sharded on
/// the meta device, by the code of the run.
RankMemory rank_memory(const TrainConfig& options);
/// For a run of `model`, such as one whose parts have been replaced (Module::replace). It has been
/// made on the meta device, and is sharded here.
RankMemory rank_memory(const TrainConfig& options, models::CausalLM& model);

}  // namespace moegrad::training
