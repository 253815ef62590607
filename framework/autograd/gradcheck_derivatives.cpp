// SPDX-License-Identifier: Apache-2.0
#include "framework/autograd/gradcheck_derivatives.h"

#include <algorithm>
#include <unordered_set>

#include "framework/autograd/engine.h"
#include "framework/autograd/function.h"
#include "framework/runtime/grad_mode.h"

namespace moegrad::detail {
namespace {

using enum GradcheckFailure;

// Turns the engine's error about a gradient into a failure of the check.
void run(const TensorList& roots, const TensorList& grads) {
  try {
    run_backward(roots, grads, /*retain_graph=*/true);
  } catch (const GradientShapeError& error) {
    gradcheck_fail(kGradientSize, "a gradient has the wrong size: ", error.what());
  } catch (const GradientDtypeError& error) {
    gradcheck_fail(kGradientDtype, "a gradient has the wrong dtype: ", error.what());
  }
}

}  // namespace

RetainedGraph::RetainedGraph(const std::function<TensorList(const TensorList&)>& f,
                             const CheckedInputs& inputs)
    : inputs_(inputs) {
  const GradModeGuard tape_on(true);
  const auto versions = inputs.versions();
  outputs_ = f(inputs.all());
  inputs.check_unmodified(versions);
  check(!outputs_.empty(), "gradcheck: the function must return a tensor");
  std::size_t begin = 0;
  for (std::size_t i = 0; i < outputs_.size(); ++i) {
    check(outputs_[i].defined(), "gradcheck: output ", i, " of the function is undefined");
    slots_.push_back({i, outputs_[i].shape(), outputs_[i].dtype(), begin});
    begin = slots_.back().end();
  }
  set_other_leaves_aside();
}

RetainedGraph::~RetainedGraph() {
  for (const auto& [leaf, grad] : other_leaves_) leaf.set_grad(grad);
}

void RetainedGraph::set_other_leaves_aside() {
  std::unordered_set<const void*> seen;
  for (const auto& slot : inputs_.slots()) seen.insert(inputs_.tensor(slot).impl().get());
  std::vector<const Function*> stack;
  const auto push = [&](const std::shared_ptr<Function>& function) {
    if (function && seen.insert(function.get()).second) stack.push_back(function.get());
  };
  const auto add_leaf = [&](const Tensor& leaf) {
    if (!leaf.defined() || !seen.insert(leaf.impl().get()).second) return;
    other_leaves_.emplace_back(leaf, leaf.grad());
    leaf.set_grad(Tensor());
  };
  for (const auto& output : outputs_) {
    push(output.grad_fn());
    if (output.is_leaf() && output.requires_grad()) add_leaf(output);
  }
  while (!stack.empty()) {
    const auto* function = stack.back();
    stack.pop_back();
    functions_.push_back(function);
    for (const auto& edge : function->edges()) {
      push(edge.function);
      add_leaf(edge.leaf);
    }
  }
}

bool RetainedGraph::runs_hooks() const {
  return std::ranges::any_of(functions_, [](const Function* function) {
    const auto* scope = function->scope().get();
    while (scope != nullptr && !scope->on_enter && !scope->on_exit) scope = scope->parent.get();
    return scope != nullptr;
  });
}

bool RetainedGraph::has_modified() const {
  return std::ranges::any_of(functions_, [](const Function* function) {
    return std::ranges::any_of(function->saved(), &SavedTensor::is_modified);
  });
}

std::vector<double> RetainedGraph::backward(const TensorList& cotangents) const {
  TensorList roots, grads;
  std::vector<std::uint64_t> grad_versions;
  for (std::size_t i = 0; i < cotangents.size(); ++i) {
    if (!cotangents[i].defined()) continue;
    roots.push_back(outputs_[i]);
    grads.push_back(cotangents[i]);
    grad_versions.push_back(cotangents[i].storage().version());
  }
  inputs_.clear_grads();
  const auto versions = inputs_.versions();
  run(roots, grads);
  inputs_.check_unmodified(versions);
  for (std::size_t i = 0; i < grads.size(); ++i) {
    // Other Functions may read the same gradient: an op such as add passes it on unchanged.
    if (grads[i].storage().version() == grad_versions[i]) continue;
    gradcheck_fail(kGradOutputModified, "grad_output must not be modified in place by backward");
  }
  std::vector<double> gradients;
  for (const auto& slot : inputs_.slots()) {
    const Tensor grad = inputs_.tensor(slot).grad();
    if (!grad.defined()) {
      gradients.resize(slot.end(), 0.0);
      continue;
    }
    // The engine has not checked what a Function that recomputes() passes on.
    if (!(grad.shape() == slot.shape)) {
      gradcheck_fail(kGradientSize, "a gradient has the wrong size: that of input ", slot.index,
                     " must be ", slot.shape, ", got ", grad.shape());
    }
    if (grad.dtype() != slot.dtype) {
      gradcheck_fail(kGradientDtype, "a gradient has the wrong dtype: that of input ", slot.index,
                     " must be ", slot.dtype, ", got ", grad.dtype());
    }
    const auto elements = to_doubles(grad);
    gradients.insert(gradients.end(), elements.begin(), elements.end());
  }
  return gradients;
}

std::vector<double> CentralDifferences::by_element(const Slot& input, std::size_t element) const {
  std::vector<double> direction{1.0};
  auto derivatives = along(input, element, direction);
  for (auto& derivative : derivatives) derivative /= direction[0];
  return derivatives;
}

std::vector<double> CentralDifferences::along(const Slot& input, std::size_t first,
                                              std::vector<double>& direction) const {
  MovedElements elements(inputs_.tensor(input), first, direction.size());
  elements.move(eps_, direction);
  auto derivatives = call(input);
  std::vector<double> taken(direction.size());
  for (std::size_t i = 0; i < taken.size(); ++i) taken[i] = elements.get(i);
  elements.move(-eps_, direction);
  const auto below = call(input);
  for (std::size_t i = 0; i < derivatives.size(); ++i) {
    // An infinity that stays infinite, such as a mask's, has derivative zero.
    const bool same = derivatives[i] == below[i];
    derivatives[i] = same ? 0.0 : (derivatives[i] - below[i]) / (2 * eps_);
  }
  for (std::size_t i = 0; i < taken.size(); ++i) {
    taken[i] = (taken[i] - elements.get(i)) / (2 * eps_);
    // An element too large for eps to move must not drop out of both sides of the comparison.
    if (taken[i] != 0) direction[i] = taken[i];
  }
  return derivatives;
}

std::vector<double> CentralDifferences::call(const Slot& moved) const {
  const NoGradGuard no_grad;
  const auto versions = inputs_.versions();
  const auto outputs = f_(inputs_.all());
  inputs_.check_unmodified(versions);
  if (outputs.size() != outputs_.size()) {
    gradcheck_fail(kOutputShapeChanges, "the function must return the same ", outputs_.size(),
                   " outputs when input ", moved.index, " moves by eps = ", eps_, ", got ",
                   outputs.size());
  }
  std::vector<double> values;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const auto refuse = [&](GradcheckFailure kind, const auto& expected, const auto& got) {
      gradcheck_fail(kind, "output ", i, " must remain ", expected, " when input ", moved.index,
                     " moves by eps = ", eps_, ", got ", got);
    };
    const Slot& before = outputs_[i];
    const Tensor& now = outputs[i];
    if (!(now.shape() == before.shape)) refuse(kOutputShapeChanges, before.shape, now.shape());
    if (now.dtype() != before.dtype) refuse(kOutputDtypeChanges, before.dtype, now.dtype());
    const auto elements = to_doubles(now);
    values.insert(values.end(), elements.begin(), elements.end());
  }
  return values;
}

}  // namespace moegrad::detail
