// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>

namespace moegrad::kernels {

// Note [Sums by halving]
// A sum that a division of the model may cut is a tree that depends on its number of terms alone.
// Terms are counted in units of 16; the last unit may be short. A part of more than 128 terms is
// halved, the left half takes the odd unit, and the halves are added, left + right. A part of at
// most 128 terms is added up one term after the other. So no sum is a long chain, in which digits
// are lost, and a rank that has a half, a quarter or an eighth of the terms has a subtree of the
// whole: R ranks whose sums are added pairwise have the bits of one rank where R is a power of two,
// 16 R divides the number of terms n, and 2 n / R > 128.
//
// A kernel that walks a sum piece by piece takes subtrees as pieces. No bit depends on how large
// these are, nor on rows, columns, threads, layouts or the width of vectors.

/// The terms of a unit.
inline constexpr std::int64_t kHalvingUnit = 16;
/// The most terms that are added up one after the other.
inline constexpr std::int64_t kChainTerms = 128;
/// No sum that can be counted is halved more often.
inline constexpr std::size_t kMostHalvings = 64;

/// The terms of the left half of a part of `terms` terms.
constexpr std::int64_t left_half(std::int64_t terms, std::int64_t unit = kHalvingUnit) {
  return ((terms + unit - 1) / unit + 1) / 2 * unit;
}

/// Halves a sum of terms [begin, begin + terms) until a part has at most `longest`, and calls, in
/// ascending order of terms,
///
///     part(begin, terms, level, adds)   level's sum = that of the part, or with `adds`, is added
///     join(level)                       the sum of level + 1 is added to that of `level`
///
/// so that afterwards the sum of `level` is the whole one, or with `adds`, it has been added there.
/// A sum of no terms is a part, too. Levels above the first are sums that wait for their right
/// halves; most_levels() has their number.
template <class Part, class Join>
void for_each_part(std::int64_t begin, std::int64_t terms, std::int64_t longest, std::int64_t unit,
                   int level, bool adds, const Part& part, const Join& join) {
  assert(longest >= unit);
  if (terms <= longest) {
    part(begin, terms, level, adds);
  } else if (adds) {
    for_each_part(begin, terms, longest, unit, level + 1, false, part, join);
    join(level);
  } else {
    const auto left = left_half(terms, unit);
    for_each_part(begin, left, longest, unit, level, false, part, join);
    for_each_part(begin + left, terms - left, longest, unit, level, true, part, join);
  }
}

/// How many levels for_each_part reaches, the first included.
constexpr int most_levels(std::int64_t terms, std::int64_t longest, std::int64_t unit, bool adds) {
  if (terms <= longest) return 1;
  if (adds) return 1 + most_levels(terms, longest, unit, false);
  const auto left = left_half(terms, unit);
  const int of_left = most_levels(left, longest, unit, false);
  const int of_right = most_levels(terms - left, longest, unit, true);
  return of_left > of_right ? of_left : of_right;
}

/// The number of parts of at most kChainTerms terms. On each level of the tree there are parts of
/// two sizes in units, `size` and one more.
constexpr std::int64_t count_parts(std::int64_t terms) {
  auto size = (terms + kHalvingUnit - 1) / kHalvingUnit;
  constexpr auto kMost = kChainTerms / kHalvingUnit;
  std::int64_t parts = 1, larger = 0;
  for (; size > kMost; size /= 2) {
    const auto of_size = size % 2 == 0 ? 2 * parts + larger : parts;
    larger = size % 2 == 0 ? larger : parts + 2 * larger;
    parts = of_size;
  }
  return parts + (size < kMost ? larger : 2 * larger);
}

/// Terms [begin, begin + terms) of a sum.
struct Part {
  std::int64_t begin = 0, terms = 0;
};

/// Part i of count_parts(terms).
constexpr Part part_at(std::int64_t terms, std::int64_t i) {
  std::int64_t begin = 0;
  while (terms > kChainTerms) {
    const auto left = left_half(terms), of_left = count_parts(left);
    if (i < of_left) {
      terms = left;
    } else {
      i -= of_left;
      begin += left;
      terms -= left;
    }
  }
  return {begin, terms};
}

/// Joins the sums of parts that lie side by side, from `first` on, to the whole in `first`:
/// join(to, from) adds that of part `from` to that of part `to`. Returns the number of parts.
template <class Join>
std::int64_t join_parts(std::int64_t first, std::int64_t terms, std::int64_t longest,
                        std::int64_t unit, const Join& join) {
  if (terms <= longest) return 1;
  const auto left = left_half(terms, unit);
  const auto of_left = join_parts(first, left, longest, unit, join);
  const auto of_right = join_parts(first + of_left, terms - left, longest, unit, join);
  join(first, first + of_left);
  return of_left + of_right;
}

/// The chains of a subtree of at most kMostChains of them. After chain i, joins[i] times the last
/// sum that waits is added to the left of the newest one.
struct Chains {
  static constexpr int kMostChains = 4;
  static constexpr std::int64_t kMostTerms = kMostChains * kChainTerms;

  int count = 0;
  std::int64_t steps[kMostChains] = {};
  int joins[kMostChains] = {};

  /// The chains of a sum of `terms` <= kMostTerms terms.
  static constexpr Chains of(std::int64_t terms) {
    assert(terms <= kMostTerms);
    Chains chains;
    chains.push(terms, 0);
    return chains;
  }
  /// One chain, however long.
  static constexpr Chains one(std::int64_t terms) {
    Chains chains;
    chains.count = 1;
    chains.steps[0] = terms;
    return chains;
  }

 private:
  constexpr void push(std::int64_t terms, int joins_after) {
    if (terms <= kChainTerms) {
      steps[count] = terms;
      joins[count++] = joins_after;
      return;
    }
    const auto left = left_half(terms);
    push(left, 0);
    push(terms - left, joins_after + 1);
  }
};

}  // namespace moegrad::kernels
