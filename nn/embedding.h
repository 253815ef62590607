// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "nn/layer_size.h"
#include "nn/module.h"
#include "ops/embedding.h"

namespace moegrad::nn {

/// Row ids[i] of the weight for each i.      ids: int64 [...]   weight: [V, H]   y: [..., H]
class Embedding final : public Callable<Embedding> {
 public:
  struct Config {
    std::int64_t num_embeddings = 0;
    std::int64_t embedding_dim = 0;
    Dtype dtype = Dtype::kFloat32;
  };

  /// Zero weights: nn::init_weights fills them. ValueError for a size outside [1, 2^31).
  explicit Embedding(const Config& config)
      : weight_(
            Tensor::zeros({detail::layer_size("Embedding", "num_embeddings", config.num_embeddings),
                           detail::layer_size("Embedding", "embedding_dim", config.embedding_dim)},
                          config.dtype)) {
    register_parameter("weight", weight_, InitialValues::normal());
  }

  /// Throws ValueError for an id outside [0, V).
  Tensor forward(const Tensor& ids) { return ops::embedding(ids, weight_); }

  const Tensor& weight() const { return weight_; }

 private:
  Tensor weight_;  // [V, H]
};

}  // namespace moegrad::nn
