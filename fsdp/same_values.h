// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

namespace moegrad::fsdp {

class State;

/// Compares the checksums of the whole parameters that the ranks passed to fully_shard, since ranks
/// that began with different values would train a mixture of them without a word. Parameters whose
/// shards some rank has written to since are passed over: what they were no longer matters. One
/// all-gather for each process group of more than one rank, in the queue "same values". Error:
///
///     fully_shard: every rank must pass the same values of '<name>', got others on rank <r> than
///     on rank 0 of group '<group>'
void check_same_values(const std::vector<State*>& states);

}  // namespace moegrad::fsdp
