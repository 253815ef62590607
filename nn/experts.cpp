// SPDX-License-Identifier: Apache-2.0
// Shapes: R rows by expert, H hidden size, I intermediate size of one expert, E experts.
#include "nn/experts.h"

#include <string_view>

#include "framework/runtime/error.h"
#include "nn/layer_size.h"
#include "nn/operand.h"
#include "ops/grouped_matmul.h"
#include "ops/npu_gmm.h"
#include "ops/swiglu.h"

namespace moegrad::nn {
namespace {

using Role = ParameterLayout::Role;

/// Layout of one stacked projection that maps `in` features to `out`.
ParameterLayout layout_of(const GroupedExperts::Config& config, Role role, std::int64_t in,
                          std::int64_t out) {
  const bool in_first = config.weights == ExpertWeights::kPretransposed;
  return {
      .role = role,
      .stacked = in_first ? Shape{config.num_experts, in, out} : Shape{config.num_experts, out, in},
      .in_first = in_first};
}

/// [E, a, b] flattened to [E * a, b].
Tensor make_parameter(const ParameterLayout& layout, Dtype dtype) {
  const auto& stacked = layout.stacked;
  return Tensor::zeros({stacked[0] * stacked[1], stacked[2]}, dtype);
}

/// One grouped matmul over all experts: rows [R, in] -> [R, out].
Tensor multiply(const Tensor& rows, const Tensor& weight, const ParameterLayout& layout,
                const ops::RowGroups& groups) {
  if (layout.in_first) return ops::npu_gmm(weight, rows, groups);
  return ops::grouped_matmul(rows, weight, groups, /*transpose_weight=*/true);
}

}  // namespace

GroupedExperts::GroupedExperts(const Config& config) {
  constexpr std::string_view kLayer = "GroupedExperts";
  const auto h = detail::layer_size(kLayer, "hidden_size", config.hidden_size);
  const auto i = detail::layer_size(kLayer, "intermediate_size", config.intermediate_size);
  detail::layer_size(kLayer, "num_experts", config.num_experts);
  gate_up_layout_ = layout_of(config, Role::kExpertGateUp, h, 2 * i);
  down_layout_ = layout_of(config, Role::kExpertDown, i, h);
  gate_up_proj_ = make_parameter(gate_up_layout_, config.dtype);
  down_proj_ = make_parameter(down_layout_, config.dtype);
  register_parameter("gate_up_proj", gate_up_proj_, gate_up_layout_, InitialValues::normal());
  register_parameter("down_proj", down_proj_, down_layout_, InitialValues::normal());
}

Tensor GroupedExperts::forward(const Tensor& rows, const Tensor& row_weights,  // [R, H], [R]
                               const ops::RowGroups& groups) {
  const auto project = [&](const Tensor& x, const Tensor& weight, const ParameterLayout& layout) {
    const auto rows_of_one = layout.stacked[1];
    const NzBlocks blocks{weight.dim(0) / rows_of_one, rows_of_one, weight.dim(1)};
    return multiply(operand(*this, x), weight_operand(*this, weight, blocks, !layout.in_first),
                    layout, groups);
  };
  const Tensor both = project(rows, gate_up_proj_, gate_up_layout_);  // [R, 2I]
  const Tensor hidden = ops::swiglu(both, row_weights);               // [R, I]
  return project(hidden, down_proj_, down_layout_);                   // [R, H]
}

std::map<std::string, std::int64_t> expert_blocks(const Module& module) {
  std::map<std::string, std::int64_t> blocks;
  for (const auto& slot : module.parameter_slots()) {
    if (slot.layout.stacked.ndim() > 0) blocks.emplace(slot.name, slot.layout.stacked[0]);
  }
  return blocks;
}

}  // namespace moegrad::nn
