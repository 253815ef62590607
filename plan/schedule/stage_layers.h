// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

namespace moegrad::plan {

/// How a model's layers are divided into stages.
struct LayerDivision {
  int layers = 0;
  int stages = 1;
  /// How many layers fewer the first and the last stage have than the others: for the embedding and
  /// the head, which they have beside them. torchtitan's first_stage_less_layers and
  /// last_stage_less_layers.
  int first_less = 0;
  int last_less = 0;
  /// The stages of the empty layers, one entry for each. An empty layer has no parameters and
  /// returns its input; it takes a layer's place in its stage.
  std::vector<int> empty_layers = {};
};

/// The number of layers of each stage, without empty ones.
///
/// The places are the layers, first_less, last_less and the empty layers. Each stage has equally
/// many; if they do not divide and none is empty, the first stages have one more.
///
/// Throws ValueError `layers_per_stage: <what is required>, got <what>`: if with empty layers the
/// places do not divide, if the places of a stage are fewer than what it lacks, or if a stage has
/// no layer and no empty one.
std::vector<int> layers_per_stage(const LayerDivision& division);

}  // namespace moegrad::plan
