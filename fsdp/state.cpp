// SPDX-License-Identifier: Apache-2.0
// The hooks: what happens when. Switches and what is done by hand are in state_switches.cpp.
#include "fsdp/state.h"

#include <algorithm>
#include <utility>

#include "framework/autograd/checkpoint.h"
#include "framework/autograd/engine.h"
#include "framework/autograd/grad_mode.h"
#include "framework/runtime/error.h"
#include "fsdp/same_values.h"
#include "ops/copies.h"

namespace moegrad::fsdp {
namespace {

// Whether a backward will come back to the forward that is running.
bool on_tape() { return grad_enabled() || in_checkpoint_forward(); }

Tensor cast_floating(const Tensor& tensor, Dtype dtype) {
  return is_floating(tensor.dtype()) && tensor.dtype() != dtype ? ops::cast(tensor, dtype) : tensor;
}

}  // namespace

State::State(std::vector<nn::Module*> modules, std::vector<std::unique_ptr<ParamGroup>> groups,
             const Policy& policy)
    : modules_(std::move(modules)),
      groups_(std::move(groups)),
      policy_(policy),
      ran_(modules_.size()) {}

void State::register_hooks() {
  for (std::size_t i = 0; i < modules_.size(); ++i) {
    auto& module = *modules_[i];
    module.register_forward_pre_hook([this, i](nn::Module&) { pre_forward(i); });
    module.register_forward_hook([this, i](nn::Module&) { post_forward(i); });
    module.register_backward_pre_hook([this](nn::Module&) { pre_backward(); });
    module.register_backward_hook([this, i](nn::Module&) { leave_backward(i); });
  }
}

State::~State() {
  for (const auto& group : groups_) comm_->remove(*group);
  if (context_) context_->forget(this);
}

void State::forget(const State* other) {
  for (auto* list : {&last_forward_order_, &forward_prefetch_, &backward_prefetch_}) {
    std::erase(*list, other);
  }
}

// The root has gone: at its next forward this state finds itself another one.
void State::leave_context() {
  context_ = nullptr;
  forward_calls_.clear();
  noted_.reset();
  entered_ = post_backward_done_ = false;
}

// The first state to run is the root of all below it.
void State::initialize_as_root() {
  check(modules_.size() == 1, "fully_shard: '", path_,
        "' ran forward first, but a group of several modules cannot be the root; pass the module "
        "that holds them to fully_shard");
  const auto context = std::make_shared<Context>();
  context->root = this;
  const auto slots = modules_[0]->parameter_slots();
  for (const auto& [path, module] : modules_[0]->named_modules()) {
    auto* state = dynamic_cast<State*>(module->extension());
    if (state == nullptr || std::ranges::find(context->states, state) != context->states.end()) {
      continue;
    }
    check(state->context_ == nullptr, "fully_shard: module '", path,
          "' ran forward before its root did");
    context->states.push_back(state);
    state->set_names(path, slots);
  }
  for (auto* state : context->states) {
    state->check_not_meta();
    state->comm_ = comm_;
  }
  check_same_values(context->states);
  for (auto* state : context->states) state->context_ = context;
}

void State::set_names(const std::string& path, const std::vector<nn::ParameterSlot>& slots) {
  path_ = path;
  for (const auto& group : groups_) group->set_names(path, slots);
}

void State::check_not_meta() const {
  for (const auto& group : groups_) {
    check(!group->is_meta(), "fully_shard: parameter '", group->params().front().name,
          "' and others of its group are still on the meta device; call to_empty() and initialize "
          "them before the first forward");
  }
}

bool State::reshards_after_forward() const {
  // Without the tape no backward will come to free the parameters, and a step may follow.
  return policy_.reshard_after_forward.value_or(context_->root != this || !on_tape());
}

void State::pre_forward(std::size_t module) {
  if (!context_) initialize_as_root();
  check(modules_[module]->calls_under_way() == 1, "fully_shard: module '", path_,
        "' was called within its own forward; call the method itself, without hooks");
  if (context_->in_backward) {
    check(is_backward_running(),
          "fully_shard: the last backward ended in an exception; call reset_iter_state()");
    unshard();
    return;
  }
  if (context_->root == this) begin_iteration();
  notify(Event::kPreForward);
  ++context_->depth;
  const bool first = std::ranges::find(ran_, true) == ran_.end();
  unshard();
  if (!first) return;
  first_module_ = module;
  context_->forward_order.push_back(this);
  prefetch_forward();
}

// Forgets a forward that an exception has ended.
void State::begin_iteration() {
  if (context_->depth != 0) {
    // What that forward gathered may be from before the last step.
    for (auto* state : context_->states) state->reshard();
  }
  context_->depth = 0;
  if (on_tape()) ++context_->forwards;
  context_->forward_order.clear();
  for (auto* state : context_->states) {
    state->ran_.assign(state->ran_.size(), false);
    state->noted_.reset();
  }
}

void State::prefetch_forward() {
  if (explicit_forward_prefetch_) {
    for (auto* state : forward_prefetch_) state->prefetch();
    return;
  }
  const auto& last = context_->forward_order.front()->last_forward_order_;
  const auto position = context_->forward_order.size() - 1;
  if (position >= last.size() || last[position] != this) return;
  const auto end =
      std::min(last.size(), position + 1 + static_cast<std::size_t>(policy_.forward_prefetch));
  for (auto next = position + 1; next < end; ++next) last[next]->prefetch();
}

void State::post_forward(std::size_t module) {
  if (context_->in_backward) return;
  ran_[module] = true;
  if (on_tape()) note_for_backward();
  const bool outermost = context_->depth == 1;
  if (outermost) finish_partial_calls();
  if (outermost || std::ranges::find(ran_, false) == ran_.end()) finish_forward_call();
  notify(Event::kPostForward);
  if (--context_->depth == 0) end_iteration();
}

// Backward comes back first to the module that ran last: of several, the last takes the place.
void State::note_for_backward() {
  auto& order = context_->post_forward_order;
  if (noted_) order[*noted_] = nullptr;
  noted_ = order.size();
  order.push_back(this);
}

void State::finish_forward_call() {
  ran_.assign(ran_.size(), false);
  if (noted_) forward_calls_.push_back({*noted_, first_module_});
  noted_.reset();
  if (reshards_after_forward()) reshard();
}

// Of groups of which only some modules have run, now that the outermost forward ends.
void State::finish_partial_calls() {
  for (auto* state : context_->states) {
    const bool some_ran = std::ranges::find(state->ran_, true) != state->ran_.end();
    if (state != this && some_ran) state->finish_forward_call();
  }
}

void State::end_iteration() {
  for (auto* state : context_->states) {
    for (const auto& group : state->groups_) {
      if (!group->is_gathering()) continue;
      // A prefetch that missed; backward may have a use for it. A step may follow, which writes to
      // what a gather in flight reads.
      if (on_tape()) {
        group->finish_gather();
      } else {
        group->reshard();
      }
    }
  }
  auto* first = context_->forward_order.front();
  first->last_forward_order_ = std::exchange(context_->forward_order, {});
}

void State::pre_backward() {
  check(context_ != nullptr, "fully_shard: the root of '", path_,
        "' ended between its forward and its backward; keep the model until backward has run");
  if (!context_->in_backward) {
    context_->in_backward = true;
    queue_backward_callback([context = context_] {
      if (context->root != nullptr) context->root->finish_backward();
    });
  }
  notify(Event::kPreBackward);
  if (unshard_in_backward_) {
    unshard();
  } else {
    for (const auto& group : groups_) group->reshard_if_stale();
  }
  if (entered_) return;
  entered_ = true;
  std::optional<std::size_t> index;
  last_to_leave_ = first_module_;
  if (!forward_calls_.empty()) {
    index = forward_calls_.back().index;
    last_to_leave_ = forward_calls_.back().first_module;
    forward_calls_.pop_back();
  }
  prefetch_backward(index);
}

void State::prefetch_backward(std::optional<std::size_t> index) {
  if (explicit_backward_prefetch_) {
    for (auto* state : backward_prefetch_) state->prefetch();
    return;
  }
  const auto& order = context_->post_forward_order;
  auto position = index.value_or(0);
  while (position > 0 && order[position - 1] == nullptr) --position;
  if (position == 0) return;
  auto* next = order[position - 1];
  if (next->unshard_in_backward_) next->prefetch();
}

void State::leave_backward(std::size_t module) {
  if (module == last_to_leave_) post_backward();
}

void State::post_backward() {
  entered_ = false;
  post_backward_done_ = true;
  if (groups_.empty()) return;
  if (reshard_after_backward_) reshard();
  hand_on_gradients();
}

void State::hand_on_gradients() {
  for (const auto& group : groups_) {
    auto& reducer = group->reducer();
    if (!requires_gradient_sync_) {
      reducer.keep();
      continue;
    }
    const auto* ranks = group->ranks().shard.get();
    reducer.start(requires_all_reduce_, reduce_unused_, group->name(), context_->forwards,
                  [&] { comm_->drain(ranks, max_reduce_inputs_); });
    if (reducer.scattering()) comm_->add(ranks, *group);
  }
  notify(Event::kPostBackward);
}

// Of the root: the outermost backward has ended.
void State::finish_backward() {
  context_->in_backward = false;
  for (auto* state : context_->states) {
    // Never left, or there came more after that, such as a use outside the modules.
    const bool missed =
        !state->groups_.empty() &&
        (!state->post_backward_done_ || std::ranges::any_of(state->groups_, [](const auto& group) {
          return group->reducer().has_gradients();
        }));
    state->post_backward_done_ = state->entered_ = false;
    if (!missed) continue;
    // A gather under way may be of use to the next backward.
    const bool gathering = std::ranges::any_of(
        state->groups_, [](const auto& group) { return group->is_gathering(); });
    if (state->reshard_after_backward_ && (!gathering || is_last_backward_)) state->reshard();
    state->hand_on_gradients();
  }
  for (auto* state : context_->states) {
    // Hooks that run when gradients are complete may step.
    for (const auto& group : state->groups_) group->finish_gather();
  }
  if (!is_last_backward_) return;
  comm_->finish();
  context_->post_forward_order.clear();
  for (auto* state : context_->states) {
    state->forward_calls_.clear();
    if (state->reshard_after_backward_) state->reshard();
  }
}

void State::prefetch() { issue_unshard(Event::kPrefetch); }

void State::issue_unshard(Event event) {
  for (const auto& group : groups_) group->unshard(event);
}

void State::wait_for_unshard() {
  for (const auto& group : groups_) group->wait_for_unshard();
}

void State::notify(Event event) const {
  if (observer_) observer_->on_event(event, path_);
}

Tensor State::cast_input(const Tensor& input) {
  const auto& mixed = policy_.mixed_precision;
  if (!mixed.param_dtype || !mixed.cast_forward_inputs || !group()) return input;
  return cast_floating(input, group()->compute_dtype());
}

Tensor State::cast_output(const Tensor& output) {
  const auto dtype = policy_.mixed_precision.output_dtype;
  return dtype ? cast_floating(output, *dtype) : output;
}

}  // namespace moegrad::fsdp
