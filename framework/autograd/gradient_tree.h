// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "framework/autograd/tree_sum.h"
#include "framework/tensor/tensor.h"

namespace moegrad {

/// Sums the gradients of successive micro-batches in a fixed order, along the tree of
/// Note [Tree of successive terms]. A micro-batch that left a parameter without gradient keeps its
/// position and adds nothing.
class GradientTree {
 public:
  /// Partials are kept, and each node (leaves included) is rounded, in `node_dtype`; by default in
  /// the parameter's own dtype. Throws DtypeError for int64.
  explicit GradientTree(TensorList parameters, std::optional<Dtype> node_dtype = std::nullopt);

  /// Takes every parameter's grad() as the next leaf of the tree and leaves grad() undefined.
  void push();
  /// Sets every grad() to the root (undefined if no leaf was present) and empties the tree. Throws
  /// Error if a grad() is defined, since that gradient was not pushed.
  void finish();
  /// Empties the tree and returns the roots in the nodes' dtype (undefined if no leaf was present).
  TensorList take();

  /// Micro-batches pushed since the tree was last empty: since construction, finish() or take().
  std::int64_t size() const { return size_; }
  /// Forgets the leaves pushed for parameter i; they count as absent.
  void drop(std::size_t i);
  /// Each parameter's sum so far; undefined if there is none. The tree goes on.
  TensorList sums() const;

 private:
  TensorList parameters_;
  std::optional<Dtype> node_dtype_;
  std::int64_t size_ = 0;
  std::vector<TreeSum> sums_;  // [parameters]
};

}  // namespace moegrad
