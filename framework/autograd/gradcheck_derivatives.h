// SPDX-License-Identifier: Apache-2.0
#pragma once

// Internal to gradcheck: gradients by backward, and derivatives by central differences.

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

/// Derivatives by central differences.
class CentralDifferences {
 public:
  /// `outputs` is what f returned for the inputs as they are.
  CentralDifferences(const std::function<TensorList(const TensorList&)>& f,
                     const CheckedInputs& inputs, const std::vector<Slot>& outputs, double eps)
      : f_(f), inputs_(inputs), outputs_(outputs), eps_(eps) {}

  /// Derivatives of all output elements by one element of an input.
  std::vector<double> by_element(const Slot& input, std::size_t element) const;
  /// Derivatives of all output elements when the input moves along `direction`, in the elements
  /// from `first` on, as many as `direction` has. `direction` becomes the step that was taken,
  /// after rounding to the input's dtype.
  std::vector<double> along(const Slot& input, std::size_t first,
                            std::vector<double>& direction) const;

 private:
  std::vector<double> call(const Slot& moved) const;

  const std::function<TensorList(const TensorList&)>& f_;
  const CheckedInputs& inputs_;
  const std::vector<Slot>& outputs_;
  double eps_;
};

}  // namespace moegrad::detail
