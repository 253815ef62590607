// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "framework/tensor/dtype.h"
#include "framework/tensor/named_tensor.h"
#include "tools/check_golden/golden_case.h"

namespace moegrad::tools {

/// The ways in which the framework computes the model.
enum class GoldenPath : std::uint8_t {
  kPlain,      // plain operations on weights as in Hugging Face
  kOptimised,  // Qwen3Moe on pre-transposed weights
  kSharded,    // the same under fully_shard, FRACTAL_NZ weights gathered, the sequences of each
               // batch spread over the ranks (Note [A golden row over ranks])
};
std::string_view to_string(GoldenPath path);

/// What the routers did; one entry per mixture layer.
struct GoldenRouting {
  TensorList logits, experts, weights;                       // [T, E], int64 [T, K], [T, K]
  std::vector<std::vector<std::int64_t>> tokens_per_expert;  // [E]
};

// Note [Choices that are rounding]
// In float32 the choice of a token whose k-th and next router logits are closer than
// kFloat32RouterMargin is a matter of rounding, but all that follows depends on it. A float32 run
// whose first choice that differs from the float64 run's is such a one is made again with the
// experts of the float64 run, so that the rest can be compared within the limits of rounding.

/// What a path computes of one row. Tensors are in the dtype of the run.
struct GoldenComputed {
  double loss = 0, ce = 0, aux = 0;
  Tensor logits = {};      // [T, V]
  TensorList hidden = {};  // [T, H]
  GoldenRouting routing = {};
  bool replayed = false;                           // Note [Choices that are rounding]
  NamedTensors gradients = {}, ce_gradients = {};  // whole, by Hugging Face name; of rank 0
};

/// What a path computes of one variant of training.
struct GoldenTrained {
  std::vector<double> lr, loss, ce, aux, grad_norm;  // per step
  std::vector<GoldenRouting> routing;                // per step
  bool replayed = false;
  GoldenComputed final_eval;  // losses alone
  NamedTensors parameters;    // as gradients
};

struct GoldenResults {
  GoldenComputed batch;
  std::optional<GoldenComputed> packed;
  std::vector<GoldenComputed> alone;
  std::vector<GoldenTrained> variants;
};

/// Everything of a case along a path, the sharded one on `world_size` ranks; one entry per rank.
/// `reference`: for float32, the results of the float64 run (Note [Choices that are rounding]).
std::vector<GoldenResults> run_golden(const GoldenCase& golden, GoldenPath path, Dtype dtype,
                                      int world_size, const GoldenResults* reference = nullptr);

}  // namespace moegrad::tools
