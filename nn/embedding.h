// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <utility>

#include "framework/distributed/process_group.h"
#include "framework/runtime/error.h"
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
      : Embedding(
            Tensor::zeros({detail::layer_size("Embedding", "num_embeddings", config.num_embeddings),
                           detail::layer_size("Embedding", "embedding_dim", config.embedding_dim)},
                          config.dtype)) {}
  /// Shares `weight` [V, H] with its owner: two modules that are given one Tensor train it
  /// together. It requires a gradient from now on. ShapeError unless it has two dimensions.
  explicit Embedding(Tensor weight) : weight_(std::move(weight)) {
    check<ShapeError>(weight_.ndim() == 2, "Embedding: weight must be [V, H], got ",
                      weight_.shape());
    register_parameter("weight", weight_, InitialValues::normal());
  }

  /// Throws ValueError for an id outside [0, V).
  Tensor forward(const Tensor& ids) {
    if (vocabulary_ == nullptr) return ops::embedding(ids, weight_);
    return ops::vocabulary_parallel_embedding(vocabulary_, ids, weight_, divided_rows_);
  }

  const Tensor& weight() const { return weight_; }

  /// Computes with this rank's rows of the weight from now on, which are in its place: what
  /// parallel::parallelize_module calls. With `divided_rows` each rank has its part of the rows of
  /// y. ValueError for a group that is null.
  void divide(std::shared_ptr<ProcessGroup> vocabulary, bool divided_rows) {
    check<ValueError>(vocabulary != nullptr, "Embedding: divide needs a process group, got null");
    vocabulary_ = std::move(vocabulary);
    divided_rows_ = divided_rows;
  }

 private:
  std::shared_ptr<ProcessGroup> vocabulary_;  // null: this rank has all rows
  bool divided_rows_ = false;
  Tensor weight_;  // [V, H]
};

}  // namespace moegrad::nn
