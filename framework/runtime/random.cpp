// SPDX-License-Identifier: Apache-2.0
#include "framework/runtime/random.h"

#include <cmath>
#include <numbers>

#include "framework/runtime/error.h"
#include "framework/runtime/math/elementary.h"

namespace moegrad {
namespace {

__extension__ using Uint128 = unsigned __int128;

std::uint64_t fnv1a(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : text) {
    hash ^= static_cast<unsigned char>(c);
    hash *= 0x100000001b3ULL;
  }
  return hash;
}

// 53 random bits as a double in [0, 1).
double unit(std::uint32_t high, std::uint32_t low) {
  const auto bits = (static_cast<std::uint64_t>(high) << 32 | low) >> 11;
  return static_cast<double>(bits) * 0x1.0p-53;
}

}  // namespace

std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                        std::array<std::uint32_t, 2> key) {
  constexpr std::uint64_t kMultiplier0 = 0xD2511F53U;
  constexpr std::uint64_t kMultiplier1 = 0xCD9E8D57U;
  constexpr std::uint32_t kWeyl0 = 0x9E3779B9U;
  constexpr std::uint32_t kWeyl1 = 0xBB67AE85U;
  for (int round = 0; round < 10; ++round) {
    const auto product0 = kMultiplier0 * counter[0];
    const auto product1 = kMultiplier1 * counter[2];
    counter = {static_cast<std::uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
               static_cast<std::uint32_t>(product1),
               static_cast<std::uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
               static_cast<std::uint32_t>(product0)};
    key = {key[0] + kWeyl0, key[1] + kWeyl1};
  }
  return counter;
}

Random::Random(std::uint64_t seed, std::string_view purpose)
    : seed_(seed), purpose_(fnv1a(purpose)) {}

std::array<std::uint32_t, 4> Random::words(std::uint64_t index) const {
  return philox4x32(
      {static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32),
       static_cast<std::uint32_t>(purpose_), static_cast<std::uint32_t>(purpose_ >> 32)},
      {static_cast<std::uint32_t>(seed_), static_cast<std::uint32_t>(seed_ >> 32)});
}

double Random::uniform(std::uint64_t index) const {
  const auto drawn = words(index);
  return unit(drawn[0], drawn[1]);
}

double Random::normal(std::uint64_t index) const {
  const auto drawn = words(index);
  const double radius = std::sqrt(-2.0 * math::log1p(-unit(drawn[0], drawn[1])));
  return radius * math::cos(2.0 * std::numbers::pi * unit(drawn[2], drawn[3]));
}

std::int64_t Random::integer(std::uint64_t index, std::int64_t bound) const {
  check<ValueError>(bound >= 1, "Random::integer: bound must be at least 1, got ", bound);
  const auto drawn = words(index);
  const auto bits = static_cast<std::uint64_t>(drawn[0]) << 32 | drawn[1];
  // The upper half of bits * bound is uniform up to a bias below bound / 2^64.
  return static_cast<std::int64_t>(
      (static_cast<Uint128>(bits) * static_cast<std::uint64_t>(bound)) >> 64);
}

}  // namespace moegrad
