// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/expert_choice.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/kernels/for_rows.h"
#include "ops/kernels/topk_row.h"

namespace moegrad::kernels {
namespace {

/// The sum of the two largest of x[0, n); the largest if there is only one.
template <class T>
T sum_of_best_two(const T* x, std::int64_t n) {
  if (n == 1) return x[0];
  T first = std::max(x[0], x[1]), second = std::min(x[0], x[1]);
  for (std::int64_t i = 2; i < n; ++i) {
    if (x[i] > first) {
      second = first;
      first = x[i];
    } else if (x[i] > second) {
      second = x[i];
    }
  }
  return first + second;
}

}  // namespace

template <class T>
void choose_experts(const T* scores, const T* bias, const ExpertChoiceSizes& sizes,
                    const ExpertChoiceScratch<T>& scratch, std::int64_t* chosen) {
  const auto experts = sizes.experts, k = sizes.k;
  const auto groups = sizes.groups, topk_groups = sizes.topk_groups;
  const auto in_group = experts / groups;
  for_rows(sizes.tokens, experts, [=](std::int64_t t) {
    T* const choice = scratch.choice + t * experts;
    for (std::int64_t e = 0; e < experts; ++e) {
      const T value = scores[t * experts + e] + bias[e];
      choice[e] = std::isnan(value) ? std::numeric_limits<T>::infinity() : value;
    }
    std::int64_t* const best = chosen + t * k;
    if (groups == topk_groups) {
      topk_row(choice, best, experts, k);
      return;
    }
    T* const group_scores = scratch.group_scores + t * groups;
    for (std::int64_t g = 0; g < groups; ++g) {
      group_scores[g] = sum_of_best_two(choice + g * in_group, in_group);
    }
    std::int64_t* const of_groups = scratch.groups + t * topk_groups;
    topk_row(group_scores, of_groups, groups, topk_groups);
    // Their experts move to the front in rising order, so that ties are still by lowest index.
    std::sort(of_groups, of_groups + topk_groups);
    for (std::int64_t j = 0; j < topk_groups; ++j) {
      if (of_groups[j] == j) continue;
      const T* const from = choice + of_groups[j] * in_group;
      std::copy(from, from + in_group, choice + j * in_group);
    }
    topk_row(choice, best, topk_groups * in_group, k);
    for (std::int64_t j = 0; j < k; ++j) {
      best[j] = of_groups[best[j] / in_group] * in_group + best[j] % in_group;
    }
  });
}

template void choose_experts(const float*, const float*, const ExpertChoiceSizes&,
                             const ExpertChoiceScratch<float>&, std::int64_t*);
template void choose_experts(const double*, const double*, const ExpertChoiceSizes&,
                             const ExpertChoiceScratch<double>&, std::int64_t*);

}  // namespace moegrad::kernels
