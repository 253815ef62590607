// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "framework/distributed/process_group.h"

namespace moegrad::training {

/// Sums over the ranks of `group` in the order of `terms` [M]: the same double on every rank. A
/// rank gives its own terms in their places, and zeros for the others'. No communication without a
/// group. Collective.
double sum_in_order(std::vector<double> terms, const std::shared_ptr<ProcessGroup>& group);

}  // namespace moegrad::training
