// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tests/ops/op_table.h"

namespace moegrad::test {

/// Samples of random sizes for the ops that have many ways to be wrong, with the key of their
/// entry. The same seed gives the same samples.
std::vector<std::pair<std::string, OpSample>> random_samples(std::uint64_t seed);

}  // namespace moegrad::test
