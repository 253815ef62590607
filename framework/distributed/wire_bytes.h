// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "framework/distributed/collective_call.h"

namespace moegrad {

/// What a rank receives from others in all_to_all, if it is number `slot` of its group.
std::int64_t received_from_others(const CollectiveCall& call, std::size_t slot);

/// The most that a rank of `ranks` receives in `call`, over the link. `most_received`: that of
/// all_to_all, over the ranks.
std::int64_t wire_bytes(const CollectiveCall& call, std::int64_t ranks, std::int64_t most_received);

}  // namespace moegrad
