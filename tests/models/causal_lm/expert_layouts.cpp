// SPDX-License-Identifier: Apache-2.0
#include "tests/models/causal_lm/expert_layouts.h"

#include <algorithm>
#include <string>

#include "framework/tensor/fill.h"
#include "ops/split_cat.h"
#include "ops/views.h"
#include "tests/models/causal_lm/find_tensor.h"

namespace moegrad::test {
namespace {

using Role = nn::ParameterLayout::Role;

/// [E*a, b] -> [E*b, a]
Tensor swap_last(const Tensor& stored, std::int64_t experts) {
  const auto a = stored.dim(0) / experts, b = stored.dim(1);
  const Tensor stacked = ops::view(stored.detach(), {experts, a, b});
  return ops::view(clone(ops::transpose(stacked, 1, 2)), {experts * b, a});
}

}  // namespace

Tensor to_hugging_face(const Tensor& stored, const nn::ParameterLayout& layout) {
  return layout.in_first ? swap_last(stored, layout.stacked[0]) : stored;
}

Tensor from_hugging_face(const NamedTensors& tensors, const nn::ParameterSlot& slot,
                         const std::string& prefix) {
  const bool mixtral = std::ranges::any_of(tensors, [](const NamedTensor& tensor) {
    return tensor.name.find("block_sparse_moe") != tensor.name.npos;
  });
  auto name = prefix + slot.name;
  if (mixtral && name.find(".mlp.") != name.npos) {
    name.replace(name.find("mlp"), 3, "block_sparse_moe");
  }
  if (slot.layout.stacked.ndim() == 0) return find(tensors, name);
  const auto experts = slot.layout.stacked[0];
  const auto module = name.substr(0, name.rfind('.') + 1);
  const auto* const gate = mixtral ? ".w1.weight" : ".gate_proj.weight";
  const auto* const up = mixtral ? ".w3.weight" : ".up_proj.weight";
  const auto* const down = mixtral ? ".w2.weight" : ".down_proj.weight";
  TensorList rows;
  for (std::int64_t e = 0; e < experts; ++e) {
    const auto expert = module + std::to_string(e);
    if (slot.layout.role == Role::kExpertDown) {
      rows.push_back(find(tensors, expert + down));
    } else {
      rows.push_back(find(tensors, expert + gate));
      rows.push_back(find(tensors, expert + up));
    }
  }
  const Tensor stacked = ops::cat(rows, 0);  // [E*out, in]
  return slot.layout.in_first ? swap_last(stacked, experts) : stacked;
}

NamedTensors state_from_hugging_face(const NamedTensors& tensors, const nn::Module& module) {
  const auto slots = module.parameter_slots();
  NamedTensors state;
  for (const auto& [name, parameter] : module.named_parameters()) {
    const auto slot = std::ranges::find(slots, name, &nn::ParameterSlot::name);
    state.push_back({name, from_hugging_face(tensors, *slot)});
  }
  return state;
}

}  // namespace moegrad::test
