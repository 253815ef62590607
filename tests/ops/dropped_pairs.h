// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <string>

#include "framework/runtime/random.h"
#include "tests/ops/op_table.h"

namespace moegrad::test {

/// Whether word `word` of a draw is among the share 1 - p that dropout keeps.
inline bool is_kept(const Random& random, std::uint64_t draw, std::uint64_t word, double p) {
  return random.words(draw)[word] >= p * std::exp2(32);
}

/// Whether attention_dropout keeps the weight of a pair of token ids; args has p, seed and purpose.
inline bool pair_is_kept(const Json& args, std::int64_t head, double query, double key) {
  const Random random(args["seed"].get<std::uint64_t>(),
                      args["purpose"].get<std::string>() + " head " + std::to_string(head));
  const auto q = static_cast<std::uint64_t>(query), k = static_cast<std::uint64_t>(key);
  return is_kept(random, (q << 32U) + k / 4, k % 4, args["p"]);
}

}  // namespace moegrad::test
