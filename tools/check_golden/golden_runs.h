// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "framework/distributed/parallel_dims.h"
#include "framework/tensor/dtype.h"
#include "framework/tensor/named_tensor.h"
#include "tools/check_golden/golden_case.h"

namespace moegrad::tools {

/// The ways in which the framework computes the model.
enum class GoldenPath : std::uint8_t {
  kPlain,      // plain operations on weights as in Hugging Face
  kOptimised,  // CausalLM on pre-transposed weights
  kSharded,    // the same under fully_shard, with gathered FRACTAL_NZ weights; the sequences of
               // each batch are spread over the ranks (Note [A golden row over ranks])
};
std::string_view to_string(GoldenPath path);

/// What the routers did; one entry per mixture layer.
struct GoldenRouting {
  TensorList logits, experts, weights;                       // [T, E], int64 [T, K], [T, K]
  std::vector<std::vector<std::int64_t>> tokens_per_expert;  // [E]
  TensorList biases = {};  // [E], for the choice alone; none if no router has one
};

// Note [Choices that are rounding]
// If a token's k-th and next router logits are closer than kFloat32RouterMargin, its choice of
// experts in float32 is a matter of rounding. Where a bias or groups of experts have a say, so it
// is if the values that the choice is made by, or those of the groups, are that close. But
// everything that follows depends on it. If the first choice of a float32 run that differs from the
// float64 run is such a choice, the run is made again with the experts of the float64 run. So the
// rest can be compared within the limits of rounding.

/// The results of a path for one row. Tensors have the dtype of the run.
struct GoldenComputed {
  double loss = 0, ce = 0, aux = 0;
  Tensor logits = {};      // [T, V]
  TensorList hidden = {};  // [T, H]
  GoldenRouting routing = {};
  bool replayed = false;                           // Note [Choices that are rounding]
  NamedTensors gradients = {}, ce_gradients = {};  // whole, by Hugging Face name; of rank 0
};

/// The results of a path for one variant of training.
struct GoldenTrained {
  std::vector<double> lr, loss, ce, aux, grad_norm;  // per step
  std::vector<GoldenRouting> routing;                // per step
  bool replayed = false;
  GoldenComputed final_eval;  // only the losses
  NamedTensors parameters;    // whole, by Hugging Face name; of rank 0
};

struct GoldenResults {
  GoldenComputed batch;
  std::vector<GoldenGeneration> generations;  // what the path writes after the same prompts
  std::optional<GoldenComputed> packed;
  std::vector<GoldenComputed> alone;
  std::vector<GoldenTrained> variants;
};

/// Runs everything in a case along a path; the sharded path on these ranks. Returns what rank 0 has
/// computed. `reference`: for float32, the results of the float64 run (Note [Choices
/// that are rounding]). Error unless every rank has the same results, bit for bit.
GoldenResults run_golden(const GoldenCase& golden, GoldenPath path, Dtype dtype,
                         const ParallelDims& ranks, const GoldenResults* reference = nullptr);

}  // namespace moegrad::tools
