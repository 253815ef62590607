// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "examples/nz_ablation_run.h"

namespace moegrad::examples {

/// Largest difference of the losses from those of the first rung.
double max_loss_difference(const Ladder& ladder, std::size_t rung);

/// Error that names the rung and the step, unless all losses have the bits of the first rung's.
void check_losses_agree(const Ladder& ladder);

/// How many times as fast as the baseline the last rung is: the median over the rounds of the ratio
/// of their steps, which follow each other closely.
double gain(const Ladder& ladder);

/// Tokens per second per rank in the median step.
double tgs(const Ladder& ladder, std::size_t rung);

/// One line per rung: times, what the copies wrote, and how many transposed a whole tensor, packed
/// an operand of a product (and transposed it meanwhile), or converted a weight to NZ, outside and
/// inside the copy-outs.
std::string ladder_table(const Ladder& ladder);

/// The figures of the tables.
void write_ablation_json(const std::string& path, const std::vector<Ladder>& ladders);

}  // namespace moegrad::examples
