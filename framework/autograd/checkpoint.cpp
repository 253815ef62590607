// SPDX-License-Identifier: Apache-2.0
#include "framework/autograd/checkpoint.h"

#include <algorithm>
#include <deque>
#include <set>
#include <utility>

#include "framework/autograd/dropout_ids.h"
#include "framework/autograd/engine.h"
#include "framework/autograd/function.h"
#include "framework/autograd/micro_batch.h"
#include "framework/runtime/thread_state.h"
#include "framework/tensor/fill.h"
#include "framework/tensor/tensor_impl.h"

namespace moegrad {
namespace {

using Body = std::function<TensorList(const TensorList&)>;

class FirstRunGuard {
 public:
  FirstRunGuard() : outer_(std::exchange(ThreadState::current().checkpoint_forward, true)) {}
  ~FirstRunGuard() { ThreadState::current().checkpoint_forward = outer_; }
  FirstRunGuard(const FirstRunGuard&) = delete;
  FirstRunGuard& operator=(const FirstRunGuard&) = delete;

 private:
  bool outer_;
};

// The body runs again, with the tape on.
class BodyGuard {
 public:
  BodyGuard() : outer_(std::exchange(ThreadState::current().body_begin, detail::next_sequence())) {}
  ~BodyGuard() { ThreadState::current().body_begin = outer_; }
  BodyGuard(const BodyGuard&) = delete;
  BodyGuard& operator=(const BodyGuard&) = delete;

 private:
  std::uint64_t outer_;
};

// Leaves that pass their gradients on while this object lives.
struct RecomputedInputs {
  RecomputedInputs() = default;
  ~RecomputedInputs() {
    for (const auto& tensor : tensors) {
      if (tensor.defined()) tensor.impl()->leaf_state().sink = nullptr;
    }
  }
  RecomputedInputs(const RecomputedInputs&) = delete;
  RecomputedInputs& operator=(const RecomputedInputs&) = delete;

  void send_grad(std::size_t i, std::function<void(Tensor)> sink) {
    tensors[i].set_requires_grad(true);
    tensors[i].impl()->leaf_state().sink = [this, i, sink = std::move(sink)](Tensor grad) {
      reached.insert(i);
      sink(std::move(grad));
    };
  }

  TensorList tensors;
  std::set<std::size_t> reached;
};

class Checkpoint final : public Function {
 public:
  explicit Checkpoint(Body body) : body_(std::move(body)) {}

  std::string_view name() const override { return "checkpoint"; }
  bool reads_nz(std::size_t /*i*/) const override { return true; }
  bool recomputes() const override { return true; }
  const TensorList& captured() const override { return captured_; }
  int last_micro_batch() const override { return last_micro_batch_; }

  TensorList forward(const TensorList& inputs) {
    for (const auto& input : inputs) inputs_.emplace_back(*this) = input;
    dropout_ids_ = DropoutIdsGuard::current();
    if (dropout_ids_) token_ids_ = dropout_ids_->token_ids;
    const FirstRunGuard guard;
    detail::LeafRecorder recorder(captured_);
    TensorList outputs = body_(inputs);
    for (const auto& output : outputs) recorder.note(output);
    last_micro_batch_ = std::max(micro_batch(), recorder.last_micro_batch());
    // The body may return a tensor that others hold; this Function's output is a tensor of its own.
    for (auto& output : outputs) output = output.detach();
    return outputs;
  }

  TensorList backward(const TensorList& grads, InputMask needs) override {
    const ScopeRestoreGuard scope_guard(scope());
    const MicroBatchGuard micro_batch_guard(micro_batch());
    static_cast<void>(token_ids_.unpack());  // an error if they have been written to since
    const DropoutIdsGuard dropout_guard(dropout_ids_);
    RecomputedInputs inputs;
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      const Tensor saved = inputs_[i].unpack();
      inputs.tensors.push_back(saved.defined() ? saved.detach() : Tensor());
      if (needs[i]) inputs.send_grad(i, input_gradient_sink(*this, i));
    }
    recompute(inputs.tensors, grads);
    TensorList input_grads(inputs_.size());
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      if (needs[i] && !inputs.reached.contains(i)) input_grads[i] = zeros_like(inputs.tensors[i]);
    }
    return input_grads;
  }

 private:
  void recompute(const TensorList& inputs, const TensorList& grads) const {
    const GradModeGuard tape_on(true);
    TensorList outputs = run_again(inputs);
    check(outputs.size() == grads.size(), "checkpoint: body must return the same ", grads.size(),
          " tensors when run again, got ", outputs.size());
    TensorList roots, root_grads;
    for (std::size_t i = 0; i < grads.size(); ++i) {
      if (!grads[i].defined() || !outputs[i].requires_grad()) continue;
      roots.push_back(std::move(outputs[i]));
      root_grads.push_back(grads[i]);
    }
    outputs.clear();
    TensorList wanted;
    for (const auto& input : inputs) {
      if (input.defined() && input.requires_grad()) wanted.push_back(input);
    }
    run_recomputed_backward(roots, root_grads, wanted);
  }

  TensorList run_again(const TensorList& inputs) const {
    const BodyGuard body;
    TensorList outputs = body_(inputs);
    for (const auto& output : outputs) {
      if (output.defined()) detail::check_not_captured(output);
    }
    return outputs;
  }

  Body body_;
  TensorList captured_;
  int last_micro_batch_ = 0;
  std::shared_ptr<const DropoutIds> dropout_ids_;
  SavedTensor token_ids_{*this};    // of these
  std::deque<SavedTensor> inputs_;  // a deque: a SavedTensor cannot be moved
};

}  // namespace

bool in_checkpoint_forward() { return ThreadState::current().checkpoint_forward; }

TensorList checkpoint(Body body, const TensorList& inputs) {
  if (!grad_enabled()) return body(inputs);
  return apply<Checkpoint>(made_with(std::move(body)), inputs);
}

}  // namespace moegrad
