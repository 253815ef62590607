// SPDX-License-Identifier: Apache-2.0
#include "train/data/open_data.h"

#include <algorithm>
#include <utility>

#include "train/data/packed_data.h"
#include "train/data/windowed_data.h"

namespace moegrad::training {
namespace {

TokenSource open_source(const TrainOptions& options) {
  if (options.data.empty()) return TokenSource::text_file(options.text);
  const auto dtype = options.data_dtype == "uint32" ? TokenDtype::kUInt32 : TokenDtype::kUInt16;
  return TokenSource::tokenized_file(options.data, dtype, options.model_config().vocab_size);
}

DocumentOffsets documents_of(const TrainOptions& options, const TokenSource& tokens) {
  if (!options.data.empty()) return end_token_documents(tokens, options.end_of_document.value());
  return options.text.empty() ? king_james_chapters(tokens.as_text())
                              : blank_line_documents(tokens.as_text());
}

}  // namespace

std::unique_ptr<const TrainingData> open_data(const TrainOptions& options) {
  auto tokens = open_source(options);
  if (!options.pack) {
    return std::make_unique<WindowedData>(
        TextData(std::move(tokens), options.sequence_length),
        WindowOptions{.micro_batches = options.micro_batches,
                      .sequences = options.batch,
                      .validation_sequences = options.validation_sequences,
                      .seed = options.seed});
  }
  auto documents = documents_of(options, tokens);
  return std::make_unique<PackedData>(
      std::move(tokens), std::move(documents),
      PackOptions{.micro_batches = options.micro_batches,
                  .budget = options.batch * options.sequence_length,
                  .validation_batches =
                      std::max<std::int64_t>(1, options.validation_sequences / options.batch),
                  .seed = options.seed});
}

}  // namespace moegrad::training
