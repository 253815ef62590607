// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/kernels/bf16/tile.h"

namespace moegrad::kernels::bf16 {

/// Writes the first `steps` steps of `lanes` <= 16 lanes to a panel of words (tile.h). Lanes and
/// the steps of the last unit that do not exist become zero.
void pack_panel(const Lanes& from, std::int64_t steps, std::int64_t lanes, PairOrder order,
                std::byte* panel);

/// The same in kNeighbours, but lane by lane: a unit is sixteen rows of kWords words, as AMX reads
/// a left operand.
void pack_rows(const Lanes& from, std::int64_t steps, std::int64_t lanes, std::byte* panel);

}  // namespace moegrad::kernels::bf16
