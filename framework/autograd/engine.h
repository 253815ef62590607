// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>

#include "framework/runtime/error.h"
#include "framework/tensor/tensor.h"

namespace moegrad {

/// A Function or a hook gave a gradient that does not fit its tensor.
class GradientShapeError : public ShapeError {
 public:
  using ShapeError::ShapeError;
};
class GradientDtypeError : public DtypeError {
 public:
  using DtypeError::DtypeError;
};

/// Propagates `grads` (undefined: one, for a tensor of one element) from `roots` to the leaves.
///
/// Note [Engine]
/// Reachable Functions wait in a heap and run by falling sequence number: when one is taken, all
/// consumers of its outputs have run, so its gradients are complete. There is no recursion and no
/// state outside the running call but a thread-local pointer to it, so ranks can be threads, and a
/// backward may start another one (recomputation). Gradients that meet are summed in order of
/// arrival, which the sequence numbers fix; a leaf's hooks run once, after the last of them. Count,
/// shape and dtype of what a Function or a hook returns are checked and the Function is named.
/// There is no double backward.
void run_backward(const TensorList& roots, const TensorList& grads, bool retain_graph);

/// The second call of a backward in two: the gradients of all leaves that the first left out.
/// Dropping it drops them, and frees the graph.
class WeightBackward {
 public:
  struct Plan;
  explicit WeightBackward(std::unique_ptr<Plan> plan);
  WeightBackward(WeightBackward&&) noexcept;
  WeightBackward& operator=(WeightBackward&&) noexcept;
  ~WeightBackward();

  /// Error when it has run before.
  void run();

 private:
  std::unique_ptr<Plan> plan_;
};

/// As run_backward, but only for the leaves `inputs`; the result computes the rest.
///
/// Note [Backward in two calls]
/// A pipeline stage owes the stage before it the gradient of its input as soon as possible, and
/// nobody is in a hurry for the gradients of its weights. The first call runs the Functions that
/// lie between roots and inputs, each for those of its inputs alone, and keeps the gradients of
/// their outputs; the second runs them again for the inputs left out, and everything behind. No
/// product is computed twice, and each leaf sums the same terms in the same order as in one call,
/// so the bits are the same. A recomputation happens in the first call; its tape lives until the
/// second. Both calls enter the scopes on their way.
///
/// Error if an input is not a leaf that requires a gradient.
/// Method: Qi et al., "Zero bubble pipeline parallelism", 2023, https://arxiv.org/abs/2401.10241
WeightBackward backward_to_inputs(const TensorList& roots, const TensorList& grads,
                                  const TensorList& inputs, bool retain_graph = false);

/// Runs `callback` at the end of the outermost backward under way in this thread; throws Error
/// when there is none.
void queue_backward_callback(std::function<void()> callback);

/// Whether a backward is under way in this thread.
bool is_backward_running();

/// For a Function that recomputes(), called in its backward: what to do with each gradient of its
/// tensor input i as soon as the inner backward has it. So gradients meet in the order in which
/// they would without recomputation. Valid until backward returns.
std::function<void(Tensor)> input_gradient_sink(const Function& function, std::size_t i);

/// For the same, its inner backward: run_backward, or, while the first of two calls is under way,
/// the part of it that reaches `inputs`; the rest is left to the second call.
void run_recomputed_backward(const TensorList& roots, const TensorList& grads,
                             const TensorList& inputs);

}  // namespace moegrad
