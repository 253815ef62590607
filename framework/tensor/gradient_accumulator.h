// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "framework/tensor/tensor.h"

namespace moegrad {

/// Where a gradient stands in the sum that a leaf gets from one backward: Note [The sum of a
/// gradient] (autograd/leaf_gradients.h).
struct GradientPlace {
  int micro_batch = 0;
  int part = 0;    // of the micro-batch's tokens
  int use = 0;     // of a weight whose uses are summed apart
  int source = 0;  // whose rows brought it, of `sources`
  int sources = 1;
  bool last_use = true;  // this backward brings the leaf no other use's gradient after this one's
};

/// Takes what backward brings to one leaf, in place of its grad(). The one who sets
/// LeafState::accumulator takes it back before the accumulator ends.
class GradientAccumulator {
 public:
  virtual ~GradientAccumulator() = default;
  /// Called for each gradient as it comes, which may be after the Function that made it has ended.
  virtual void add(Tensor grad, const GradientPlace& place) = 0;
  /// The last one of this backward has come, for now: it may reach the leaf again.
  virtual void complete() {}
  /// Whether a gradient may come later than those of the Function's other inputs (Note [Weight
  /// gradients that wait]).
  virtual bool takes_later() const { return true; }
};

}  // namespace moegrad
