// SPDX-License-Identifier: Apache-2.0
#pragma once

// Internal to gradcheck: gradients by backward.

#include <functional>
#include <utility>
#include <vector>

#include "framework/autograd/gradcheck_inputs.h"

namespace moegrad {
class Function;
}

namespace moegrad::detail {

/// One forward of f, from which backward can start any number of times.
class RetainedGraph {
 public:
  RetainedGraph(const std::function<TensorList(const TensorList&)>& f, const CheckedInputs& inputs);
  /// Restores the gradients of leaves that are not inputs.
  ~RetainedGraph();
  RetainedGraph(const RetainedGraph&) = delete;
  RetainedGraph& operator=(const RetainedGraph&) = delete;

  const std::vector<Slot>& slots() const { return slots_; }
  const Tensor& output(std::size_t i) const { return outputs_[i]; }
  /// Whether an output carries a gradient.
  bool differentiable(const Slot& output) const { return outputs_[output.index].requires_grad(); }

  /// Gradients of all checked inputs, concatenated. An undefined or missing cotangent leaves its
  /// output out; leave out the outputs that are not differentiable.
  std::vector<double> backward(const TensorList& cotangents) const;
  /// Whether backward would run hooks of modules.
  bool runs_hooks() const;
  /// Whether a SavedTensor has seen an edit.
  bool has_modified() const;

 private:
  void set_other_leaves_aside();

  const CheckedInputs& inputs_;
  TensorList outputs_;
  std::vector<Slot> slots_;
  std::vector<const Function*> functions_;               // all that led to the outputs
  std::vector<std::pair<Tensor, Tensor>> other_leaves_;  // with their gradients
};

}  // namespace moegrad::detail
