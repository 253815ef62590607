// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "tools/nz_ablation/nz_ablation_run.h"

namespace moegrad::tools {

/// Largest difference of the losses from those of the first rung.
double max_loss_difference(const Ladder& ladder, std::size_t rung);

/// Error that names the rung and the step, unless all losses have the bits of the first rung's.
void check_losses_agree(const Ladder& ladder);

/// How many times as fast as rung `baseline` the last rung is: over the rounds, in each of which
/// their steps follow each other closely.
struct Gain {
  double median = 0, lowest = 0, highest = 0;
};
Gain gain(const Ladder& ladder, std::size_t baseline);

/// The rung of the fastest median step among those before the last that make no FRACTAL_NZ at all.
std::optional<std::size_t> fastest_row_major(const Ladder& ladder);

/// The last rung's gain over the ladder's baseline and over the fastest row-major rung, with the
/// lowest and highest of the rounds. A line each.
std::string gain_lines(const Ladder& ladder);

/// Tokens per second per rank in the median step.
double tgs(const Ladder& ladder, std::size_t rung);

/// One line per rung: times, what the copies wrote, and how many transposed a whole tensor, packed
/// an operand of a product (and transposed it meanwhile), or converted a weight to NZ, outside and
/// inside the copy-outs.
std::string ladder_table(const Ladder& ladder);

/// The figures of the tables.
void write_ablation_json(const std::string& path, const std::vector<Ladder>& ladders);

}  // namespace moegrad::tools
