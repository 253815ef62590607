// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "nn/module.h"
#include "ops/routing.h"

namespace moegrad::nn {

/// How the stacked expert weights are stored.
///
/// Note [Pre-transposed expert weights]
/// Hugging Face stores a linear weight as [out, in] and multiplies by its transpose. A grouped
/// matmul reads its right operand with in-features first. If weights are stored that way from the
/// start, as gate_up_proj [E*H, 2I] and down_proj [E*I, H], nothing is transposed at run time. Rows
/// of the shards that fully_shard gathers can then be written straight into FRACTAL_NZ blocks. Both
/// orientations contain the same numbers and give bitwise the same results.
enum class ExpertWeights : std::uint8_t { kPretransposed, kHuggingFace };

/// E SwiGLU experts, each on its own rows with their weights:
///
///     y_r = down_e (p_r * silu(gate_e x_r) * up_e x_r)      for the rows r of expert e
///
/// in one grouped matmul per projection. Under expert parallelism these are the experts of one
/// rank. Parameters are two-dimensional and stacked over experts, with gate and up side by side.
/// Pre-transposed they are gate_up_proj [E*H, 2I] and down_proj [E*I, H]; as in Hugging Face they
/// are [E*2I, H] and [E*H, I].
class GroupedExperts final : public Callable<GroupedExperts> {
 public:
  struct Config {
    std::int64_t hidden_size = 0;
    std::int64_t intermediate_size = 0;  // of one expert
    std::int64_t num_experts = 0;
    ExpertWeights weights = ExpertWeights::kPretransposed;
    Dtype dtype = Dtype::kFloat32;
  };

  /// Zero weights: nn::init_weights fills them.
  explicit GroupedExperts(const Config& config);

  /// rows [R, H], grouped by expert, and their weights p [R] -> [R, H]
  Tensor forward(const Tensor& rows, const Tensor& row_weights, const ops::RowGroups& groups);

 private:
  ParameterLayout gate_up_layout_, down_layout_;
  Tensor gate_up_proj_, down_proj_;
};

/// The parameters of `module` that stack experts: full name -> number of experts. In either
/// orientation, sharded or not, the experts are equal blocks of rows.
std::map<std::string, std::int64_t> expert_blocks(const Module& module);

}  // namespace moegrad::nn
