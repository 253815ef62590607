// SPDX-License-Identifier: Apache-2.0
#include "fsdp/state.h"

#include <algorithm>
#include <utility>

#include "framework/autograd/checkpoint.h"
#include "framework/autograd/engine.h"
#include "framework/runtime/error.h"
#include "framework/runtime/grad_mode.h"
#include "fsdp/gradient_reducer.h"
#include "fsdp/same_values.h"
#include "ops/copies.h"

namespace moegrad::fsdp {
namespace {

// Whether a backward will come back to the forward that is running.
bool on_tape() { return grad_enabled() || in_checkpoint_forward(); }

TensorList cast_floating(TensorList tensors, Dtype dtype) {
  for (auto& tensor : tensors) {
    if (is_floating(tensor.dtype()) && tensor.dtype() != dtype) tensor = ops::cast(tensor, dtype);
  }
  return tensors;
}

void check_last_backward_ended(bool ended) {
  check(ended, "fully_shard: the last backward ended in an exception; call reset_iter_state()");
}

// Where some gradients arrive as sums over ranks, each micro-batch must be reduced, of all groups:
// kept gradients are other leaves of the tree.
void check_none_is_kept_beside_summed_sources(const std::vector<State*>& states) {
  const ShardedParam* summed = nullptr;
  for (auto* state : states) {
    for (const auto& group : state->groups()) {
      if (summed == nullptr) summed = group->reducer().with_summed_sources();
    }
  }
  if (summed == nullptr) return;
  for (auto* state : states) {
    for (const auto& group : state->groups()) {
      check(!group->reducer().has_kept(), "fully_shard: the gradients of ",
            group->name().empty() ? "the root" : "'" + group->name() + "'",
            " must be reduced after each micro-batch, because that of '", summed->name,
            "' is already the sum over the ranks that share the experts; leave "
            "set_requires_gradient_sync on for all modules");
    }
  }
}

}  // namespace

struct State::Context {
  State* root = nullptr;
  std::vector<State*> states;  // pre-order of the modules

  // The number of the root's forwards that a backward may come back to.
  std::int64_t forwards = 0;

  // The nesting depth of modules' forwards, without recomputation; 0 between iterations.
  int depth = 0;
  IterationOrder order;

  bool in_backward = false;
  std::weak_ptr<const void> backward;  // expires when the backward ends that set in_backward
};

State::State(std::vector<nn::Module*> modules, GroupRanks ranks,
             std::vector<std::unique_ptr<ParamGroup>> groups, const Policy& policy)
    : modules_(std::move(modules)),
      ranks_(std::move(ranks)),
      unit_{.groups = std::move(groups),
            .switches = {.reshard_after_forward = policy.reshard_after_forward}},
      policy_(policy),
      order_(unit_, modules_.size()),
      backward_(unit_) {
  for (const auto& group : unit_.groups) {
    group->reducer().set_on_arrival([this] { gradient_arrives(); });
  }
}

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
  for (const auto& group : groups()) comm_->remove(*group);
  if (context_) end_in_context();
}

