// SPDX-License-Identifier: Apache-2.0
#pragma once

// Internal to the engine: one running backward.

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <queue>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "framework/autograd/engine.h"
#include "framework/autograd/function.h"
#include "framework/autograd/leaf_gradients.h"
#include "framework/autograd/weight_gradients.h"
#include "framework/runtime/span.h"

namespace moegrad {

// `dtype` is that of the tensor. `subject` names the gradient, as in "matmul: gradient of input 1".
template <class... Subject>
void check_gradient(const Tensor& grad, const Shape& shape, Dtype dtype,
                    const Subject&... subject) {
  check<GradientShapeError>(grad.shape() == shape, subject..., " must be ", shape, ", got ",
                            grad.shape());
  const bool bf16 = dtype == Dtype::kBFloat16;
  check<GradientDtypeError>(grad.dtype() == dtype || (bf16 && grad.dtype() == Dtype::kFloat32),
                            subject..., " must be ", dtype, bf16 ? " or float32, got " : ", got ",
                            grad.dtype());
}

/// What waits in a WeightGradientQueue.
struct WaitingGradients {
  struct Entry {
    std::shared_ptr<Function> function;
    std::size_t input = 0;
    TensorList grads;  // of its outputs, hooks included
    GraphTask* backward = nullptr;
  };
  std::deque<Entry> list;
};

struct InputGradient {
  std::size_t input = 0;
  Tensor grad;
  GradientPlace place;
};

/// A Function that ran in the first of two calls and has more to do in the second.
struct Deferred {
  std::shared_ptr<Function> function;
  InputMask left_out;  // inputs left out
  TensorList grads;    // of its outputs, hooks included
  // For a Function that recomputes, which has run already:
  std::vector<InputGradient> input_grads;  // of `left_out`, in order of arrival
  std::vector<WeightBackward> inner;       // what its inner backward left
  TensorList captured;                     // leaves that it has not finished
};

struct WeightBackward::Plan {
  std::vector<std::pair<Edge, Tensor>> roots;  // roots that lead to none of the inputs
  std::vector<Deferred> functions;
  bool retain_graph = false;
};

/// See Note [Engine] and, for `inputs` and `plan`, Note [Backward in two calls].
class GraphTask {
 public:
  explicit GraphTask(bool retain_graph);
  /// The first of two calls; leaves the rest in `plan`.
  GraphTask(bool retain_graph, const TensorList& inputs, WeightBackward::Plan& plan);
  ~GraphTask();
  GraphTask(const GraphTask&) = delete;
  GraphTask& operator=(const GraphTask&) = delete;

  static GraphTask* current() { return current_; }
  bool is_first_of_two() const { return plan_ != nullptr; }

  void start(const std::vector<Edge>& roots, TensorList grads);
  /// The second of two calls.
  void start(WeightBackward::Plan& plan);
  void run();

  /// A gradient of input i of the running Function, ahead of its return.
  void send(const Function& function, std::size_t i, Tensor grad, const GradientPlace& place);
  /// The leaves among the inputs of the first of two calls that the running Function, which
  /// recomputes, has captured.
  TensorList captured_inputs() const;
  /// Called by that Function.
  void leave_for_second_call(WeightBackward inner) { left_inner_.push_back(std::move(inner)); }
  static void queue_callback(std::function<void()> callback);
  /// Whether this backward, or one that it is a recomputation of, has yet to bring the leaf a
  /// gradient.
  bool awaits(const Tensor& leaf) const { return edges_to_come(leaf) > 0; }
  const GraphTask& outermost() const { return outermost_; }
  int micro_batches() const { return outermost_.last_.number + 1; }
  int parts() const { return outermost_.last_.part + 1; }

  // --- Note [Weight gradients that wait]
  /// The outermost backward that this one is a recomputation of: what waits is its.
  const GraphTask& root() const { return root_; }
  /// Whether all that is to come to the leaf waits, and something does.
  bool only_waits(const Tensor& leaf) const;
  bool computes_waiting() const { return root_.late_; }
  /// Computes the one at this position of the root's queue.
  void compute_waiting(std::size_t position);
  void compute_waiting_for(const Tensor& leaf);

 private:
  struct Entry {
    std::uint64_t sequence;
    std::shared_ptr<Function> function;  // null for the exit of `scope`
    std::shared_ptr<const Scope> scope;
    friend bool operator<(const Entry& a, const Entry& b) { return a.sequence < b.sequence; }
  };
  struct PendingLeaf {
    std::int64_t edges = 0;                  // edges that have not brought their gradient yet
    std::int64_t waiting = 0;                // gradients in the queue; each counts as an edge, too
    bool reached = false;                    // by a gradient since it was last complete
    std::unique_ptr<AddToGrad> add_to_grad;  // if the leaf has no accumulator
  };

