// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/kernels/bf16/tile.h"

namespace moegrad::kernels::bf16 {

/// Writes `steps` <= kUnit steps of `lanes` <= kPanel lanes to a unit of a panel of words (tile.h).
/// Lanes and steps that do not exist become zero.
void pack_unit(const Lanes& from, std::int64_t steps, std::int64_t lanes, PairOrder order,
               std::byte* unit);

/// The same in kNeighbours, but lane by lane: a unit is sixteen rows of kWords words, as AMX reads
/// a left operand.
void pack_unit_of_rows(const Lanes& from, std::int64_t steps, std::int64_t lanes, std::byte* unit);

/// Reads sixteen steps of a unit, from `first_step` on, which is 0 or 16: element (p, i) goes to
/// to[p * to_stride + i].
void unpack_steps(const std::byte* unit, PairOrder order, std::int64_t first_step, BFloat16* to,
                  std::int64_t to_stride);

}  // namespace moegrad::kernels::bf16
