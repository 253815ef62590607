// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "framework/tensor/tensor.h"

namespace moegrad {

/// Sums the gradients of successive micro-batches in a fixed order.
///
/// Note [Gradient tree]
/// The sum of micro-batches [lo, hi) is the sum of [lo, mid) plus the sum of [mid, hi), mid - lo
/// being the largest power of two below hi - lo: the tree of Note [Reduction order] over ranks, so
/// a run on one rank and a run on several form the same partial sums. It is built as a binary
/// counter: after n micro-batches there is one partial for each bit set in n, the largest over the
/// earliest micro-batches, and adding one more carries. No more than log2(n) + 1 partials are
/// alive. When n is no power of two, finish() folds them from the latest (smallest) to the
/// earliest (largest), which is the same left-full tree.
///
/// A micro-batch that left a parameter without gradient keeps its position and adds nothing: the
/// sum of an absent node and x is x.
class GradientTree {
 public:
  /// Partials are kept, and each node (leaves included) is rounded, in `node_dtype`; by default in
  /// the parameter's own dtype. Throws DtypeError for int64.
  explicit GradientTree(TensorList parameters, std::optional<Dtype> node_dtype = std::nullopt);

  /// Takes every parameter's grad() as the next leaf of the tree and leaves it undefined.
  void push();
  /// Sets every grad() to the root (undefined if no leaf was present) and empties the tree. Throws
  /// Error if a grad() is defined, since that one was not pushed.
  void finish();

  /// Micro-batches pushed since the last finish().
  std::int64_t size() const { return size_; }

 private:
  TensorList parameters_;
  std::optional<Dtype> node_dtype_;
  std::int64_t size_ = 0;
  std::vector<TensorList> partials_;  // [set bits of size_][parameters], the largest first
};

}  // namespace moegrad
