// SPDX-License-Identifier: Apache-2.0
#include "train/data/open_data.h"

#include <algorithm>
#include <utility>

#include "train/data/packed_data.h"
#include "train/data/windowed_data.h"

namespace moegrad::training {
namespace {

TokenSource open_source(const TrainConfig& options) {
  if (options.data.tokens.empty()) return TokenSource::text_file(options.data.text);
  return TokenSource::tokenized_file(options.data.tokens, options.data.token_dtype,
                                     options.model_config().vocab_size);
}

DocumentOffsets documents_of(const TrainConfig& options, const TokenSource& tokens) {
  if (!options.data.tokens.empty())
    return end_token_documents(tokens, options.data.end_of_document.value());
  return options.data.text.empty() ? king_james_chapters(tokens.as_text())
                                   : blank_line_documents(tokens.as_text());
}

}  // namespace

std::unique_ptr<const TrainingData> open_data(const TrainConfig& options) {
  auto tokens = open_source(options);
  if (!options.data.pack) {
    return std::make_unique<WindowedData>(
        TextData(std::move(tokens), options.data.sequence_length),
        WindowOptions{.micro_batches = options.data.micro_batches,
                      .sequences = options.data.batch,
                      .validation_sequences = options.data.validation_sequences,
                      .seed = options.optim.seed});
  }
  auto documents = documents_of(options, tokens);
  return std::make_unique<PackedData>(
      std::move(tokens), std::move(documents),
      PackOptions{.micro_batches = options.data.micro_batches,
                  .budget = options.data.batch * options.data.sequence_length,
                  .validation_batches = std::max<std::int64_t>(
                      1, options.data.validation_sequences / options.data.batch),
                  .seed = options.optim.seed});
}

}  // namespace moegrad::training
