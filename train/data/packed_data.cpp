// SPDX-License-Identifier: Apache-2.0
#include "train/data/packed_data.h"

#include <algorithm>
#include <utility>

#include "framework/runtime/crc32c.h"
#include "framework/runtime/error.h"

namespace moegrad::training {
namespace {

std::vector<std::int64_t> work_of(const PackList& packs) {
  std::vector<std::int64_t> work;
  for (std::int64_t i = 0; i < packs.size(); ++i) work.push_back(attention_work(packs[i]));
  return work;
}

// Returns `packs`; throws if there are none.
PackList not_empty(PackList packs, const TokenSource& tokens) {
  check<ValueError>(packs.size() > 0, "--pack: '", tokens.name(),
                    "' must have a document of 2 tokens or more to train on and one in its last "
                    "twentieth, got ",
                    tokens.size(), " ", tokens.unit());
  return packs;
}

// Returns `tokens`; throws unless `documents` are cuts of them and the sizes are at least 1.
TokenSource checked(TokenSource tokens, const DocumentOffsets& documents,
                    const PackOptions& options) {
  const auto least = std::min({options.budget, options.micro_batches, options.validation_batches});
  check<ValueError>(least >= 1,
                    "data: budget, micro_batches and validation_batches must be at least 1, got ",
                    least);
  check<ValueError>(documents.size() >= 2, "data: documents must have at least 2 offsets, got ",
                    documents.size());
  check<ValueError>(documents.front() >= 0 && std::ranges::is_sorted(documents) &&
                        documents.back() <= tokens.size(),
                    "data: offsets of documents must rise from at least 0 to at most ",
                    tokens.size(), " ", tokens.unit(), ", got ", documents.front(), " to ",
                    documents.back());
  return tokens;
}

}  // namespace

PackedData::PackedData(TokenSource tokens, DocumentOffsets documents, const PackOptions& options)
    : tokens_(checked(std::move(tokens), documents, options)),
      description_(std::to_string(documents.size() - 1) + " documents, ends with CRC-32C " +
                   std::to_string(crc32c(std::as_bytes(std::span(documents))))),
      training_(not_empty({hold_out(documents).training, options.budget}, tokens_)),
      validation_(not_empty({hold_out(documents).validation, options.budget}, tokens_)),
      sampler_(work_of(training_), options.micro_batches, options.seed),
      validation_batches_(std::min(options.validation_batches, validation_.size())) {}

MicroBatch PackedData::micro_batch(std::int64_t step, std::int64_t index) const {
  check<ValueError>(0 <= index && index < micro_batches(), "data: a micro-batch must be in [0, ",
                    micro_batches(), "), got ", index);
  const auto packs = sampler_.packs_of_step(step);
  return to_micro_batch(tokens_, training_[packs[static_cast<std::size_t>(index)]]);
}

std::int64_t PackedData::tokens_before(std::int64_t step) const {
  const auto packs = step * sampler_.micro_batches();
  const auto of_this_epoch = packs % training_.size();
  std::int64_t tokens = training_.tokens() * (packs / training_.size());
  for (const auto pack : sampler_.packs(packs - of_this_epoch, of_this_epoch)) {
    tokens += token_count(training_[pack]);
  }
  return tokens;
}

std::int64_t PackedData::validation_batches() const { return validation_batches_; }

MicroBatch PackedData::validation_batch(std::int64_t index) const {
  return to_micro_batch(tokens_, validation_[index]);
}

}  // namespace moegrad::training
