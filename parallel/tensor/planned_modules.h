// SPDX-License-Identifier: Apache-2.0
#pragma once

// What parallelize_module reads in a plan.

#include <string>
#include <string_view>
#include <vector>

#include "nn/module.h"
#include "parallel/tensor/styles.h"

namespace moegrad::parallel {

std::string to_string(const TensorLayout& layout);
std::string to_string(const std::vector<TensorLayout>& layouts);
std::string_view name_of(const ParallelStyle& style);
/// All that a plan says, to compare it with those of other ranks.
std::string to_string(const ParallelPlan& plan);

/// A module and what the plan says of it.
struct Planned {
  std::string path;
  nn::Module* module = nullptr;
  const ParallelStyle* style = nullptr;
};

/// Whether the style divides weights, or adds their gradients: not one that prepares tensors.
bool is_of_weights(const ParallelStyle& style);

/// The modules below `root`, itself included, that the paths of the plan match. ValueError for a
/// path that matches none, and for a second style of a module's weights.
std::vector<Planned> matched_modules(nn::Module& root, const ParallelPlan& plan);

}  // namespace moegrad::parallel
