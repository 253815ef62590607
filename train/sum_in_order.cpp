// SPDX-License-Identifier: Apache-2.0
#include "train/sum_in_order.h"

#include <numeric>
#include <span>

#include "framework/distributed/collectives.h"

namespace moegrad::training {

double sum_in_order(std::vector<double> terms, const std::shared_ptr<ProcessGroup>& group) {
  // Exact: of the ranks' values of a term all but one are zero.
  if (group && group->size() > 1) all_reduce(*group, std::span(terms));
  return std::accumulate(terms.begin(), terms.end(), 0.0);
}

}  // namespace moegrad::training
