// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>

#include "framework/tensor/named_tensor.h"
#include "framework/tensor/stacked_matrices.h"
#include "nn/module.h"

namespace moegrad::models {

/// Hugging Face's matrices [out, in] that make up the stacked experts of a model: each
/// expert's gate, up and down apart. By the names of their parameters.
std::map<std::string, StackedMatrices> stacked_matrices(const nn::Module& model);

/// The parameters of a model by what an optimizer of matrices, such as Muon, does with them. It
/// updates the first; the others are left to an optimizer of elements, such as AdamW.
struct MatrixParameters {
  NamedTensors matrices;  // weights of linear layers and of experts
  NamedTensors embedding;
  NamedTensors head;
  NamedTensors router;                             // and gates of shared experts
  NamedTensors vectors;                            // all of one dimension
  std::map<std::string, StackedMatrices> stacked;  // stacked_matrices()
};

/// Sorts the parameters of `model`, which have Hugging Face's names: `embed_tokens.weight` is the
/// embedding, `lm_head.weight` the head (a tied one is the embedding), `gate.weight` of
/// any module a router, and `shared_expert_gate.weight` the gate of a shared expert. Under
/// fully_shard they are shards. ValueError for another matrix that is not the weight of a linear
/// layer.
MatrixParameters matrix_parameters(const nn::Module& model);

}  // namespace moegrad::models
