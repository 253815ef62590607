// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/text_collectives.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "framework/distributed/collectives.h"

namespace moegrad {

std::vector<std::string> all_gather_texts(const std::shared_ptr<ProcessGroup>& group,
                                          std::string_view text, const CollectiveOptions& options) {
  if (group == nullptr || group->size() == 1) return {std::string(text)};
  const auto ranks = static_cast<std::size_t>(group->size());
  std::vector<std::int64_t> lengths(ranks);
  all_gather(*group, std::vector<std::int64_t>{std::ssize(text)}, std::span(lengths), options);

  // A gather takes the same number of elements from each rank: those of the longest text, as words
  // of 8 bytes.
  constexpr std::size_t kWord = sizeof(std::int64_t);
  const auto longest = static_cast<std::size_t>(*std::ranges::max_element(lengths));
  if (longest == 0) return std::vector<std::string>(ranks);
  const auto words = (longest + kWord - 1) / kWord;
  std::vector<std::int64_t> own(words), all(words * ranks);
  std::ranges::copy(std::as_bytes(std::span(text)), std::as_writable_bytes(std::span(own)).begin());
  all_gather(*group, own, std::span(all), options);

  std::vector<std::string> texts;
  for (std::size_t r = 0; r < ranks; ++r) {
    std::string received(static_cast<std::size_t>(lengths[r]), '\0');
    std::memcpy(received.data(), all.data() + r * words, received.size());
    texts.push_back(std::move(received));
  }
  return texts;
}

std::string ranks_that_differ(const std::vector<std::string>& texts) {
  std::string ranks;
  for (std::size_t rank = 1; rank < texts.size(); ++rank) {
    if (texts[rank] != texts[0]) ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank);
  }
  return ranks;
}

}  // namespace moegrad
