// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>

#include "framework/runtime/error.h"
#include "framework/tensor/gradient_accumulator.h"
#include "framework/tensor/tensor.h"

namespace moegrad {

class GraphTask;

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
/// state outside the running call except a thread-local pointer to it, so ranks can be threads, and
/// a backward may start another one (recomputation). Gradients of one tensor are summed in order of
/// arrival, which the sequence numbers fix. A leaf's hooks run once, after its last gradient. The
/// engine checks count, shape and dtype of what a Function or a hook returns, and its errors name
/// the Function. There is no double backward.
void run_backward(const TensorList& roots, const TensorList& grads, bool retain_graph);

/// The second of two backward calls: it computes the gradients of all leaves that the first call
/// left out. Destroying this object drops those gradients and frees the graph.
class WeightBackward {
 public:
  struct Plan;
  explicit WeightBackward(std::unique_ptr<Plan> plan);
  WeightBackward(WeightBackward&&) noexcept;
  WeightBackward& operator=(WeightBackward&&) noexcept;
  ~WeightBackward();

  /// Error if it has run before.
  void run();

 private:
  std::unique_ptr<Plan> plan_;
};

/// As run_backward, but only for the leaves `inputs`; the result computes the rest.
///
/// Note [Backward in two calls]
/// A pipeline stage owes the stage before it the gradient of its input as soon as possible. The
/// gradients of its weights can wait. The first call runs the Functions between roots and inputs,
/// each only for its inputs on such a path, and keeps the gradients of their outputs. The second
/// call runs them again for the inputs that were left out, and then everything behind those. No
/// product is computed twice. Each leaf sums the same terms in the same order as in one call, so
/// the bits are the same. A recomputation happens in the first call; its tape lives until the
/// second. Both calls enter the scopes that they reach.
///
/// Error if an input is not a leaf that requires a gradient.
/// Method: Qi et al., "Zero bubble pipeline parallelism", 2023, https://arxiv.org/abs/2401.10241
WeightBackward backward_to_inputs(const TensorList& roots, const TensorList& grads,
                                  const TensorList& inputs, bool retain_graph = false);

/// Whether all that this backward has yet to bring to the leaf waits in a WeightGradientQueue, and
/// something does.
bool does_gradient_wait(const Tensor& leaf);
/// Computes what waits for the leaf.
void compute_waiting_gradients(const Tensor& leaf);

/// Runs `callback` at the end of the outermost backward that is running in this thread. Throws
/// Error if none is running.
void queue_backward_callback(std::function<void()> callback);

/// Whether the backward that is running in this thread has yet to bring this leaf a gradient. The
/// first of two calls has done so when all it runs of what leads to the leaf has run, although it
/// may leave the gradient to the second.
bool is_gradient_awaited(const Tensor& leaf);

/// Whether the outermost backward in this thread is the first of two calls (Note [Backward in two
/// calls]), which leaves gradients to the second.
bool is_first_of_two_backwards();

/// The number of micro-batches that the outermost backward in this thread goes through (Note
/// [Micro-batches in one backward]); 0 if none is running.
int backward_micro_batches();
/// The largest number of parts of one of them.
int backward_parts();

/// Takes gradients of tensor input i of the Function whose backward makes it, instead of returning
/// one: a Function that recomputes() sends each as soon as the inner backward has it, so that they
/// are added in the same order as without recomputation; one whose rows have several sources sends
/// one for each (Note [The sum of a gradient]). Valid until backward returns. Error if no backward
/// is under way in this thread.
class InputGradientSink {
 public:
  InputGradientSink(const Function& function, std::size_t i);
  /// `place` says what is known of the source, and whether this is the last use behind this input.
  void operator()(Tensor grad, const GradientPlace& place = {}) const;

 private:
  GraphTask* task_;
  const Function* function_;
  std::size_t i_;
};

/// Whether input i of the Function, whose backward calls this, is a leaf, so that gradients of its
/// sources may be sent apart. Error if it is the result of a Function and the leaf behind that
/// belongs to fully_shard, which must know of sums over sources.
bool keeps_sources(const Function& function, std::size_t i);

/// The inner backward of such a Function. It is run_backward. During the first of two calls it runs
/// only the part that reaches `inputs`, and leaves the rest to the second call.
void run_recomputed_backward(const TensorList& roots, const TensorList& grads,
                             const TensorList& inputs);

}  // namespace moegrad
