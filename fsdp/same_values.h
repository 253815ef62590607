// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "framework/tensor/named_tensor.h"

namespace moegrad::fsdp {

class State;

/// Compares the checksums of the whole parameters that the ranks passed to fully_shard, and of
/// `buffers`, the buffers of the root, as they are now. Ranks that began with different values
/// would silently train a mixture of them. Parameters whose shards some rank has written to since
/// are skipped: their first values no longer matter. `states` begins with the root. Issues one
/// all-gather for each process group of more than one rank, in the queue kSameValues. Error:
///
///     fully_shard: every rank must pass the same values of '<name>', got others on rank <r> than
///     on rank 0 of group '<group>'
///
/// and for a buffer without bytes.
void check_same_values(const std::vector<State*>& states, const NamedTensors& buffers);

}  // namespace moegrad::fsdp
