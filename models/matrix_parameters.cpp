// SPDX-License-Identifier: Apache-2.0
#include "models/matrix_parameters.h"

#include <string_view>

#include "framework/runtime/error.h"
#include "nn/parameter_layout.h"

namespace moegrad::models {
namespace {

using Role = nn::ParameterLayout::Role;

bool is_gate(std::string_view name) {
  return name == "gate.weight" || name.ends_with(".gate.weight") ||
         name.ends_with("shared_expert_gate.weight");
}

NamedTensors& kind_of(const nn::ParameterSlot& slot, MatrixParameters& parameters) {
  const std::string_view name = slot.name;
  if (slot.parameter().ndim() < 2) return parameters.vectors;
  if (name.ends_with("embed_tokens.weight")) return parameters.embedding;
  if (name.ends_with("lm_head.weight")) return parameters.head;
  if (is_gate(name)) return parameters.router;
  check<ValueError>(slot.layout.role != Role::kDense, "matrix_parameters: '", name,
                    "' must be the weight of a linear layer, an embedding, a head or a router");
  return parameters.matrices;
}

}  // namespace

std::map<std::string, StackedMatrices> stacked_matrices(const nn::Module& model) {
  std::map<std::string, StackedMatrices> stacked;
  for (const auto& slot : model.distinct_parameters()) {
    const auto& layout = slot.layout;
    if (layout.stacked.ndim() == 0) continue;
    stacked[slot.name] = {.blocks = layout.stacked[0],
                          .parts = layout.role == Role::kExpertGateUp ? 2 : 1,
                          .transposed = layout.in_first};
  }
  return stacked;
}

MatrixParameters matrix_parameters(const nn::Module& model) {
  MatrixParameters parameters;
  parameters.stacked = stacked_matrices(model);
  for (const auto& slot : model.distinct_parameters()) {
    kind_of(slot, parameters).push_back({slot.name, slot.parameter()});
  }
  return parameters;
}

}  // namespace moegrad::models