void State::make_context() {
  check(modules_.size() == 1, "fully_shard: '", path_,
        "' ran forward first, but a group of several modules cannot be the root; register them in "
        "one module, pass that to fully_shard, too, and call it");
  const auto context = std::make_shared<Context>();
  context->root = this;
  const auto slots = modules_[0]->parameter_slots();
  for (const auto& [path, module] : modules_[0]->named_modules()) {
    auto* state = module->extension<State>();
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
  NamedTensors buffers;
  for (const auto& slot : modules_[0]->buffer_slots()) {
    if (slot.persistent) buffers.push_back({slot.name, *slot.tensor});
  }
  check_same_values(context->states, buffers);
  for (auto* state : context->states) state->context_ = context;
}

void State::end_in_context() {
  std::erase(context_->states, this);
  std::erase(context_->order.forward, &order_);
  // Others know their indices in post_forward, so its entries are kept.
  std::ranges::replace(context_->order.post_forward, &order_, static_cast<ForwardOrder*>(nullptr));
  for (auto* other : context_->states) other->order_.forget(&order_);
  if (context_->root != this) return;
  context_->root = nullptr;
  for (auto* orphan : context_->states) orphan->leave_context();
}

bool State::is_root() const { return context_ == nullptr || context_->root == this; }

// The root has gone: at its next forward this state finds itself another one.
void State::leave_context() {
  context_ = nullptr;
  order_.abandon_call();
  order_.forget_calls();
  backward_.reset();
}

void State::set_names(const std::string& path, const std::vector<nn::ParameterSlot>& slots) {
  path_ = path;
  for (const auto& group : groups()) group->set_names(path, slots);
}

void State::check_not_meta() const {
  for (const auto& group : groups()) {
    check(!group->is_meta(), "fully_shard: parameter '", group->params().front().name,
          "' and others of its group are still on the meta device; call to_empty() and initialize "
          "them before the first forward");
  }
}

bool State::reshards_after_forward() const {
  // Without the tape no backward will come to free the parameters, and a step may follow.
  return unit_.switches.reshard_after_forward.value_or(context_->root != this || !on_tape());
}

void State::pre_forward(std::size_t module) {
  if (!context_) make_context();
  check(modules_[module]->calls_under_way() == 1, "fully_shard: module '", path_,
        "' was called within its own forward; call the method itself, without hooks");
  if (context_->in_backward) {
    check_last_backward_ended(!context_->backward.expired());
    unshard();
    return;
  }
  if (context_->root == this) begin_iteration();
  notify(Event::kPreForward);
  ++context_->depth;
  unshard();
  if (!order_.none_ran()) return;
  order_.begin_call(context_->order, module);
  order_.prefetch_forward(context_->order, policy_.forward_prefetch);
}

// Forgets a forward that an exception has ended.
void State::begin_iteration() {
  if (context_->depth != 0) {
    // The parameters that this forward gathered may be from before the last step.
    for (auto* state : context_->states) state->reshard();
  }
  context_->depth = 0;
  if (on_tape()) ++context_->forwards;
  context_->order.forward.clear();
  for (auto* state : context_->states) state->order_.abandon_call();
}

void State::post_forward(std::size_t module) {
  if (context_->in_backward) return;
  order_.end_module(module);
  if (on_tape()) order_.note_for_backward(context_->order);
  const bool outermost = context_->depth == 1;
  if (outermost) finish_partial_calls();
  if (outermost || order_.all_ran()) finish_forward_call();
  notify(Event::kPostForward);
  if (--context_->depth == 0) end_iteration();
}

void State::finish_forward_call() {
  order_.end_call();
  if (reshards_after_forward()) reshard();
}

// The outermost forward ends. Finishes the calls of groups with several modules of which only some
// have run.
void State::finish_partial_calls() {
  for (auto* state : context_->states) {
    if (state != this && !state->order_.none_ran()) state->finish_forward_call();
  }
}

void State::end_iteration() {
  for (auto* state : context_->states) {
    for (const auto& group : state->groups()) {
      if (!group->is_gathering()) continue;
      // The forward did not use this prefetch, but backward may. A step may also follow, which
      // writes to the shards that a gather in flight reads.
      if (on_tape()) {
        group->finish_gather();
      } else {
        group->reshard();
      }
    }
  }
  auto* first = context_->order.forward.front();
  first->end_iteration(std::exchange(context_->order.forward, {}));
}

void State::pre_backward() {
  check(context_ != nullptr, "fully_shard: the root of '", path_,
        "' ended between its forward and its backward; keep the model until backward has run");
  if (context_->in_backward) {
    check_last_backward_ended(!context_->backward.expired());
  } else {
    context_->in_backward = true;
    const auto backward = std::make_shared<const int>();  // the callback goes with its backward
    context_->backward = backward;
    queue_backward_callback([context = context_, backward] {
      if (context->root != nullptr) context->root->finish_backward();
    });
  }
  notify(Event::kPreBackward);
  backward_.enter(context_->order, order_);
}

void State::leave_backward(std::size_t module) {
  if (backward_.leave(module, context_->forwards, *comm_)) notify(Event::kPostBackward);
}

void State::gradient_arrives() {
  if (context_) backward_.arrive(context_->forwards, *comm_);
}

// Called on the root when the outermost backward has ended.
void State::finish_backward() {
  context_->in_backward = false;
  const bool last = unit_.switches.is_last_backward;
  for (auto* state : context_->states) {
    if (state->backward_.finish(context_->forwards, *state->comm_, last)) {
      state->notify(Event::kPostBackward);
    }
  }
  for (auto* state : context_->states) {
    // Hooks that run when gradients are complete may call step().
    for (const auto& group : state->groups()) group->finish_gather();
  }
  check_none_is_kept_beside_summed_sources(context_->states);
  if (!last) return;
  comm_->finish();
  context_->order.post_forward.clear();
  for (auto* state : context_->states) {
    state->order_.forget_calls();
    if (state->unit_.switches.reshard_after_backward) state->reshard();
  }
}

TensorList State::around_forward(nn::ForwardCall& call, const TensorList& inputs) {
  const auto& mixed = policy_.mixed_precision;
  const bool cast_inputs = mixed.param_dtype && is_floating(*mixed.param_dtype) &&
                           mixed.cast_forward_inputs && group() != nullptr;
  TensorList outputs = call.run(cast_inputs ? cast_floating(inputs, *mixed.param_dtype) : inputs);
  return mixed.output_dtype ? cast_floating(outputs, *mixed.output_dtype) : outputs;
}

// --- what a user asks for

void UnshardHandle::wait() { state_.unit_.wait_for_unshard(); }

UnshardHandle State::unshard_async() {
  unit_.issue_unshard();
  return UnshardHandle(*this);
}

void State::zero_grad() {
  for (const auto& group : groups()) group->zero_grad();
}

void State::to_empty() {
  for (const auto& group : groups()) {
    if (group->is_meta()) group->to_empty();
  }
}

// Own modules first, each state once.
std::vector<State*> State::states_below(bool recurse) {
  std::vector<State*> states = {this};
  if (!recurse) return states;
  for (auto* own : modules_) {
    for (const auto& [path, module] : own->named_modules()) {
      auto* state = module->extension<State>();
      if (state != nullptr && std::ranges::find(states, state) == states.end()) {
        states.push_back(state);
      }
    }
  }
  return states;
}

void State::set_requires_gradient_sync(bool on, bool recurse) {
  set(&Switches::requires_gradient_sync, on, recurse);
  set(&Switches::requires_all_reduce, on, recurse);
}

void State::set_reduce_scatter_max_input_buffers(int buffers, bool recurse) {
  check<ValueError>(buffers >= 1, "set_reduce_scatter_max_input_buffers: at least 1, got ",
                    buffers);
  set(&Switches::max_reduce_inputs, static_cast<std::size_t>(buffers), recurse);
}

std::vector<ForwardOrder*> State::orders_of(const std::vector<nn::Module*>& modules,
                                            std::string_view setter) {
  std::vector<ForwardOrder*> orders;
  for (auto* module : modules) {
    auto* state = module == nullptr ? nullptr : module->extension<State>();
    check<ValueError>(state != nullptr, setter,
                      ": every module must have been passed to fully_shard");
    orders.push_back(&state->order_);
  }
  return orders;
}

void State::set_observer(const std::shared_ptr<Observer>& observer) {
  for (auto* state : states_below(/*recurse=*/true)) {
    state->observer_ = observer;
    for (const auto& group : state->groups()) group->set_observer(observer);
  }
}

void State::reset_iter_state() {
  check(context_ == nullptr || context_->root == this, "reset_iter_state: '", path_,
        "' is not the root");
  if (context_ == nullptr) return;
  begin_iteration();
  context_->in_backward = false;
  context_->order.post_forward.clear();
  for (auto* state : context_->states) {
    state->backward_.reset();
    state->order_.forget_calls();
    for (const auto& group : state->groups()) {
      group->reducer().discard();
      comm_->remove(*group);
      group->abandon_unsharded();
    }
  }
}

NamedTensors State::get_pending_gradients() {
  NamedTensors pending;
  for (auto* state : states_below(/*recurse=*/true)) {
    for (const auto& group : state->groups()) {
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
    for (const auto& group : state->groups()) {
      group->reducer().start(/*all_reduce=*/true,
                             state->unit_.switches.reduce_scatter_unused_params, group->name(),
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
