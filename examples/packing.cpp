// SPDX-License-Identifier: Apache-2.0
#include "examples/packing.h"

#include <algorithm>

#include "framework/runtime/error.h"

namespace moegrad::examples {

std::vector<Pack> soft_pack(std::span<const std::int64_t> documents, std::int64_t budget) {
  check<ValueError>(budget >= 1, "soft_pack: packs need at least 1 token, got ", budget);
  std::vector<Pack> packs;
  std::int64_t room = 0;
  for (std::size_t d = 0; d + 1 < documents.size(); ++d) {
    const auto end = documents[d + 1];
    for (auto at = documents[d]; at < end; at += budget) {
      const auto length = std::min(budget, end - at);
      const bool ends = at + length == end;
      if (ends && length == 1) continue;
      if (length > room) {
        packs.emplace_back();
        room = budget;
      }
      packs.back().push_back({.start = at, .length = length, .ends_document = ends});
      room -= length;
    }
  }
  return packs;
}

std::int64_t token_count(const Pack& pack) {
  std::int64_t tokens = 0;
  for (const auto& piece : pack) tokens += piece.length;
  return tokens;
}

std::int64_t attention_work(const Pack& pack) {
  std::int64_t work = 0;
  for (const auto& piece : pack) work += piece.length * piece.length;
  return work;
}

MicroBatch to_micro_batch(const TokenSource& tokens, const Pack& pack) {
  constexpr std::int64_t kNoTarget = -100;
  const auto total = token_count(pack);
  MicroBatch batch{.tokens = Tensor::empty({total}, Dtype::kInt64),
                   .targets = Tensor::empty({total}, Dtype::kInt64),
                   .cu_seqlens = {0}};
  auto inputs = batch.tokens.mutable_data<std::int64_t>();
  auto targets = batch.targets.mutable_data<std::int64_t>();
  std::size_t at = 0;
  for (const auto& [start, length, ends_document] : pack) {
    const auto last = start + length - 1;
    for (auto i = start; i <= last; ++i, ++at) {
      inputs[at] = tokens[i];
      targets[at] = i == last && ends_document ? kNoTarget : tokens[i + 1];
    }
    batch.cu_seqlens.push_back(static_cast<std::int64_t>(at));
  }
  return batch;
}

}  // namespace moegrad::examples
