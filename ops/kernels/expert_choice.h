// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace moegrad::kernels {

/// The sizes of choose_experts(). `groups` divides `experts`, and
/// k <= topk_groups * (experts / groups).
struct ExpertChoiceSizes {
  std::int64_t tokens, experts, k;
  std::int64_t groups, topk_groups;
};

/// What choose_experts() overwrites.
template <class T>
struct ExpertChoiceScratch {
  T* choice;             // [tokens, experts]
  T* group_scores;       // [tokens, groups]
  std::int64_t* groups;  // [tokens, topk_groups]
};

/// chosen [tokens, k] of scores [tokens, experts] and bias [experts], as ops::choose_experts says.
template <class T>
void choose_experts(const T* scores, const T* bias, const ExpertChoiceSizes& sizes,
                    const ExpertChoiceScratch<T>& scratch, std::int64_t* chosen);

}  // namespace moegrad::kernels
