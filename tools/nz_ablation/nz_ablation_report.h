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

/// The spread of a figure over the measured rounds.
struct Spread {
  double median = 0;
  double lower_quartile = 0, upper_quartile = 0;
};
/// Quartiles between two values are interpolated. ValueError without values.
Spread spread_of(std::vector<double> values);

/// How many times as fast `rung` is as `baseline`: the spread of the ratios of their times in the
/// same round, where their steps follow each other closely.
Spread gain(const Ladder& ladder, std::size_t rung, std::size_t baseline);

/// The rung with the fastest median step among the rungs before the last that make no FRACTAL_NZ.
std::optional<std::size_t> fastest_row_major(const Ladder& ladder);

/// The rungs that gains are given against: the ladder's baselines and the fastest row-major rung,
/// each once.
std::vector<std::size_t> all_baselines(const Ladder& ladder);

/// The last rung's gain over each of all_baselines() and over the rung before it, each on a line
/// with its quartiles.
std::string gain_lines(const Ladder& ladder);

/// Tokens per second per rank in the median step.
double tgs(const Ladder& ladder, std::size_t rung);

/// Two tables with a line per rung. The first has times, and gains over all_baselines(), with
/// quartiles. The second has the bytes that copies wrote, and how many copies transposed a whole
/// tensor, packed an operand of a product (and transposed it meanwhile), or converted a weight to
/// NZ, outside and inside the copy-outs.
std::string ladder_table(const Ladder& ladder);

/// The figures of the tables.
void write_ablation_json(const std::string& path, const std::vector<Ladder>& ladders);

}  // namespace moegrad::tools