  /// Finds what this call reaches from `roots`. In the first of two calls it finds which Functions
  /// lead to the inputs. It counts the edges of each leaf, since the leaf's hooks wait for the last
  /// edge, in this call those of the Functions that run in it. All of these run, so the count is
  /// exact.
  void discover(const std::vector<const Edge*>& roots);
  /// Whether the gradient that goes along `edge` is computed in this call.
  bool wants(const Edge& edge) const;
  InputMask wanted(const Function& function) const;

  /// Adds a gradient at its place.
  void add(const Edge& edge, Tensor grad, const GradientPlace& place);
  void add_to_leaf(const Tensor& leaf, Tensor grad, GradientPlace place);
  GradientAccumulator& accumulator_of(const Tensor& leaf, PendingLeaf& pending) const;
  /// `edge` has brought all it had, or, in the first of two calls, leaves it to the second.
  void finish(const Edge& edge) {
    if (edge.leaf.defined()) finish(edge.leaf);
  }
  void finish(const Tensor& leaf);
  void complete_if_last(const Tensor& leaf, PendingLeaf& pending) const;
  /// Edges that have yet to bring the leaf a gradient, in this backward and in those that it is a
  /// recomputation of.
  std::int64_t edges_to_come(const Tensor& leaf) const;
  /// The inputs in `asked` whose gradients may come later.
  InputMask may_wait(const Function& function, InputMask asked);
  /// Puts off the gradients of these inputs; releases what the Function has saved if there are
  /// none.
  void put_off(Function& function, InputMask inputs, const TensorList& grads);
  /// At the end: all that waits.
  void compute_all_waiting();
  bool waits(const Function& function) const;
  void release(Function& function) const;
  /// The outermost backward that waits for this leaf and that this one is a recomputation of.
  GraphTask& task_of(const Tensor& leaf);
  PendingLeaf& pending(const Tensor& leaf) { return leaves_.at(leaf.impl().get()); }
  /// Whether the Function, which recomputes, reaches one of the inputs of the first of two calls.
  bool captures_input(const Function& function) const;
  bool is_input(const Tensor& leaf) const { return inputs_.contains(leaf.impl().get()); }

  void run(const Entry& entry);
  void enter(const std::shared_ptr<const Scope>& scope);
  void execute(Function& function);
  void resume(Deferred& deferred);
  /// The gradients of the Function's outputs, after their hooks.
  TensorList complete_gradients(const Function& function);
  /// Passes on the gradients of the inputs in `asked`.
  void pass_all(const Function& function, InputMask asked, TensorList input_grads);
  void pass(const Function& function, std::size_t i, Tensor grad, GradientPlace place);
  /// What backward returns for the inputs in `needs`, after checks.
  TensorList gradients_of_inputs(Function& function, const TensorList& grads, InputMask needs);

  static thread_local GraphTask* current_;

  bool retain_graph_;
  GraphTask* outer_;
  GraphTask& outermost_;
  GraphTask* recomputed_by_;  // the backward that this one is a recomputation of, or null
  GraphTask& root_;
  std::priority_queue<Entry> ready_;
  std::unordered_map<const Function*, TensorList> grads_;  // looked up, never iterated
  std::unordered_map<const TensorImpl*, PendingLeaf> leaves_;
  const Function* recomputing_ = nullptr;  // the running Function, if it recomputes
  MicroBatchPart last_;                    // of what this reaches
  std::shared_ptr<WaitingGradients> queue_;
  bool late_ = false;  // what waited is being computed, and others of its leaf come after it
  InputMask sent_;     // by the running Function
  const TensorList* grads_of_running_ = nullptr;
  std::unordered_map<const Scope*, SpanGuard> entered_;
  std::vector<std::function<void()>> callbacks_;

  // The first of two calls: what is asked for, and what is left.
  WeightBackward::Plan* plan_ = nullptr;
  std::unordered_set<const TensorImpl*> inputs_;
  std::unordered_set<const Function*> leads_to_inputs_;
  std::vector<InputGradient> left_input_grads_;  // by the running Function
  std::vector<WeightBackward> left_inner_;
  // The second of two calls.
  std::unordered_map<const Function*, Deferred*> deferred_;
};

}  // namespace moegrad
