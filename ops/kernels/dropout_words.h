// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>

#include "framework/runtime/random.h"

namespace moegrad::kernels {

/// What a word must reach for its element to be kept.
inline std::uint64_t dropout_threshold(double p) {
  return static_cast<std::uint64_t>(std::ceil(p * 0x1p32));
}

/// What weights of attention are drawn from, for each query head.
inline Random dropout_of_head(std::uint64_t seed, const std::string& purpose, std::int64_t head) {
  return Random(seed, purpose + " head " + std::to_string(head));
}

inline constexpr std::int64_t kDropoutIds = std::int64_t{1} << 32;  // a token's id is below it

/// visit(k, word) for keys k = 0 ... n - 1 and one query, by their ids: word key_ids[k] % 4 of draw
/// query_id 2^32 + key_ids[k] / 4.
template <class Visit>
void for_each_word_of_pairs(const Random& random, std::int64_t query_id,
                            const std::int64_t* key_ids, std::int64_t n, const Visit& visit) {
  const auto row = static_cast<std::uint64_t>(query_id) << 32U;
  std::array<std::uint32_t, 4> words{};
  std::uint64_t drawn = ~std::uint64_t{0};
  for (std::int64_t k = 0; k < n; ++k) {
    const auto key = static_cast<std::uint64_t>(key_ids[k]);
    if (row + key / 4 != drawn) words = random.words(drawn = row + key / 4);
    visit(k, words[static_cast<std::size_t>(key % 4)]);
  }
}

}  // namespace moegrad::kernels
