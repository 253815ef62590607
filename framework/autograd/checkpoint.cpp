// SPDX-License-Identifier: Apache-2.0
#include "framework/autograd/checkpoint.h"

#include <algorithm>
#include <deque>
#include <map>
#include <utility>

#include "framework/autograd/dropout_ids.h"
#include "framework/autograd/engine.h"
#include "framework/autograd/function.h"
#include "framework/runtime/thread_state.h"
#include "framework/tensor/fill.h"
#include "framework/tensor/tensor_impl.h"

namespace moegrad {
namespace {

using Body = std::function<TensorList(const TensorList&)>;

// An input of the body that passes its gradients on, as they come, while this object lives.
class PassedOn final : public GradientAccumulator {
 public:
  PassedOn(Tensor& input, InputGradientSink sink) : input_(input), sink_(sink) {
    input_.set_requires_grad(true);
    input_.impl()->leaf_state().accumulator = this;
  }
  ~PassedOn() override { input_.impl()->leaf_state().accumulator = nullptr; }
  PassedOn(const PassedOn&) = delete;
  PassedOn& operator=(const PassedOn&) = delete;

  void add(Tensor grad, const GradientPlace& place) override {
    reached_ = true;
    sink_(std::move(grad), place);
  }
  bool takes_later() const override { return false; }  // it ends with the inner backward
  bool reached() const { return reached_; }

 private:
  Tensor input_;
  InputGradientSink sink_;
  bool reached_ = false;
};

class Checkpoint final : public Function {
 public:
  explicit Checkpoint(Body body) : body_(std::move(body)) {}

  std::string_view name() const override { return "checkpoint"; }
  bool reads_nz(std::size_t /*i*/) const override { return true; }
  bool takes_wide_gradients() const override { return true; }
  bool recomputes() const override { return true; }
  const TensorList& captured() const override { return captured_; }
  MicroBatchPart last_micro_batch() const override { return last_micro_batch_; }

  TensorList forward(const TensorList& inputs) {
    for (const auto& input : inputs) inputs_.emplace_back(*this) = input;
    dropout_ids_ = DropoutIdsGuard::current();
    if (dropout_ids_) token_ids_ = dropout_ids_->token_ids;
    const ThreadValueGuard<&ThreadState::checkpoint_forward> first_run(true);
    detail::LeafRecorder recorder(captured_);
    TensorList outputs = body_(inputs);
    for (const auto& output : outputs) recorder.note(output);
    last_micro_batch_ = last_of(micro_batch(), recorder.last_micro_batch());
    // The body may return a tensor that others hold; this Function's output is a tensor of its own.
    for (auto& output : outputs) output = output.detach();
    return outputs;
  }

  TensorList backward(const TensorList& grads, InputMask needs) override {
    const ScopeRestoreGuard scope_guard(scope());
    const ThreadValueGuard<&ThreadState::micro_batch> micro_batch_guard(micro_batch());
    static_cast<void>(token_ids_.unpack());  // an error if they have been written to since
    const DropoutIdsGuard dropout_guard(dropout_ids_);
    TensorList inputs;
    std::map<std::size_t, PassedOn> passed_on;
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      const Tensor saved = inputs_[i].unpack();
      inputs.push_back(saved.defined() ? saved.detach() : Tensor());
      if (needs[i]) passed_on.try_emplace(i, inputs[i], InputGradientSink(*this, i));
    }
    recompute(inputs, grads);
    TensorList input_grads(inputs_.size());
    for (const auto& [i, input] : passed_on) {
      if (!input.reached()) input_grads[i] = zeros_like(inputs[i]);
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

  // The body runs again, with the tape on.
  TensorList run_again(const TensorList& inputs) const {
    const ThreadValueGuard<&ThreadState::body_begin> begin(detail::next_sequence());
    TensorList outputs = body_(inputs);
    for (const auto& output : outputs) {
      if (output.defined()) detail::check_not_captured(output);
    }
    return outputs;
  }

  Body body_;
  TensorList captured_;
  MicroBatchPart last_micro_batch_;
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
