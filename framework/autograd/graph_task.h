// SPDX-License-Identifier: Apache-2.0
#pragma once

// Internal to the engine: one running backward.

#include <cstdint>
#include <functional>
#include <memory>
#include <queue>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "framework/autograd/engine.h"
#include "framework/autograd/function.h"
#include "framework/runtime/span.h"

namespace moegrad {

// `subject` names the gradient, as in "matmul: gradient of input 1".
template <class... Subject>
void check_gradient(const Tensor& grad, const Shape& shape, Dtype dtype,
                    const Subject&... subject) {
  check<GradientShapeError>(grad.shape() == shape, subject..., " must be ", shape, ", got ",
                            grad.shape());
  check<GradientDtypeError>(grad.dtype() == dtype, subject..., " must be ", dtype, ", got ",
                            grad.dtype());
}

/// A Function that ran in the first of two calls and has more to do in the second.
struct Deferred {
  std::shared_ptr<Function> function;
  InputMask left_out;  // inputs left out
  TensorList grads;    // of its outputs, hooks included
  // For a Function that recomputes, which has run already:
  std::vector<std::pair<std::size_t, Tensor>> input_grads;  // of `left_out`, in order of arrival
  std::vector<WeightBackward> inner;                        // what its inner backward left
  TensorList captured;                                      // leaves that it has not finished
};

struct WeightBackward::Plan {
  std::vector<std::pair<Edge, Tensor>> roots;  // roots that lead to none of the inputs
  std::vector<Deferred> functions;
  bool retain_graph = false;
};

/// See Note [Engine] and, for `inputs` and `plan`, Note [Backward in two calls].
class GraphTask {
 public:
  explicit GraphTask(bool retain_graph) : retain_graph_(retain_graph), outer_(current_) {
    current_ = this;
  }
  /// The first of two calls; leaves the rest in `plan`.
  GraphTask(bool retain_graph, const TensorList& inputs, WeightBackward::Plan& plan);
  ~GraphTask() { current_ = outer_; }
  GraphTask(const GraphTask&) = delete;
  GraphTask& operator=(const GraphTask&) = delete;

  static GraphTask* current() { return current_; }
  bool is_first_of_two() const { return plan_ != nullptr; }

  void start(const std::vector<Edge>& roots, TensorList grads);
  /// The second of two calls.
  void start(WeightBackward::Plan& plan);
  void run();

  std::function<void(Tensor)> sink(const Function& function, std::size_t i);
  /// The leaves among the inputs of the first of two calls that the running Function, which
  /// recomputes, has captured.
  TensorList captured_inputs() const;
  /// Called by that Function.
  void leave_for_second_call(WeightBackward inner) { left_inner_.push_back(std::move(inner)); }
  static void queue_callback(std::function<void()> callback);
  /// Whether this backward, or one that it is a recomputation of, has yet to bring the leaf a
  /// gradient.
  bool awaits(const Tensor& leaf) const;
  const GraphTask& outermost() const;
  int micro_batches() const { return outermost().micro_batches_; }

 private:
  struct Entry {
    std::uint64_t sequence;
    std::shared_ptr<Function> function;  // null for the exit of `scope`
    std::shared_ptr<const Scope> scope;
    friend bool operator<(const Entry& a, const Entry& b) { return a.sequence < b.sequence; }
  };
  struct PendingLeaf {
    std::int64_t edges = 0;  // edges that have not brought their gradient yet
    bool reached = false;    // by a gradient that is not in grad() yet or that hooks wait for
    TensorList sums;         // by micro-batch, of what is not in grad()
  };

  /// Finds what this call reaches from `roots`. In the first of two calls it finds which Functions
  /// lead to the inputs. It counts the edges of each leaf, since the leaf's hooks wait for the last
  /// edge, in this call those of the Functions that run in it. All of these run, so the count is
  /// exact.
  void discover(const std::vector<const Edge*>& roots);
  /// Whether the gradient that goes along `edge` is computed in this call.
  bool wants(const Edge& edge) const;
  InputMask wanted(const Function& function) const;

  /// Adds a gradient that belongs to a micro-batch.
  void add(const Edge& edge, Tensor grad, int micro_batch);
  void add_to_leaf(const Tensor& leaf, Tensor grad, int micro_batch);
  /// `edge` has brought all it had, or, in the first of two calls, leaves it to the second.
  void finish(const Edge& edge) {
    if (edge.leaf.defined()) finish(edge.leaf);
  }
  void finish(const Tensor& leaf);
  /// All gradients of the leaf have arrived: runs its hooks and adds them to grad().
  void deliver(const Tensor& leaf, TensorList sums) const;
  /// The backward that this one is a recomputation of, or null.
  GraphTask* recomputed_by() const {
    return outer_ != nullptr && outer_->recomputing_ != nullptr ? outer_ : nullptr;
  }
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
  void pass(const Function& function, std::size_t i, Tensor grad);

  static thread_local GraphTask* current_;

  bool retain_graph_;
  GraphTask* outer_;
  std::priority_queue<Entry> ready_;
  std::unordered_map<const Function*, TensorList> grads_;  // looked up, never iterated
  std::unordered_map<const TensorImpl*, PendingLeaf> leaves_;
  const Function* recomputing_ = nullptr;  // the running Function, if it recomputes
  int micro_batches_ = 0;
  std::unordered_map<const Scope*, SpanGuard> entered_;
  std::vector<std::function<void()>> callbacks_;

  // The first of two calls: what is asked for, and what is left.
  WeightBackward::Plan* plan_ = nullptr;
  std::unordered_set<const TensorImpl*> inputs_;
  std::unordered_set<const Function*> leads_to_inputs_;
  std::vector<std::pair<std::size_t, Tensor>> left_input_grads_;  // by the running Function
  std::vector<WeightBackward> left_inner_;
  // The second of two calls.
  std::unordered_map<const Function*, Deferred*> deferred_;
};

}  // namespace moegrad
