// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace moegrad::training {

/// How many tokens each expert has had: [mixture layers][E].
using ExpertCounts = std::vector<std::vector<std::int64_t>>;

/// Adds `more` to `counts`, which may be empty at first.
void add_counts(ExpertCounts& counts, const ExpertCounts& more);

}  // namespace moegrad::training
