// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "train/data/micro_batch.h"
#include "train/data/token_source.h"

namespace moegrad::training {

/// Tokens [start, start + length) of one document.
struct Piece {
  std::int64_t start = 0;
  std::int64_t length = 0;
  bool ends_document = false;

  bool operator==(const Piece&) const = default;
};

/// The pieces that become one micro-batch.
using Pack = std::vector<Piece>;

/// Packs of at most `budget` tokens, made greedily from documents in their order (DocumentOffsets),
/// as in XTuner's soft packing: a pack is closed when the next document does not fit. A document
/// that is longer than `budget` is cut into pieces of `budget` tokens and a rest.
///
/// Every token is in one pack, with one exception: a piece of one token at a document's end, such
/// as an empty document's separator, has no target and is left out.
std::vector<Pack> soft_pack(std::span<const std::int64_t> documents, std::int64_t budget);

/// Calls `visit` with each of these packs in order, starting with the one that begins at token
/// `from`, until it returns false.
void visit_packs(std::span<const std::int64_t> documents, std::int64_t budget, std::int64_t from,
                 const std::function<bool(const Pack&)>& visit);

/// The same packs, stored in eight bytes each, so that a large file may have many.
class PackList {
 public:
  static constexpr std::int64_t kMostPacks = 1 << 24;

  /// ValueError if there are more than kMostPacks.
  PackList(std::vector<std::int64_t> documents, std::int64_t budget);

  std::int64_t size() const { return std::ssize(starts_); }
  Pack operator[](std::int64_t index) const;
  /// The number of tokens of all packs.
  std::int64_t tokens() const { return tokens_; }

 private:
  std::vector<std::int64_t> documents_;
  std::int64_t budget_;
  std::vector<std::int64_t> starts_;  // a pack's first token
  std::int64_t tokens_ = 0;
};

/// The number of tokens of a pack.
std::int64_t token_count(const Pack& pack);

/// The sum of length^2 over the pieces. The arithmetic of attention is proportional to it.
std::int64_t attention_work(const Pack& pack);

/// The micro-batch of a pack. Attention and positions start again with each piece. The last target
/// of a piece is the token after it in its document, -100 at the document's end. So are targets
/// that a mask leaves out.
MicroBatch to_micro_batch(const TokenSource& tokens, const Pack& pack);

}  // namespace moegrad::training
