// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "tools/nz_ablation/nz_ablation_run.h"

namespace moegrad::tools {

/// The largest difference of the rung's losses from the first rung's.
double max_loss_difference(const Ladder& ladder, std::size_t rung);

/// Error, with the rung and the step, unless all losses have the bits of the first rung's losses.
void check_losses_agree(const Ladder& ladder);

/// How many times as fast as rung `baseline` the last rung is, over the rounds. Within a round
/// their steps follow each other closely.
struct Gain {
  double median = 0, lowest = 0, highest = 0;
};
Gain gain(const Ladder& ladder, std::size_t baseline);

/// The rung with the fastest median step among the rungs before the last that make no FRACTAL_NZ.
std::optional<std::size_t> fastest_row_major(const Ladder& ladder);

/// The last rung's gain over the ladder's baseline and over the fastest row-major rung, each on a
/// line, with the lowest and the highest gain of the rounds.
std::string gain_lines(const Ladder& ladder);

/// Tokens per second per rank in the median step.
double tgs(const Ladder& ladder, std::size_t rung);

/// One line per rung: times, the bytes that copies wrote, and how many copies transposed a whole
/// tensor, packed an operand of a product (and transposed it meanwhile), or converted a weight to
/// NZ, outside and inside the copy-outs.
std::string ladder_table(const Ladder& ladder);

/// The figures of the tables.
void write_ablation_json(const std::string& path, const std::vector<Ladder>& ladders);

}  // namespace moegrad::tools
