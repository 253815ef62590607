// SPDX-License-Identifier: Apache-2.0
// The functions of State that a user calls; the hooks are in state.cpp.
#include <algorithm>

#include "framework/runtime/error.h"
#include "fsdp/state.h"

namespace moegrad::fsdp {
namespace {

std::vector<State*> states_of(const std::vector<nn::Module*>& modules, std::string_view setter) {
  std::vector<State*> states;
  for (auto* module : modules) {
    auto* state = module == nullptr ? nullptr : dynamic_cast<State*>(module->extension());
    check<ValueError>(state != nullptr, setter,
                      ": every module must have been passed to fully_shard");
    states.push_back(state);
  }
  return states;
}

}  // namespace

void UnshardHandle::wait() { state_.wait_for_unshard(); }

void State::unshard() {
  issue_unshard(Event::kUnshard);
  wait_for_unshard();
}

UnshardHandle State::unshard_async() {
  issue_unshard(Event::kUnshard);
  return UnshardHandle(*this);
}

void State::reshard() {
  for (const auto& group : groups_) group->reshard();
}

void State::zero_grad() {
  for (const auto& group : groups_) group->zero_grad();
}

void State::to_empty() {
  for (const auto& group : groups_) {
    if (group->is_meta()) group->to_empty();
  }
}

// The own modules' states come first. Each state appears once.
std::vector<State*> State::states_below(bool recurse) {
  std::vector<State*> states = {this};
  if (!recurse) return states;
  for (auto* own : modules_) {
    for (const auto& [path, module] : own->named_modules()) {
      auto* state = dynamic_cast<State*>(module->extension());
      if (state != nullptr && std::ranges::find(states, state) == states.end()) {
        states.push_back(state);
      }
    }
  }
  return states;
}

void State::set_requires_gradient_sync(bool on, bool recurse) {
  for (auto* state : states_below(recurse)) {
    state->requires_gradient_sync_ = state->requires_all_reduce_ = on;
  }
}

void State::set_requires_all_reduce(bool on, bool recurse) {
  for (auto* state : states_below(recurse)) state->requires_all_reduce_ = on;
}

void State::set_reshard_after_forward(bool on, bool recurse) {
  for (auto* state : states_below(recurse)) state->policy_.reshard_after_forward = on;
}

void State::set_reshard_after_backward(bool on, bool recurse) {
  for (auto* state : states_below(recurse)) state->reshard_after_backward_ = on;
}

void State::set_reduce_scatter_unused_params(bool on, bool recurse) {
  for (auto* state : states_below(recurse)) state->reduce_unused_ = on;
}

void State::set_reduce_scatter_max_input_buffers(int buffers, bool recurse) {
  check<ValueError>(buffers >= 1, "set_reduce_scatter_max_input_buffers: at least 1, got ",
                    buffers);
  for (auto* state : states_below(recurse)) {
    state->max_reduce_inputs_ = static_cast<std::size_t>(buffers);
  }
}

void State::set_modules_to_forward_prefetch(const std::vector<nn::Module*>& modules) {
  forward_prefetch_ = states_of(modules, "set_modules_to_forward_prefetch");
  explicit_forward_prefetch_ = true;
}

void State::set_modules_to_backward_prefetch(const std::vector<nn::Module*>& modules) {
  backward_prefetch_ = states_of(modules, "set_modules_to_backward_prefetch");
  explicit_backward_prefetch_ = true;
}

void State::set_observer(const std::shared_ptr<Observer>& observer) {
  for (auto* state : states_below(/*recurse=*/true)) {
    state->observer_ = observer;
    for (const auto& group : state->groups_) group->set_observer(observer);
  }
}

void State::reset_iter_state() {
  check(context_ == nullptr || context_->root == this, "reset_iter_state: '", path_,
        "' is not the root");
  if (context_ == nullptr) return;
  begin_iteration();
  context_->in_backward = false;
  context_->post_forward_order.clear();
  for (auto* state : context_->states) {
    state->entered_ = state->post_backward_done_ = false;
    state->forward_calls_.clear();
    for (const auto& group : state->groups_) {
      group->reducer().discard();
      comm_->remove(*group);
      group->abandon_unsharded();
    }
  }
}

NamedTensors State::get_pending_gradients() {
  NamedTensors pending;
  for (auto* state : states_below(/*recurse=*/true)) {
    for (const auto& group : state->groups_) {
      const auto sums = group->reducer().kept();
      for (std::size_t i = 0; i < sums.size(); ++i) {
        if (sums[i].defined()) pending.push_back({group->params()[i].name, sums[i]});
      }
    }
  }
  return pending;
}

void State::synchronize_gradients() {
  for (auto* state : states_below(/*recurse=*/true)) {
    for (const auto& group : state->groups_) {
      group->reducer().start(/*all_reduce=*/true, state->reduce_unused_, group->name(),
                             context_ ? context_->forwards : 0);
      group->reducer().finish();
    }
  }
}

void share_comm_ctx(const std::vector<State*>& states) {
  check<ValueError>(!states.empty(), "share_comm_ctx: at least one state");
  for (auto* state : states) {
    for (auto* below : state->states_below(/*recurse=*/true)) below->comm_ = states.front()->comm_;
  }
}

}  // namespace moegrad::fsdp
