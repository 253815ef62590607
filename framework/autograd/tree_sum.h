// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "framework/tensor/tensor.h"

namespace moegrad {

/// earlier + later, in the memory of `earlier`; the other one if one is undefined. bfloat16 is
/// widened, added and rounded.
Tensor add_terms(Tensor earlier, const Tensor& later);

/// Sums successive tensors of one shape and dtype in a fixed order.
///
/// Note [Tree of successive terms]
/// The sum of terms [lo, hi) is the sum of [lo, mid) plus the sum of [mid, hi), mid - lo being the
/// largest power of two below hi - lo: the tree of Note [Reduction order] over ranks, so a run on
/// one rank and a run on several form the same partial sums. It is built as a binary counter: after
/// n terms there is one partial for each bit set in n, the largest over the earliest terms, and
/// adding one more carries. No more than log2(n) + 1 partials are alive. If n is not a power of
/// two, the partials are folded from the latest (smallest) to the earliest (largest), which is the
/// same left-full tree.
///
/// An undefined term keeps its position and adds nothing: the sum of an absent node and x is x.
class TreeSum {
 public:
  TreeSum() = default;
  /// A tree that has already summed `size` terms to `sum`; `size` is a power of two.
  TreeSum(Tensor sum, std::int64_t size);

  /// Takes the next term. The tree forms sums in the term's memory, so nobody else may read it
  /// afterwards.
  void push(Tensor term);
  /// Returns the sum so far: a new tensor, or the only partial itself.
  Tensor sum() const;
  /// Returns the sum so far and empties the tree.
  Tensor take();

  std::int64_t size() const { return size_; }

 private:
  std::int64_t size_ = 0;
  TensorList partials_;  // one per set bit of size_, the largest first
};

/// A tree that has taken `size` undefined terms.
TreeSum absent_terms(std::int64_t size);

}  // namespace moegrad
