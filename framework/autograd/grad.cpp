// SPDX-License-Identifier: Apache-2.0
#include "framework/autograd/grad.h"

#include <algorithm>
#include <deque>
#include <unordered_set>
#include <utility>
#include <vector>

#include "framework/autograd/engine.h"
#include "framework/autograd/function.h"
#include "framework/autograd/leaf_gradients.h"
#include "framework/autograd/use_sums.h"
#include "framework/tensor/fill.h"
#include "framework/tensor/tensor_impl.h"

namespace moegrad::autograd {
namespace {

// A leaf that `function` leads to and that requires a gradient. There is one: otherwise the result
// would not require a gradient.
Tensor some_leaf_behind(const Function& function) {
  std::unordered_set<const Function*> seen{&function};
  std::vector<const Function*> waiting{&function};
  while (!waiting.empty()) {
    const auto* next = waiting.back();
    waiting.pop_back();
    for (const auto& leaf : next->captured()) return leaf;
    for (const auto& edge : next->edges()) {
      if (edge.leaf.defined()) return edge.leaf;
      if (edge.function && seen.insert(edge.function.get()).second) {
        waiting.push_back(edge.function.get());
      }
    }
  }
  return {};
}

// Takes the gradients of a leaf while it lives: adds them to `sum`, or drops them if that is null.
class CapturedLeaf final : public GradientAccumulator {
 public:
  CapturedLeaf(const Tensor& leaf, Tensor* sum)
      : leaf_(leaf),
        sum_(sum),
        outer_(std::exchange(leaf.impl()->leaf_state().accumulator, this)) {}
  ~CapturedLeaf() override { leaf_.impl()->leaf_state().accumulator = outer_; }
  CapturedLeaf(const CapturedLeaf&) = delete;
  CapturedLeaf& operator=(const CapturedLeaf&) = delete;

  void add(Tensor grad, const GradientPlace& place) override {
    if (sum_ != nullptr) arrived_.add(std::move(grad), place);
  }
  void complete() override {
    if (sum_ == nullptr) return;
    TensorList uses;
    for (auto& micro_batches : arrived_.take()) {
      uses.push_back(sum_in_tree(std::move(micro_batches)));
    }
    Tensor sum = sum_of_uses(std::move(uses));
    if (sum.defined()) accumulate_gradient(*sum_, std::move(sum));
  }
  const Tensor& leaf() const { return leaf_; }

 private:
  Tensor leaf_;
  Tensor* sum_;
  GradientAccumulator* outer_;
  PlacedSum arrived_;
};

// Takes the gradients of some tensors while it lives, and keeps those of leaves from their grad().
class Captured {
 public:
  Captured() = default;
  ~Captured() {
    for (auto& handle : hooks_) handle.remove();
  }
  Captured(const Captured&) = delete;
  Captured& operator=(const Captured&) = delete;

  /// Gradients of `leaf` are added to `sum`, or dropped if it is null.
  void take(const Tensor& leaf, Tensor* sum) { leaves_.emplace_back(leaf, sum); }

  /// The complete gradient of `result` is put into `grad`.
  void watch(const Tensor& result, Tensor* grad) {
    hooks_.push_back(result.register_hook([grad](const Tensor& complete) {
      *grad = clone(complete);
      return Tensor();
    }));
  }

  bool takes(const Tensor& leaf) const {
    return std::ranges::any_of(leaves_,
                               [&](const CapturedLeaf& taken) { return taken.leaf().is(leaf); });
  }

 private:
  std::deque<CapturedLeaf> leaves_;  // each is known by its address
  std::vector<HookHandle> hooks_;
};

}  // namespace

TensorList grad(const TensorList& outputs, const TensorList& inputs, const TensorList& grad_outputs,
                const GradOptions& options) {
  check(!outputs.empty(), "grad: needs at least one output");
  check(grad_outputs.empty() || grad_outputs.size() == outputs.size(),
        "grad: needs a gradient for ", "each of the ", outputs.size(), " outputs, got ",
        grad_outputs.size());
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    check(outputs[i].defined() && outputs[i].requires_grad(), "grad: output ", i,
          " must require a gradient");
  }
  std::deque<Tensor> grads;  // of inputs that differ; they stay where they are
  std::vector<Tensor*> grad_of(inputs.size());
  TensorList targets;
  Captured captured;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    check(inputs[i].defined() && inputs[i].requires_grad(), "grad: input ", i,
          " must require a gradient");
    check(inputs[i].shard_spec() == nullptr || inputs[i].impl()->detached, "grad: input ", i,
          " must not be a shard of a parameter, got ", inputs[i].shape(),
          ": fully_shard computes with the gathered whole; call backward() and read grad()");
    for (std::size_t j = 0; j < i; ++j) {
      if (inputs[j].is(inputs[i])) grad_of[i] = grad_of[j];
    }
    if (grad_of[i] != nullptr) continue;
    grad_of[i] = &grads.emplace_back();
    if (!inputs[i].is_leaf()) continue;
    captured.take(inputs[i], grad_of[i]);
    targets.push_back(inputs[i]);
  }
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].is_leaf()) continue;
    captured.watch(inputs[i], grad_of[i]);
    const Tensor leaf = some_leaf_behind(*inputs[i].grad_fn());
    if (!leaf.defined() || captured.takes(leaf)) continue;
    captured.take(leaf, nullptr);
    targets.push_back(leaf);
  }
  const auto starts = grad_outputs.empty() ? TensorList(outputs.size()) : grad_outputs;
  backward_to_inputs(outputs, starts, targets, options.retain_graph);
  TensorList results;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    check(grad_of[i]->defined() || options.allow_unused, "grad: no output depends on input ", i,
          "; set allow_unused to have an undefined gradient for it");
    results.push_back(*grad_of[i]);
    if (inputs[i].is_leaf() && results[i].defined()) {
      results[i] = inputs[i].impl()->leaf_state().hooks.replace(results[i]);
    }
  }
  return results;
}

}  // namespace moegrad::autograd
