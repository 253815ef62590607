// SPDX-License-Identifier: Apache-2.0
#include "train/data/packing.h"

#include <algorithm>
#include <utility>

#include "framework/runtime/error.h"

namespace moegrad::training {

void visit_packs(std::span<const std::int64_t> documents, std::int64_t budget, std::int64_t from,
                 const std::function<bool(const Pack&)>& visit) {
  check<ValueError>(budget >= 1, "soft_pack: packs need at least 1 token, got ", budget);
  Pack pack;
  std::int64_t room = budget;
  const auto after = std::ranges::upper_bound(documents, from);
  auto document = static_cast<std::size_t>(std::max<std::ptrdiff_t>(after - documents.begin(), 1));
  for (auto at = from; document < documents.size(); ++document) {
    const auto end = documents[document];
    for (; at < end; at += budget) {
      const auto length = std::min(budget, end - at);
      const bool ends = at + length == end;
      if (ends && length == 1) continue;
      if (length > room) {
        if (!visit(pack)) return;
        pack.clear();
        room = budget;
      }
      pack.push_back({.start = at, .length = length, .ends_document = ends});
      room -= length;
    }
    at = end;
  }
  if (!pack.empty()) visit(pack);
}

std::vector<Pack> soft_pack(std::span<const std::int64_t> documents, std::int64_t budget) {
  std::vector<Pack> packs;
  visit_packs(documents, budget, documents.front(), [&](const Pack& pack) {
    packs.push_back(pack);
    return true;
  });
  return packs;
}

PackList::PackList(std::vector<std::int64_t> documents, std::int64_t budget)
    : documents_(std::move(documents)), budget_(budget) {
  visit_packs(documents_, budget_, documents_.front(), [&](const Pack& pack) {
    check<ValueError>(size() < kMostPacks, "--pack: packs of at most ", budget,
                      " tokens must be at most ", kMostPacks,
                      ", got more; larger ones are fewer (--batch, --seq-len)");
    starts_.push_back(pack.front().start);
    tokens_ += token_count(pack);
    return true;
  });
}

Pack PackList::operator[](std::int64_t index) const {
  Pack found;
  visit_packs(documents_, budget_, starts_[static_cast<std::size_t>(index)], [&](const Pack& pack) {
    found = pack;
    return false;
  });
  return found;
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
                   .targets = Tensor::empty({total}, Dtype::kInt64)};
  auto inputs = batch.tokens.mutable_data<std::int64_t>();
  auto targets = batch.targets.mutable_data<std::int64_t>();
  std::size_t at = 0;
  std::vector<std::int64_t> lengths;
  for (const auto& [start, length, ends_document] : pack) {
    const auto ids = tokens.read(start, ends_document ? length : length + 1);
    auto next = ids;
    tokens.leave_out(start, next);
    if (ends_document) next.push_back(kNoTarget);
    for (std::size_t i = 0; i + 1 < next.size(); ++i, ++at) {
      inputs[at] = ids[i];
      targets[at] = next[i + 1];
    }
    lengths.push_back(length);
  }
  batch.documents = Documents::of_lengths(lengths);
  return batch;
}

}  // namespace moegrad::training
