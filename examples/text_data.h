// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "framework/tensor/tensor.h"

namespace moegrad::examples {

/// Sequences packed one after the other, each a document of its own.
struct MicroBatch {
  Tensor tokens;                         // int64 [T]
  Tensor targets;                        // int64 [T], the token after each token
  std::vector<std::int64_t> cu_seqlens;  // [sequences + 1]
};

/// A text as bytes (vocabulary 256): the head to train on, the tail held out for validation.
class TextData {
 public:
  /// Reads a file, or the King James text of Debian's bible-kjv if `path` is empty. ValueError for
  /// a missing or empty file, and unless both parts hold a sequence of `sequence_length` tokens
  /// and its targets.
  TextData(const std::string& path, std::int64_t sequence_length);
  TextData(std::string text, const std::string& name, std::int64_t sequence_length);

  /// Micro-batch `index` of step `step`: sequences that start anywhere in the training text, drawn
  /// by their global number, so that the rank count does not change them.
  MicroBatch training_batch(std::uint64_t seed, std::int64_t step, std::int64_t index,
                            std::int64_t micro_batches, std::int64_t sequences) const;
  /// Sequences [first, first + sequences) of the held-out text, one after the other.
  MicroBatch validation_batch(std::int64_t first, std::int64_t sequences) const;
  std::int64_t validation_sequences() const;

  const std::string& text() const { return text_; }
  std::int64_t training_bytes() const { return training_bytes_; }

 private:
  MicroBatch pack(const std::vector<std::int64_t>& starts) const;

  std::string text_;
  std::int64_t training_bytes_;
  std::int64_t sequence_length_;
};

}  // namespace moegrad::examples
