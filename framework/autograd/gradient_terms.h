// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "framework/autograd/function.h"
#include "framework/autograd/tree_sum.h"
#include "framework/tensor/tensor.h"

namespace moegrad {

/// Sums the terms of one gradient that a Function returns, in the order in which they are pushed.
///
/// Note [Terms of a gradient]
/// The gradient of a weight is one product per micro-batch, and these products are the leaves of
/// the tree of Note [Tree of successive terms]. Under expert parallelism the owner of an expert
/// multiplies the rows of all sources at once, where a source is the micro-batch of one rank. The
/// gradient must have the bits that it has when each rank multiplies its own rows. So the owner
/// multiplies the rows of each source apart. The products are terms of the gradient, and this class
/// adds them along that tree. At most log2(S) + 1 partials of S sources are alive.
///
/// Each node, leaves included, is rounded to the dtype in which the gradients of the parameter are
/// reduced (fsdp::MixedPrecisionPolicy::reduce_dtype).
///
/// The order is that of the sources only within one product. If a backward brings the same weight
/// the terms of several products, as where two layers share it, their sums are added.
class GradientTerms {
 public:
  /// For the gradient of tensor input `i` of the Function, whose backward calls this.
  GradientTerms(const Function& function, std::size_t i);

  /// Takes the next term, in whose memory sums are formed.
  void push(Tensor term);
  /// The sum, for backward to return.
  Tensor take();

 private:
  Dtype dtype_;       // of the gradient
  Dtype node_dtype_;  // of the partials
  TreeSum sum_;
};

}  // namespace moegrad
