// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace moegrad {

/// Counter-based random numbers: a draw is a pure function of (seed, purpose, index), so sharding,
/// rank count and recomputation see the same numbers. There is no generator state.
///
/// Reference: Philox4x32-10, Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011.
std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                        std::array<std::uint32_t, 2> key);

/// A stream of draws by index. Its key is a seed and a purpose, such as a parameter's full name.
class Random {
 public:
  Random(std::uint64_t seed, std::string_view purpose);

  /// Uniform in [0, 1), 53 bits.
  double uniform(std::uint64_t index) const;
  /// Standard normal (Box-Muller).
  double normal(std::uint64_t index) const;
  /// Uniform in {0, ..., bound - 1}. ValueError unless bound >= 1.
  std::int64_t integer(std::uint64_t index, std::int64_t bound) const;
  /// The 128 random bits that the others are made of.
  std::array<std::uint32_t, 4> words(std::uint64_t index) const;

 private:
  std::uint64_t seed_;
  std::uint64_t purpose_;  // FNV-1a of the purpose
};

}  // namespace moegrad
