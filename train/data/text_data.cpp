// SPDX-License-Identifier: Apache-2.0
#include "train/data/text_data.h"

#include <algorithm>
#include <utility>

#include "framework/runtime/error.h"
#include "framework/runtime/random.h"
#include "train/data/packing.h"
#include "train/data/training_data.h"

namespace moegrad::training {

TextData::TextData(TokenSource tokens, std::int64_t sequence_length)
    : tokens_(std::move(tokens)),
      training_tokens_(tokens_.size() - tokens_.size() / kHeldOut),
      sequence_length_(sequence_length) {
  check<ValueError>(sequence_length >= 1, "data: sequence_length must be at least 1, got ",
                    sequence_length);
  const auto size = tokens_.size();
  // A sequence of n tokens needs n + 1 tokens; the last one is a target.
  const auto shorter = std::min(training_tokens_, size - training_tokens_);
  check<ValueError>(shorter > sequence_length, tokens_.is_text() ? "text" : "data",
                    ": sequences of ", sequence_length, " tokens need at least ",
                    kHeldOut * (sequence_length + 1), " ", tokens_.unit(), ", '", tokens_.name(),
                    "' has ", size);
}

TextData::TextData(const std::string& path, std::int64_t sequence_length)
    : TextData(TokenSource::text_file(path), sequence_length) {}

TextData::TextData(std::string text, const std::string& name, std::int64_t sequence_length)
    : TextData(TokenSource::text(std::move(text), name), sequence_length) {}

MicroBatch TextData::pack(const std::vector<std::int64_t>& starts) const {
  Pack pack;
  for (const auto start : starts) {
    pack.push_back({.start = start, .length = sequence_length_, .ends_document = false});
  }
  return to_micro_batch(tokens_, pack);
}

MicroBatch TextData::training_batch(std::uint64_t seed, std::int64_t step, std::int64_t index,
                                    std::int64_t micro_batches, std::int64_t sequences) const {
  const Random random(seed, "training sequences");
  std::vector<std::int64_t> starts;
  for (std::int64_t i = 0; i < sequences; ++i) {
    const auto number = (step * micro_batches + index) * sequences + i;
    starts.push_back(
        random.integer(static_cast<std::uint64_t>(number), training_tokens_ - sequence_length_));
  }
  return pack(starts);
}

MicroBatch TextData::validation_batch(std::int64_t first, std::int64_t sequences) const {
  check<ValueError>(0 <= first && first + sequences <= validation_sequences(),
                    "text: validation sequences [", first, ", ", first + sequences,
                    ") asked for, there are ", validation_sequences());
  std::vector<std::int64_t> starts;
  for (std::int64_t i = first; i < first + sequences; ++i) {
    starts.push_back(training_tokens_ + i * sequence_length_);
  }
  return pack(starts);
}

std::int64_t TextData::validation_sequences() const {
  return (tokens_.size() - training_tokens_ - 1) / sequence_length_;
}

}  // namespace moegrad::training
