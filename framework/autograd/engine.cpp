// SPDX-License-Identifier: Apache-2.0
#include "framework/autograd/engine.h"

#include <memory>
#include <utility>
#include <vector>

#include "framework/autograd/function.h"
#include "framework/autograd/graph_task.h"

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
      grad = Tensor::ones(root.shape(), root.dtype());
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

std::function<void(Tensor)> input_gradient_sink(const Function& function, std::size_t i) {
  check(GraphTask::current() != nullptr,
        "input_gradient_sink: no backward is under way in this thread");
  return GraphTask::current()->sink(function, i);
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

int backward_micro_batches() {
  return GraphTask::current() == nullptr ? 0 : GraphTask::current()->micro_batches();
}

}  // namespace moegrad
