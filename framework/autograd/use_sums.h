// SPDX-License-Identifier: Apache-2.0
#pragma once

// Lists over the uses of a weight (Note [Uses of a tied weight]). An undefined entry is a use that
// has brought nothing.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "framework/autograd/tree_sum.h"
#include "framework/tensor/tensor.h"

namespace moegrad {

/// use 0 + use 1 + ...; undefined if all are. The only one itself; otherwise formed in the memory
/// of the first if nobody else holds it.
Tensor sum_of_uses(TensorList uses);

/// The terms of one weight, the uses each along a tree of its own (Note [Tree of successive
/// terms]).
class UseSums {
 public:
  UseSums() = default;
  /// Takes what `size` terms, a power of two, have been summed to already.
  UseSums(TensorList sums, std::int64_t size);

  /// Takes one term of each use. A list may be shorter than the one before, or longer.
  void push(TensorList terms);
  /// The terms so far count as absent.
  void drop();
  /// The sum so far, over the uses, too. The trees go on.
  Tensor sum() const;
  /// The sum of each use. Empties the trees.
  TensorList take();
  std::int64_t size() const { return trees_.front().size(); }

 private:
  std::vector<TreeSum> trees_ = std::vector<TreeSum>(1);  // [uses]
};

/// The tensor that grad() was set to. If it has been cleared, the tensor may be gone, and then its
/// handle is null, like the handle of a gradient that was never set. So `defined` is kept, too.
struct ShownGradient {
  explicit ShownGradient(const Tensor& grad);
  bool is_still(const Tensor& grad) const;

  bool defined = false;
  std::weak_ptr<TensorImpl> impl = {};
  std::uint64_t version = 0;  // of its bytes
};

/// What the uses have brought to the grad() of a leaf, as long as that shows their sum.
struct GradientUses {
  TensorList gradients;
  ShownGradient shown;
};

/// Sets grad() to the sum of these, and keeps them apart beside it if there are several uses.
/// Leaves grad() alone if all are undefined.
void set_grad_of_uses(const Tensor& leaf, TensorList uses);
/// What the uses have brought to grad(), which becomes undefined without being dropped. If it has
/// been replaced or changed since, it is use 0's.
TensorList take_grad_of_uses(const Tensor& leaf);

}  // namespace moegrad
