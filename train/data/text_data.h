// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "train/data/micro_batch.h"
#include "train/data/token_source.h"

namespace moegrad::training {

/// Sequences of one length from a text or a tokenized file. The first part is for training; the
/// last part is held out for validation.
class TextData {
 public:
  /// ValueError unless both parts hold a sequence of `sequence_length` tokens and its targets.
  TextData(TokenSource tokens, std::int64_t sequence_length);
  TextData(const std::string& path, std::int64_t sequence_length);
  TextData(std::string text, const std::string& name, std::int64_t sequence_length);

  /// Micro-batch `index` of step `step`: sequences that start anywhere in the training part, drawn
  /// by their global number, so that the rank count does not change them.
  MicroBatch training_batch(std::uint64_t seed, std::int64_t step, std::int64_t index,
                            std::int64_t micro_batches, std::int64_t sequences) const;
  /// Sequences [first, first + sequences) of the held-out part, one after the other.
  MicroBatch validation_batch(std::int64_t first, std::int64_t sequences) const;
  std::int64_t validation_sequences() const;

  const TokenSource& source() const { return tokens_; }
  std::int64_t training_tokens() const { return training_tokens_; }
  std::int64_t sequence_length() const { return sequence_length_; }

 private:
  MicroBatch pack(const std::vector<std::int64_t>& starts) const;

  TokenSource tokens_;
  std::int64_t training_tokens_;
  std::int64_t sequence_length_;
};

}  // namespace moegrad::training
