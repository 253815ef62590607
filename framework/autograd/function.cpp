// SPDX-License-Identifier: Apache-2.0
#include "framework/autograd/function.h"

#include <algorithm>
#include <string>
#include <utility>

#include "framework/distributed/shard_spec.h"
#include "framework/runtime/call_stack.h"
#include "framework/runtime/thread_state.h"
#include "framework/tensor/tensor_impl.h"

namespace moegrad {
namespace {

// Functions whose destruction is under way in this thread put their edges here; the outermost
// destructor empties it.
thread_local std::vector<std::shared_ptr<Function>>* pending_edges = nullptr;

}  // namespace

MicroBatchPart last_of(MicroBatchPart a, MicroBatchPart b) {
  return {.number = std::max(a.number, b.number), .part = std::max(a.part, b.part)};
}

Function::~Function() {
  std::vector<std::shared_ptr<Function>> own;
  const bool outermost = pending_edges == nullptr;
  if (outermost) pending_edges = &own;
  for (auto& edge : edges_) {
    if (edge.function) pending_edges->push_back(std::move(edge.function));
  }
  if (!outermost) return;
  while (!own.empty()) {
    const auto next = std::move(own.back());
    own.pop_back();
  }
  pending_edges = nullptr;
}

const TensorList& Function::captured() const {
  static const TensorList none;
  return none;
}

InputMask Function::needs() const {
  InputMask mask;
  for (std::size_t i = 0; i < edges_.size(); ++i) {
    if (edges_[i].needs_grad()) mask.set(i);
  }
  return mask;
}

std::int64_t Function::saved_bytes() const {
  std::int64_t bytes = 0;
  for (const auto* saved : saved_) bytes += saved->bytes();
  return bytes;
}

std::int64_t Function::packed_bytes() const {
  std::int64_t bytes = 0;
  for (const auto* saved : saved_) bytes += saved->is_packed() ? saved->bytes() : 0;
  return bytes;
}

double Function::flops() const {
  std::int64_t elements = 0;
  for (const auto& output : outputs_) elements += output.shape.numel();
  return static_cast<double>(elements);
}

void Function::release_saved() {
  for (auto* saved : saved_) saved->release();
}

HookHandle Function::add_output_hook(std::size_t i, std::function<Tensor(const Tensor&)> hook) {
  for (auto& [index, hooks] : output_hooks_) {
    if (index == i) return hooks.add(std::move(hook));
  }
  return output_hooks_.emplace_back(i, HookList<Tensor(const Tensor&)>())
      .second.add(std::move(hook));
}

Tensor Function::run_output_hooks(std::size_t i, Tensor grad) const {
  for (const auto& [index, hooks] : output_hooks_) {
    if (index == i) return hooks.replace(std::move(grad));
  }
  return grad;
}

// Not in the constructor: in apply(std::make_shared<F>(), g(x)) F may be made before g runs.
void Function::begin(bool record) {
  check(outputs_.empty(), name(), ": a Function object can be applied only once");
  recorded_ = record;
  tape_on_ = grad_enabled();
  if (anomaly_detection_enabled()) {
    call_stack_ = std::make_shared<CallStack>(CallStack::capture());
    scope_ = ScopeGuard::current();
  }
  if (!record) return;
  sequence_ = detail::next_sequence();
  micro_batch_ = ThreadState::current().micro_batch;
  scope_ = ScopeGuard::current();
}

void Function::add_edge(const Tensor& input) {
  Edge edge;
  if (input.defined()) {
    edge.shape = input.shape();
    edge.dtype = input.dtype();
    if (input.requires_grad()) {
      edge.function = input.grad_fn();
      edge.output_index = input.output_index();
      detail::check_not_captured(input);
      if (!edge.function) {
        edge.leaf = input;
      } else if (edge.function->sequence() >= sequence_) {
        // It is on another thread's tape. Numbers rise from producer to consumer on every path.
        sequence_ = detail::next_sequence(edge.function->sequence() + 1);
      }
    }
  }
  edges_.push_back(std::move(edge));
}

void Function::mark_output(Tensor& output) {
  check(output.defined(), name(), ": forward must return defined tensors");
  auto& impl = *output.impl();
  outputs_.push_back({impl.shape, impl.dtype});
  if (!holds_reals(impl.dtype)) return;
  impl.requires_grad = true;
  impl.grad_fn = shared_from_this();
  impl.output_index = outputs_.size() - 1;
}

namespace detail {

void check_number(const Function& function, std::size_t inputs) {
  check(inputs <= Function::kMaxInputs, function.name(), ": a Function takes at most ",
        Function::kMaxInputs, " tensor inputs, got ", inputs,
        "; apply it to parts and combine their results");
}

void name_undefined(UndefinedTensorError& error, const Function& function,
                    const TensorList& inputs) {
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].defined()) continue;
    error.append("; input " + std::to_string(i) + " of " + std::string(function.name()) +
                 " was undefined");
  }
}

void name_bfloat16(DtypeError& error, const Function& function, std::string_view what,
                   const TensorList& tensors) {
  constexpr std::string_view kCall = "convert it with ops::cast";
  if (std::string_view(error.what()).find(kCall) != std::string_view::npos) return;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].defined() || tensors[i].dtype() != Dtype::kBFloat16) continue;
    error.append("; " + std::string(what) + std::to_string(i) + " of " +
                 std::string(function.name()) + " is bfloat16: " + std::string(kCall));
    return;
  }
}

void LeafRecorder::note(const Tensor& captured) {
  if (!captured.defined() || !captured.is_leaf() || !captured.requires_grad()) return;
  const std::lock_guard lock(mutex_);
  last_micro_batch_ = last_of(last_micro_batch_, ThreadState::current().micro_batch);
  const bool known =
      std::ranges::any_of(leaves_, [&](const Tensor& leaf) { return leaf.is(captured); });
  if (!known) leaves_.push_back(captured);
}

void check_not_captured(const Tensor& tensor) {
  const auto& function = tensor.grad_fn();
  check(function == nullptr || function->sequence() >= ThreadState::current().body_begin,
        "checkpoint: a tensor that the body captures must be a leaf, got the result of ",
        function == nullptr ? "" : function->name(), "; give it to the body as an input");
}

void check_input(const Function& function, const Tensor& input, std::size_t position) {
  if (!input.defined()) return;
  if (auto* const recorder = ThreadState::current().leaf_recorder) recorder->note(input);
  check_whole(function.name(), input, position);
  check<LayoutError>(input.layout() == Layout::kND || function.reads_nz(position), function.name(),
                     ": input ", position,
                     " must be row-major ND, got FRACTAL_NZ; convert it with nz_to_nd");
}

}  // namespace detail

}  // namespace moegrad
