// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "framework/distributed/process_group.h"

namespace moegrad {

/// Stands for a tensor whose values do not matter, or that has none: it is not compared.
inline constexpr std::int64_t kNoChecksum = -1;

/// Compares the checksums of tensors over the ranks of a group, which all give the same names in
/// the same order. One all-gather, in the queue kSameValues. Error, and the same on all ranks:
///
///     <what>: every rank must pass the same values of '<name>', got others on rank <r> than on
///     rank 0 of group '<group>'
void compare_checksums(std::string_view what, ProcessGroup& group,
                       const std::vector<std::string>& names,
                       const std::vector<std::int64_t>& checksums);

}  // namespace moegrad
