// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "train/data/documents.h"
#include "train/data/length_grouped_sampler.h"
#include "train/data/packing.h"
#include "train/data/training_data.h"

namespace moegrad::training {

struct PackOptions {
  std::int64_t micro_batches = 1;       // per step
  std::int64_t budget = 1;              // tokens per micro-batch, at most
  std::int64_t validation_batches = 1;  // at most
  std::uint64_t seed = 1;
};

/// Whole documents in packs (soft_pack), each once per epoch, in steps of similar packs
/// (Note [Length-grouped sampling]). The last documents are held out (hold_out).
class PackedData final : public TrainingData {
 public:
  /// ValueError unless both parts have a document of two tokens or more, `documents` are offsets of
  /// `tokens`, and all sizes are at least 1.
  PackedData(TokenSource tokens, DocumentOffsets documents, const PackOptions& options);

  std::int64_t micro_batches() const override { return sampler_.micro_batches(); }
  MicroBatch micro_batch(std::int64_t step, std::int64_t index) const override;
  std::int64_t tokens_before(std::int64_t step) const override;
  std::int64_t validation_batches() const override;
  MicroBatch validation_batch(std::int64_t index) const override;
  const TokenSource& source() const override { return tokens_; }
  std::string describe() const override { return description_; }

 private:
  TokenSource tokens_;
  std::string description_;
  PackList training_, validation_;
  LengthGroupedSampler sampler_;
  std::int64_t validation_batches_;
};

}  // namespace moegrad::training
