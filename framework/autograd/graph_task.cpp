// SPDX-License-Identifier: Apache-2.0
#include "framework/autograd/graph_task.h"

#include <algorithm>
#include <iterator>

#include "framework/runtime/log.h"
#include "framework/runtime/thread_state.h"
#include "framework/tensor/fill.h"
#include "framework/tensor/tensor_impl.h"

namespace moegrad {
namespace {

void accumulate(Tensor& sum, Tensor grad) {
  if (!sum.defined()) {
    sum = std::move(grad);
    return;
  }
  if (sum.dtype() == Dtype::kBFloat16) {
    sum = to_dtype(sum, Dtype::kFloat32);
  } else if (!owns_its_bytes(sum)) {
    sum = clone(sum);
  }
  if (!grad.is_contiguous()) grad = clone(grad);
  add_(sum, grad);
}

bool captures(const Function& function, const Tensor& leaf) {
  return std::ranges::any_of(function.captured(),
                             [&](const Tensor& captured) { return captured.is(leaf); });
}

// What backward has returned for the inputs in `needs`; the others become undefined.
void check_input_gradients(const Function& function, InputMask needs, InputMask sent,
                           TensorList& input_grads) {
  const auto& edges = function.edges();
  check(input_grads.size() == edges.size(), function.name(), ": backward must return ",
        edges.size(), " gradients, got ", input_grads.size());
  for (std::size_t i = 0; i < edges.size(); ++i) {
    if (!needs[i]) {
      input_grads[i] = Tensor();
      continue;
    }
    check(input_grads[i].defined() || sent[i], function.name(),
          ": backward returned no gradient for input ", i, ", which needs one");
    if (input_grads[i].defined()) {
      check_gradient(input_grads[i], edges[i].shape, edges[i].dtype, function.name(),
                     ": gradient of input ", i);
    }
    const auto& leaf = edges[i].leaf;
    check<DtypeError>(!leaf.defined() || leaf.dtype() == edges[i].dtype, function.name(),
                      ": leaf '", leaf.defined() ? leaf.storage().name() : "",
                      "' must have the dtype that it had in forward, ", edges[i].dtype, ", got ",
                      leaf.defined() ? leaf.dtype() : edges[i].dtype,
                      "; convert a module before forward or after backward");
  }
}

}  // namespace

thread_local GraphTask* GraphTask::current_ = nullptr;

GraphTask::GraphTask(bool retain_graph)
    : retain_graph_(retain_graph),
      outer_(std::exchange(current_, this)),
      outermost_(outer_ != nullptr ? outer_->outermost_ : *this),
      recomputed_by_(outer_ != nullptr && outer_->recomputing_ != nullptr ? outer_ : nullptr),
      root_(recomputed_by_ != nullptr ? recomputed_by_->root_ : *this),
      queue_(ThreadState::current().weight_gradients) {}

GraphTask::~GraphTask() {
  current_ = outer_;
  if (queue_ == nullptr) return;
  // What is left here, an exception has left.
  std::erase_if(queue_->list, [this](const auto& waiting) { return waiting.backward == this; });
}

GraphTask::GraphTask(bool retain_graph, const TensorList& inputs, WeightBackward::Plan& plan)
    : GraphTask(retain_graph) {
  plan_ = &plan;
  for (const auto& input : inputs) inputs_.insert(input.impl().get());
}

void GraphTask::start(const std::vector<Edge>& roots, TensorList grads) {
  std::vector<const Edge*> reached;
  for (const auto& root : roots) reached.push_back(&root);
  discover(reached);
  for (std::size_t i = 0; i < roots.size(); ++i) {
    if (wants(roots[i])) {
      add(roots[i], std::move(grads[i]), {});
      finish(roots[i]);
    } else {
      plan_->roots.emplace_back(roots[i], std::move(grads[i]));
    }
  }
}

void GraphTask::start(WeightBackward::Plan& plan) {
  std::vector<const Edge*> reached;
  for (const auto& [root, grad] : plan.roots) reached.push_back(&root);
  for (const auto& deferred : plan.functions) {
    last_ = last_of(last_, deferred.function->last_micro_batch());
    const auto& edges = deferred.function->edges();
    for (std::size_t i = 0; i < edges.size(); ++i) {
      if (deferred.left_out[i]) reached.push_back(&edges[i]);
    }
    for (const auto& leaf : deferred.captured) ++leaves_[leaf.impl().get()].edges;
  }
  discover(reached);
  for (auto& [root, grad] : plan.roots) {
    add(root, std::move(grad), {});
    finish(root);
  }
  for (auto& deferred : plan.functions) {
    const auto& function = deferred.function;
    ready_.push({function->sequence(), function, nullptr});
    deferred_.emplace(function.get(), &deferred);
  }
}

void GraphTask::run() {
  while (!ready_.empty()) {
    const Entry entry = ready_.top();
    ready_.pop();
    try {
      run(entry);
    } catch (Error& error) {
      const auto& scope = entry.scope ? entry.scope : entry.function->scope();
      if (scope) error.add_module(scope->path());
      throw;
    }
  }
  if (&root_ == this) compute_all_waiting();
  if (outer_ != nullptr) return;
  // A callback may queue another one.
  for (std::size_t i = 0; i < callbacks_.size(); ++i) std::exchange(callbacks_[i], nullptr)();
}

void GraphTask::run(const Entry& entry) {
  if (entry.scope) {
    if (entry.scope->on_exit) entry.scope->on_exit();
    entered_.erase(entry.scope.get());
    return;
  }
  enter(entry.function->scope());
  const auto deferred = deferred_.find(entry.function.get());
  if (deferred != deferred_.end()) {
    resume(*deferred->second);
  } else {
    execute(*entry.function);
  }
}

void GraphTask::send(const Function& function, std::size_t i, Tensor grad,
                     const GradientPlace& place) {
  if (!function.recomputes()) {
    TensorList sent(function.edges().size());
    sent[i] = grad;
    InputMask needs;
    needs.set(i);
    check_input_gradients(function, needs, needs, sent);
    if (anomaly_detection_enabled()) {
      detail::check_backward_is_finite(function, *grads_of_running_, sent);
    }
  }
  sent_.set(i);
  pass(function, i, std::move(grad), place);
}

void GraphTask::queue_callback(std::function<void()> callback) {
  check(current_ != nullptr, "queue_backward_callback: no backward is under way in this thread");
  current_->outermost_.callbacks_.push_back(std::move(callback));
}

void GraphTask::discover(const std::vector<const Edge*>& roots) {
  std::unordered_set<const Function*> seen;
  std::vector<const Function*> functions;
  const auto visit = [&](const Edge& edge) {
    if (edge.function && seen.insert(edge.function.get()).second) {
      functions.push_back(edge.function.get());
    }
  };
  for (const auto* root : roots) visit(*root);
  for (std::size_t next = 0; next < functions.size(); ++next) {
    for (const auto& edge : functions[next]->edges()) visit(edge);
  }
  for (const auto* function : functions) {
    last_ = last_of(last_, function->last_micro_batch());
  }
  if (is_first_of_two()) {
    std::ranges::sort(functions, {}, &Function::sequence);  // producers first
    for (const auto* function : functions) {
      if (wanted(*function).any() || captures_input(*function)) leads_to_inputs_.insert(function);
    }
  }
  const auto count = [&](const Tensor& leaf) {
    if (leaf.defined()) ++leaves_[leaf.impl().get()].edges;
  };
  for (const auto* root : roots) {
    if (wants(*root)) count(root->leaf);
  }
  for (const auto* function : functions) {
    if (is_first_of_two() && !leads_to_inputs_.contains(function)) continue;
    for (const auto& edge : function->edges()) count(edge.leaf);
    for (const auto& leaf : function->captured()) count(leaf);
  }
}

bool GraphTask::captures_input(const Function& function) const {
  return std::ranges::any_of(function.captured(),
                             [this](const Tensor& leaf) { return is_input(leaf); });
}

TensorList GraphTask::captured_inputs() const {
  TensorList captured;
  std::ranges::copy_if(recomputing_->captured(), std::back_inserter(captured),
                       [this](const Tensor& leaf) { return is_input(leaf); });
  return captured;
}

GraphTask& GraphTask::task_of(const Tensor& leaf) {
  auto* found = this;
  for (auto* task = recomputed_by_; task != nullptr; task = task->recomputed_by_) {
    const auto pending = task->leaves_.find(leaf.impl().get());
    if (pending != task->leaves_.end() && pending->second.edges > 0) found = task;
  }
  return *found;
}

bool GraphTask::wants(const Edge& edge) const {
  if (!edge.needs_grad() || !is_first_of_two()) return edge.needs_grad();
  return edge.leaf.defined() ? inputs_.contains(edge.leaf.impl().get())
                             : leads_to_inputs_.contains(edge.function.get());
}

InputMask GraphTask::wanted(const Function& function) const {
  InputMask mask;
  for (std::size_t i = 0; i < function.edges().size(); ++i) {
    if (wants(function.edges()[i])) mask.set(i);
  }
  return mask;
}

std::int64_t GraphTask::edges_to_come(const Tensor& leaf) const {
  std::int64_t edges = 0;
  for (const auto* task = this; task != nullptr; task = task->recomputed_by_) {
    const auto pending = task->leaves_.find(leaf.impl().get());
    if (pending == task->leaves_.end()) continue;
    edges += pending->second.edges;
    // A Function that recomputes brings what its inner backward, which is next, brings.
    if (task->recomputing_ != nullptr && captures(*task->recomputing_, leaf)) --edges;
  }
  return edges;
}

void GraphTask::add(const Edge& edge, Tensor grad, const GradientPlace& place) {
  if (edge.leaf.defined()) {
    add_to_leaf(edge.leaf, std::move(grad), place);
    return;
  }
  auto [position, inserted] = grads_.try_emplace(edge.function.get());
  if (inserted) {
    position->second.resize(edge.function->outputs().size());
    ready_.push({edge.function->sequence(), edge.function, nullptr});
  }
  accumulate(position->second[edge.output_index], std::move(grad));
}

void GraphTask::add_to_leaf(const Tensor& leaf, Tensor grad, GradientPlace place) {
  if (!leaf.requires_grad()) return;  // it has been frozen since forward
  if (grad.dtype() == Dtype::kBFloat16) grad = to_dtype(grad, Dtype::kFloat32);
  if (!root_.late_) compute_waiting_for(leaf);
  place.last_use = place.last_use && edges_to_come(leaf) <= 1;
  auto& pending = task_of(leaf).pending(leaf);
  pending.reached = true;
  accumulator_of(leaf, pending).add(std::move(grad), place);
}

GradientAccumulator& GraphTask::accumulator_of(const Tensor& leaf, PendingLeaf& pending) const {
  if (auto* const own = leaf.impl()->leaf_state().accumulator) return *own;
  if (!pending.add_to_grad) pending.add_to_grad = std::make_unique<AddToGrad>(leaf);
  return *pending.add_to_grad;
}

void GraphTask::finish(const Tensor& leaf) {
  auto& pending_leaf = task_of(leaf).pending(leaf);
  --pending(leaf).edges;
  complete_if_last(leaf, pending_leaf);
}

void GraphTask::complete_if_last(const Tensor& leaf, PendingLeaf& pending) const {
  if (awaits(leaf) || !std::exchange(pending.reached, false)) return;
  accumulator_of(leaf, pending).complete();
}

// See Note [Pre- and post-backward entries].
void GraphTask::enter(const std::shared_ptr<const Scope>& scope) {
  if (!scope) return;
  for (const auto* task = this; task != nullptr; task = task->outer_) {
    if (task->entered_.contains(scope.get())) return;
  }
  enter(scope->parent);
  entered_.try_emplace(scope.get(), SpanKind::kModule, Lane::kCompute, "backward ",
                       scope->display_path());
  ready_.push({scope->begin, nullptr, scope});
  if (log_enabled(LogLevel::kDebug)) {
    log(LogLevel::kDebug, "backward " + std::string(scope->display_path()));
  }
  if (scope->on_enter) scope->on_enter();
}

void GraphTask::execute(Function& function) {
  TensorList grads = complete_gradients(function);
  const auto needs = wanted(function);
  // A Function that recomputes runs once: it must not compute gradients of captured leaves again.
  const auto asked = function.recomputes() ? function.needs() : needs;
  const auto later = may_wait(function, asked);
  left_input_grads_.clear();
  left_inner_.clear();
  recomputing_ = function.recomputes() ? &function : nullptr;
  TensorList input_grads = gradients_of_inputs(function, grads, asked.without(later));
  recomputing_ = nullptr;
  const auto left_out = function.needs().without(needs);
  if (is_first_of_two() && (left_out.any() || !left_inner_.empty())) {
    if (function.recomputes()) grads.clear();
    plan_->functions.push_back({.function = function.shared_from_this(),
                                .left_out = left_out,
                                .grads = std::move(grads),
                                .input_grads = {},
                                .inner = std::exchange(left_inner_, {}),
                                .captured = {}});
    std::ranges::copy_if(function.captured(), std::back_inserter(plan_->functions.back().captured),
                         [this](const Tensor& leaf) { return !is_input(leaf); });
  } else {
    put_off(function, later, grads);
  }
  grads.clear();
  pass_all(function, asked, std::move(input_grads));
  for (const auto& leaf : function.captured()) finish(leaf);
  for (std::size_t i = 0; i < function.edges().size(); ++i) {
    if (left_out[i]) finish(function.edges()[i]);
  }
  if (!left_input_grads_.empty()) {
    plan_->functions.back().input_grads = std::exchange(left_input_grads_, {});
  }
}

void GraphTask::resume(Deferred& deferred) {
  auto& function = *deferred.function;
  if (function.recomputes()) {
    recomputing_ = &function;
    for (auto& inner : std::exchange(deferred.inner, {})) inner.run();
    recomputing_ = nullptr;
    for (auto& [i, grad, place] : std::exchange(deferred.input_grads, {})) {
      add(function.edges()[i], std::move(grad), place);
    }
    release(function);
    for (std::size_t i = 0; i < function.edges().size(); ++i) {
      if (deferred.left_out[i]) finish(function.edges()[i]);
    }
    for (const auto& leaf : deferred.captured) finish(leaf);
  } else {
    const auto later = may_wait(function, deferred.left_out);
    TensorList input_grads =
        gradients_of_inputs(function, deferred.grads, deferred.left_out.without(later));
    put_off(function, later, deferred.grads);
    deferred.grads.clear();
    pass_all(function, deferred.left_out, std::move(input_grads));
  }
}

void GraphTask::release(Function& function) const {
  if (!retain_graph_) function.release_saved();
}

TensorList GraphTask::gradients_of_inputs(Function& function, const TensorList& grads,
                                          InputMask needs) {
  if (!needs.any() && !function.recomputes()) return TensorList(function.edges().size());
  const auto outer_sent = std::exchange(sent_, InputMask());
  const auto* const outer_grads = std::exchange(grads_of_running_, &grads);
  TensorList input_grads;
  {
    const SpanGuard span(SpanKind::kFunction, Lane::kCompute, "backward ", function.name());
    try {
      input_grads = function.backward(grads, needs);
    } catch (UndefinedTensorError& error) {
      error.append("; in the backward of " + std::string(function.name()));
      throw;
    } catch (DtypeError& error) {
      detail::name_bfloat16(error, function, "the gradient of output ", grads);
      throw;
    }
  }
  check_input_gradients(function, needs, sent_, input_grads);
  if (anomaly_detection_enabled()) detail::check_backward_is_finite(function, grads, input_grads);
  sent_ = outer_sent;
  grads_of_running_ = outer_grads;
  return input_grads;
}

TensorList GraphTask::complete_gradients(const Function& function) {
  TensorList grads = std::move(grads_.extract(&function).mapped());
  for (std::size_t i = 0; i < grads.size(); ++i) {
    const auto& output = function.outputs()[i];
    if (!grads[i].defined()) {
      if (!holds_reals(output.dtype) || function.recomputes()) continue;
      grads[i] = Tensor::zeros(output.shape, output.dtype);
    } else {
      const bool narrow = output.dtype == Dtype::kBFloat16 && !function.takes_wide_gradients();
      const auto rounded = [&](Tensor grad) {
        const bool wide = narrow && grad.dtype() == Dtype::kFloat32;
        return wide ? to_dtype(grad, output.dtype) : grad;
      };
      grads[i] = function.run_output_hooks(i, rounded(std::move(grads[i])));
      check_gradient(grads[i], output.shape, output.dtype, function.name(),
                     ": a hook's gradient of output ", i);
      grads[i] = rounded(std::move(grads[i]));
    }
  }
  return grads;
}

void GraphTask::pass_all(const Function& function, InputMask asked, TensorList input_grads) {
  for (std::size_t i = 0; i < input_grads.size(); ++i) {
    const GradientPlace place = {.use = function.micro_batch().use};
    if (input_grads[i].defined()) pass(function, i, std::move(input_grads[i]), place);
    if (asked[i] && wants(function.edges()[i])) finish(function.edges()[i]);
  }
}

void GraphTask::pass(const Function& function, std::size_t i, Tensor grad, GradientPlace place) {
  const auto& edge = function.edges()[i];
  place.micro_batch = function.micro_batch().number;
  place.part = function.micro_batch().part;
  // What a Function recomputes may have uses of its own.
  if (!function.recomputes()) place.use = function.micro_batch().use;
  if (wants(edge)) {
    add(edge, std::move(grad), place);
  } else {
    left_input_grads_.push_back({i, std::move(grad), place});
  }
}

}  // namespace moegrad
