// SPDX-License-Identifier: Apache-2.0
#include "fsdp/state.h"

#include <algorithm>

#include "framework/autograd/engine.h"
#include "framework/autograd/grad_mode.h"
#include "framework/runtime/error.h"
#include "framework/runtime/log.h"

namespace moegrad::fsdp {
namespace {

std::vector<State*> states_of(const std::vector<nn::Module*>& modules, std::string_view setter) {
  std::vector<State*> states;
  for (auto* module : modules) {
    auto* state = dynamic_cast<State*>(module->extension());
    check<ValueError>(state != nullptr, setter,
                      ": every module must have been passed to fully_shard");
    states.push_back(state);
  }
  return states;
}

}  // namespace

State::State(nn::Module& module, std::unique_ptr<ParamGroup> group, const Policy& policy)
    : module_(module), group_(std::move(group)), policy_(policy) {
  module.register_forward_pre_hook([this](nn::Module&) { pre_forward(); });
  module.register_forward_hook([this](nn::Module&) { post_forward(); });
  module.register_backward_pre_hook([this](nn::Module&) { pre_backward(); });
  module.register_backward_hook([this](nn::Module&) { post_backward(); });
}

// The first state to run is the root of all below it.
void State::initialize_as_root() {
  context_ = std::make_shared<Context>();
  context_->root = this;
  for (const auto& [path, module] : module_.named_modules()) {
    auto* state = dynamic_cast<State*>(module->extension());
    if (state == nullptr) continue;
    check(state == this || state->context_ == nullptr, "fully_shard: module '", path,
          "' ran forward before its root did");
    state->context_ = context_;
    context_->states.push_back(state);
    if (state->group_) state->group_->set_name(path);
  }
}

bool State::reshards_after_forward() const {
  // Without the tape no backward will come to free the parameters, and a step may follow.
  if (!grad_enabled()) return true;
  return policy_.reshard_after_forward.value_or(context_->root != this);
}

void State::pre_forward() {
  if (!context_) initialize_as_root();
  if (context_->root == this && !context_->in_backward) context_->forward_order.clear();
  unshard();
  if (context_->in_backward) return;
  context_->forward_order.push_back(this);
  prefetch_forward();
}

void State::prefetch_forward() {
  if (explicit_forward_prefetch_) {
    for (auto* state : forward_prefetch_) state->prefetch();
    return;
  }
  const auto& last = context_->last_forward_order;
  const auto position = context_->forward_order.size() - 1;
  if (position >= last.size() || last[position] != this) return;
  const auto end =
      std::min(last.size(), position + 1 + static_cast<std::size_t>(policy_.forward_prefetch));
  for (auto next = position + 1; next < end; ++next) last[next]->prefetch();
}

void State::post_forward() {
  if (context_->in_backward) return;
  if (grad_enabled()) {
    post_forward_indices_.push_back(context_->post_forward_order.size());
    context_->post_forward_order.push_back(this);
  }
  if (reshards_after_forward()) reshard();
  if (context_->root == this) context_->last_forward_order = context_->forward_order;
}

void State::pre_backward() {
  if (!context_->in_backward) {
    context_->in_backward = true;
    queue_backward_callback([root = context_->root] { root->finish_backward(); });
  }
  unshard();
  prefetch_backward();
}

void State::prefetch_backward() {
  if (explicit_backward_prefetch_) {
    for (auto* state : backward_prefetch_) state->prefetch();
    return;
  }
  if (post_forward_indices_.empty()) return;
  const auto index = post_forward_indices_.back();
  post_forward_indices_.pop_back();
  if (index > 0) context_->post_forward_order[index - 1]->prefetch();
}

void State::post_backward() {
  if (!group_) return;
  if (!requires_gradient_sync_) {
    if (reshard_after_backward_) reshard();
    group_->accumulate_gradients();
    return;
  }
  if (reshard_after_backward_) reshard();
  if (context_->reducing != nullptr) context_->reducing->wait_for_reduce();
  group_->reduce_gradients();
  context_->reducing = group_.get();
}

void State::finish_backward() {
  context_->in_backward = false;
  if (context_->reducing != nullptr) context_->reducing->wait_for_reduce();
  context_->reducing = nullptr;
  context_->post_forward_order.clear();
  for (auto* state : context_->states) {
    state->post_forward_indices_.clear();
    // Gathered by a prefetch that missed, or never reached by a gradient.
    if (state->reshard_after_backward_) state->reshard();
  }
}

void State::prefetch() {
  if (group_) group_->unshard("prefetch");
}

void State::unshard_async() {
  if (group_) group_->unshard();
}

void State::unshard() {
  if (!group_) return;
  group_->unshard();
  group_->wait_for_unshard();
}

void State::reshard() {
  if (group_) group_->reshard();
}

template <class Visit>
void State::visit_states(bool recurse, const Visit& visit) {
  if (!recurse) {
    visit(*this);
    return;
  }
  for (const auto& [path, module] : module_.named_modules()) {
    if (auto* state = dynamic_cast<State*>(module->extension())) visit(*state);
  }
}

void State::set_requires_gradient_sync(bool on, bool recurse) {
  visit_states(recurse, [on](State& state) { state.requires_gradient_sync_ = on; });
}

void State::set_reshard_after_forward(bool on, bool recurse) {
  visit_states(recurse, [on](State& state) { state.policy_.reshard_after_forward = on; });
}

void State::set_reshard_after_backward(bool on, bool recurse) {
  visit_states(recurse, [on](State& state) { state.reshard_after_backward_ = on; });
}

void State::set_modules_to_forward_prefetch(const std::vector<nn::Module*>& modules) {
  forward_prefetch_ = states_of(modules, "set_modules_to_forward_prefetch");
  explicit_forward_prefetch_ = true;
}

void State::set_modules_to_backward_prefetch(const std::vector<nn::Module*>& modules) {
  backward_prefetch_ = states_of(modules, "set_modules_to_backward_prefetch");
  explicit_backward_prefetch_ = true;
}

}  // namespace moegrad::fsdp
