// SPDX-License-Identifier: Apache-2.0
#include "examples/packed_data.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "framework/io/crc32c.h"
#include "framework/runtime/error.h"

namespace moegrad::examples {
namespace {

std::vector<std::int64_t> work_of(const std::vector<Pack>& packs) {
  std::vector<std::int64_t> work;
  std::ranges::transform(packs, std::back_inserter(work), attention_work);
  return work;
}

// `packs` itself, if there are some.
std::vector<Pack> not_empty(std::vector<Pack> packs, const TokenSource& tokens) {
  check<ValueError>(!packs.empty(), "--pack: '", tokens.name(),
                    "' must have a document of 2 tokens or more to train on and one in its last "
                    "twentieth, got ",
                    tokens.size(), " ", tokens.unit());
  return packs;
}

}  // namespace

PackedData::PackedData(TokenSource tokens, DocumentOffsets documents, const PackOptions& options)
    : tokens_(std::move(tokens)),
      description_(std::to_string(documents.size() - 1) + " documents, ends with CRC-32C " +
                   std::to_string(crc32c(std::as_bytes(std::span(documents))))),
      training_(not_empty(soft_pack(hold_out(documents).training, options.budget), tokens_)),
      validation_(not_empty(soft_pack(hold_out(documents).validation, options.budget), tokens_)),
      sampler_(work_of(training_), options.micro_batches, options.seed),
      validation_batches_(std::min(options.validation_batches, std::ssize(validation_))) {}

std::vector<MicroBatch> PackedData::step_batches(std::int64_t step) const {
  std::vector<MicroBatch> batches;
  for (const auto pack : sampler_.packs_of_step(step)) {
    batches.push_back(to_micro_batch(tokens_, training_[static_cast<std::size_t>(pack)]));
  }
  return batches;
}

std::int64_t PackedData::tokens_before(std::int64_t step) const {
  const auto packs = step * sampler_.micro_batches();
  const auto of_this_epoch = packs % std::ssize(training_);
  std::int64_t tokens = 0;
  for (const auto& pack : training_) tokens += token_count(pack);
  tokens *= packs / std::ssize(training_);
  for (const auto pack : sampler_.packs(packs - of_this_epoch, of_this_epoch)) {
    tokens += token_count(training_[static_cast<std::size_t>(pack)]);
  }
  return tokens;
}

std::int64_t PackedData::validation_batches() const { return validation_batches_; }

MicroBatch PackedData::validation_batch(std::int64_t index) const {
  return to_micro_batch(tokens_, validation_[static_cast<std::size_t>(index)]);
}

}  // namespace moegrad::examples
