// SPDX-License-Identifier: Apache-2.0
#include "framework/autograd/engine.h"

#include <memory>
#include <utility>
#include <vector>

#include "framework/autograd/function.h"
#include "framework/autograd/graph_task.h"
#include "framework/tensor/tensor_impl.h"

namespace moegrad {
namespace {

struct Start {
  std::vector<Edge> edges;
  TensorList grads;
};

Start start_of(const TensorList& roots, const TensorList& grads) {
  check(roots.size() == grads.size(), "backward: ", roots.size(), " roots but ", grads.size(),
        " gradients");
  Start start;
  for (std::size_t i = 0; i < roots.size(); ++i) {
    const auto& root = roots[i];
    check(root.requires_grad(), "backward: root ", i,
          " does not require a gradient and has no graph");
    Tensor grad = grads[i];
    if (!grad.defined()) {
      check<ShapeError>(root.numel() == 1,
                        "backward: a gradient is needed for a root of more than one element, got ",
                        root.shape());
      grad = Tensor::ones(root.shape(), arithmetic_dtype(root.dtype()));
    }
    check_gradient(grad, root.shape(), root.dtype(), "backward: gradient of root ", i);
    Edge edge;
    edge.function = root.grad_fn();
    edge.output_index = root.output_index();
    if (!edge.function) edge.leaf = root;
    start.edges.push_back(std::move(edge));
    start.grads.push_back(std::move(grad));
  }
  return start;
}

}  // namespace

void run_backward(const TensorList& roots, const TensorList& grads, bool retain_graph) {
  const NoGradGuard no_grad;
  const SpanGuard phase(SpanKind::kPhase, Lane::kCompute, "backward");
  auto start = start_of(roots, grads);
  GraphTask task(retain_graph);
  task.start(start.edges, std::move(start.grads));
  task.run();
}

WeightBackward backward_to_inputs(const TensorList& roots, const TensorList& grads,
                                  const TensorList& inputs, bool retain_graph) {
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    check(inputs[i].defined() && inputs[i].is_leaf() && inputs[i].requires_grad(),
          "backward_to_inputs: input ", i, " must be a leaf that requires a gradient");
  }
  const NoGradGuard no_grad;
  const SpanGuard phase(SpanKind::kPhase, Lane::kCompute, "backward");
  auto start = start_of(roots, grads);
  auto plan = std::make_unique<WeightBackward::Plan>();
  plan->retain_graph = retain_graph;
  {
    GraphTask task(retain_graph, inputs, *plan);
    task.start(start.edges, std::move(start.grads));
    task.run();
  }
  return WeightBackward(std::move(plan));
}

WeightBackward::WeightBackward(std::unique_ptr<Plan> plan) : plan_(std::move(plan)) {}
WeightBackward::WeightBackward(WeightBackward&&) noexcept = default;
WeightBackward& WeightBackward::operator=(WeightBackward&&) noexcept = default;
WeightBackward::~WeightBackward() = default;

void WeightBackward::run() {
  check(plan_ != nullptr, "WeightBackward: has run already");
  const auto plan = std::move(plan_);
  const NoGradGuard no_grad;
  const SpanGuard phase(SpanKind::kPhase, Lane::kCompute, "backward");
  GraphTask task(plan->retain_graph);
  task.start(*plan);
  task.run();
}

InputGradientSink::InputGradientSink(const Function& function, std::size_t i)
    : task_(GraphTask::current()), function_(&function), i_(i) {
  check(task_ != nullptr, "InputGradientSink: no backward is under way in this thread");
}

void InputGradientSink::operator()(Tensor grad, const GradientPlace& place) const {
  task_->send(*function_, i_, std::move(grad), place);
}

bool keeps_sources(const Function& function, std::size_t i) {
  if (GraphTask::current() == nullptr) return false;
  const auto& input = function.edges().at(i);
  if (input.leaf.defined()) return true;
  // Through views and other Functions of one input.
  const auto* edge = &input;
  while (edge->function != nullptr && edge->function->edges().size() == 1) {
    edge = &edge->function->edges().front();
  }
  const auto& leaf = edge->leaf;
  const auto* const taker = leaf.defined() ? leaf.impl()->leaf_state().accumulator : nullptr;
  check(taker == nullptr || !taker->takes_later(), function.name(), ": input ", i,
        " must be the parameter '", leaf.defined() ? leaf.storage().name() : "",
        "' itself, whose rows have several sources, got the result of ",
        input.function == nullptr ? "" : input.function->name());
  return false;
}

void run_recomputed_backward(const TensorList& roots, const TensorList& grads,
                             const TensorList& inputs) {
  auto* const task = GraphTask::current();
  check(task != nullptr, "run_recomputed_backward: no backward is under way in this thread");
  if (!task->is_first_of_two()) return run_backward(roots, grads, /*retain_graph=*/false);
  TensorList asked = inputs;
  for (auto& leaf : task->captured_inputs()) asked.push_back(std::move(leaf));
  task->leave_for_second_call(backward_to_inputs(roots, grads, asked));
}

void queue_backward_callback(std::function<void()> callback) {
  GraphTask::queue_callback(std::move(callback));
}

bool is_gradient_awaited(const Tensor& leaf) {
  return GraphTask::current() != nullptr && GraphTask::current()->awaits(leaf);
}

bool is_first_of_two_backwards() {
  return GraphTask::current() != nullptr && GraphTask::current()->outermost().is_first_of_two();
}

bool does_gradient_wait(const Tensor& leaf) {
  return GraphTask::current() != nullptr && GraphTask::current()->only_waits(leaf);
}

void compute_waiting_gradients(const Tensor& leaf) {
  if (GraphTask::current() != nullptr) GraphTask::current()->compute_waiting_for(leaf);
}

int backward_micro_batches() {
  return GraphTask::current() == nullptr ? 0 : GraphTask::current()->micro_batches();
}

int backward_parts() { return GraphTask::current() == nullptr ? 0 : GraphTask::current()->parts(); }

}  // namespace moegrad
