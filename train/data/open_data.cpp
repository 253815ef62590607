// SPDX-License-Identifier: Apache-2.0
#include "train/data/open_data.h"

#include <algorithm>
#include <utility>

#include "train/data/first_step_data.h"
#include "train/data/packed_data.h"
#include "train/data/windowed_data.h"

namespace moegrad::training {
namespace {

TokenSource open_source(const TrainConfig::Data& options, std::int64_t vocab_size) {
  if (options.tokens.empty()) return TokenSource::text_file(options.text);
  auto tokens = TokenSource::tokenized_file(options.tokens, options.token_dtype, vocab_size);
  if (!options.target_mask.empty()) tokens.take_target_mask(options.target_mask);
  return tokens;
}

DocumentOffsets documents_of(const TrainConfig::Data& options, const TokenSource& tokens) {
  if (!options.tokens.empty()) return end_token_documents(tokens, options.end_of_document.value());
  return options.text.empty() ? king_james_chapters(tokens.as_text())
                              : blank_line_documents(tokens.as_text());
}

std::unique_ptr<const TrainingData> open_all_steps(const TrainConfig::Data& options,
                                                   std::int64_t vocab_size, std::uint64_t seed) {
  auto tokens = open_source(options, vocab_size);
  if (!options.pack) {
    return std::make_unique<WindowedData>(
        TextData(std::move(tokens), options.sequence_length),
        WindowOptions{.micro_batches = options.micro_batches,
                      .sequences = options.batch,
                      .validation_sequences = options.validation_sequences,
                      .seed = seed});
  }
  auto documents = documents_of(options, tokens);
  return std::make_unique<PackedData>(
      std::move(tokens), std::move(documents),
      PackOptions{.micro_batches = options.micro_batches,
                  .budget = options.batch * options.sequence_length,
                  .validation_batches =
                      std::max<std::int64_t>(1, options.validation_sequences / options.batch),
                  .seed = seed});
}

}  // namespace

std::unique_ptr<const TrainingData> open_data(const TrainConfig::Data& options,
                                              std::int64_t vocab_size, std::uint64_t seed) {
  auto data = open_all_steps(options, vocab_size, seed);
  if (options.overfit) return std::make_unique<FirstStepData>(std::move(data));
  return data;
}

}  // namespace moegrad::training
