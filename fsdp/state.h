// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "framework/tensor/named_tensor.h"
#include "fsdp/backward_protocol.h"
#include "fsdp/comm_context.h"
#include "fsdp/forward_order.h"
#include "fsdp/param_group.h"
#include "fsdp/unit.h"
#include "nn/module.h"

namespace moegrad::fsdp {

/// An unshard in flight.
class UnshardHandle {
 public:
  explicit UnshardHandle(State& state) : state_(state) {}
  /// Blocks until the parameters are whole, and registers them. Forward also does this by itself.
  void wait();

 private:
  State& state_;
};

/// What one fully_shard call attached to its modules: hooks around forward and backward that gather
/// and free the parameters of its groups. Its parts are the Unit, and above that
/// the ForwardOrder and the BackwardProtocol.
///
/// Note [FSDP and autograd]
/// pre-forward    unshard own groups, wait; issue the forward prefetch
/// post-forward   reshard if the policy says so; record the order for backward
/// pre-backward   the tape enters the module: unshard, wait; issue the backward prefetch
/// post-backward  the tape has left the module: reshard, then reduce or keep the gradients; later
///                if a parameter still awaits its gradient, as when the module ran in parts
/// final          end of the outermost backward: post-backward of states that missed it, wait for
///                reductions, free what is left
/// The backward hooks are entries on the tape (Note [Pre- and post-backward entries]). So the form
/// of inputs and outputs does not matter, nor whether they require gradients. Recomputation runs
/// forward hooks inside backward: they gather, but do not free or record.
///
/// This differs from PyTorch: a root whose inputs need no gradient reduces when the tape leaves it,
/// once per forward call, not once at the end of backward.
class State final : public nn::ModuleExtension {
 public:
  State(std::vector<nn::Module*> modules, GroupRanks ranks,
        std::vector<std::unique_ptr<ParamGroup>> groups, const Policy& policy);
  ~State() override;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  /// Registers the hooks on all modules, which must hold this state already.
  void register_hooks();

  // --- by hand, for the parameters of this call (not those of modules wrapped below)
  /// Gathers and waits.
  void unshard() { unit_.unshard(); }
  /// Issues the gather and returns. Forward, unshard() or the handle waits for it. Until then the
  /// gather reads the shards of all ranks: wait, or reshard(), before you write to them.
  UnshardHandle unshard_async();
  void reshard() { unit_.reshard(); }

  // --- switches; with `recurse` also for all states below this one
  /// Off: backward keeps unsharded gradients instead of reducing them (gradient accumulation
  /// without communication). The next backward with it on reduces their sum. Sets all-reduces too.
  void set_requires_gradient_sync(bool on, bool recurse = true);
  /// Off, with replicas: backward reduce-scatters and keeps the result. The next backward with it
  /// on all-reduces the sum.
  void set_requires_all_reduce(bool on, bool recurse = true) {
    set(&Switches::requires_all_reduce, on, recurse);
  }
  /// As Policy::reshard_after_forward, with its warning.
  void set_reshard_after_forward(bool on, bool recurse = true) {
    set(&Switches::reshard_after_forward, on, recurse);
  }
  /// Off: parameters stay gathered after backward, for another backward with the same weights. Once
  /// a step has changed the shards, the next use gathers again (Note [Shards are the truth]).
  void set_reshard_after_backward(bool on, bool recurse = true) {
    set(&Switches::reshard_after_backward, on, recurse);
  }
  /// On: trainable parameters without a gradient are reduced as zeros, so that ranks may use
  /// different parameters of a group. Groups are reduced in the order in which backward leaves
  /// them, so every rank's backward must still reach the same groups.
  void set_reduce_scatter_unused_params(bool on, bool recurse = true) {
    set(&Switches::reduce_scatter_unused_params, on, recurse);
  }
  /// Off: backward does not gather this call's parameters, since it does not read them (an
  /// embedding).
  void set_unshard_in_backward(bool on) { unit_.switches.unshard_in_backward = on; }
  /// Modules to gather when this one's forward (backward) begins, instead of the default; each
  /// must have been passed to fully_shard (else ValueError, for null as well).
  void set_modules_to_forward_prefetch(const std::vector<nn::Module*>& modules) {
    order_.set_forward_prefetch(orders_of(modules, "set_modules_to_forward_prefetch"));
  }
  void set_modules_to_backward_prefetch(const std::vector<nn::Module*>& modules) {
    order_.set_backward_prefetch(orders_of(modules, "set_modules_to_backward_prefetch"));
  }

  /// The number of reductions in flight (Note [Draining reductions]). ValueError unless >= 1.
  void set_reduce_scatter_max_input_buffers(int buffers, bool recurse = true);

  // --- to be called on the root, for all states below it
  /// Off: the next backward leaves reductions in flight, prefetched parameters gathered and the
  /// order of forwards known, because another backward of the same forward follows.
  void set_is_last_backward(bool on) { unit_.switches.is_last_backward = on; }
  /// After an exception in forward or backward that every rank has survived: ends what is in
  /// flight, drops its gradients and the kept ones, and reshards. Error unless this is the root.
  void reset_iter_state();
  /// The sums that were kept without gradient sync, of this module and all below, unsharded, by
  /// parameter name.
  NamedTensors get_pending_gradients();
  /// Reduces the kept gradients now, as the next backward with all-reduces on would do. Collective.
  void synchronize_gradients();

  /// Sets the observer of this call and of all below; null removes it.
  void set_observer(const std::shared_ptr<Observer>& observer);

  // --- nn::ModuleExtension
  void restore_parameters() override { reshard(); }
  void zero_grad() override;
  void to_empty() override;
  TensorList around_forward(nn::ForwardCall& call, const TensorList& inputs) override;

  /// The ranks of fully_shard's mesh, whether or not a parameter is spread over them.
  const GroupRanks& ranks() const { return ranks_; }
  /// The group, or the first of several; null if all parameters below belong to other calls.
  ParamGroup* group() const { return groups().empty() ? nullptr : groups().front().get(); }
  /// The groups of this call, one per mesh.
  const std::vector<std::unique_ptr<ParamGroup>>& groups() const { return unit_.groups; }
  const std::vector<nn::Module*>& modules() const { return modules_; }
  const std::string& path() const { return path_; }
  /// Whether the last forward began here. True before the first.
  bool is_root() const;
  const Switches& switches() const { return unit_.switches; }

 private:
  friend class UnshardHandle;
  friend void share_comm_ctx(const std::vector<State*>& states);

  /// What all states below one root share.
  struct Context;

  /// Gives a context to this state, which is the first to run, and to all states below it. Error if
  /// one of them belongs to another root or has no bytes yet.
  void make_context();
  /// This state ends before the others.
  void end_in_context();
  void leave_context();
  void check_not_meta() const;
  void set_names(const std::string& path, const std::vector<nn::ParameterSlot>& slots);
  std::vector<State*> states_below(bool recurse);
  static std::vector<ForwardOrder*> orders_of(const std::vector<nn::Module*>& modules,
                                              std::string_view setter);
  template <class T>
  void set(T Switches::*which, std::type_identity_t<T> value, bool recurse) {
    for (auto* state : states_below(recurse)) state->unit_.switches.*which = value;
  }

  // Hooks. `module` is the index of the module, if there are several.
  void pre_forward(std::size_t module);
  void post_forward(std::size_t module);
  void pre_backward();
  void leave_backward(std::size_t module);
  void gradient_arrives();

  void finish_forward_call();
  bool reshards_after_forward() const;
  void notify(Event event) const {
    if (observer_) observer_->on_event(event, path_);
  }

  // Called on the root, for all states below.
  void begin_iteration();
  void finish_partial_calls();
  void end_iteration();
  void finish_backward();

  std::vector<nn::Module*> modules_;
  GroupRanks ranks_;
  Unit unit_;
  Policy policy_;
  std::string path_;
  std::shared_ptr<Observer> observer_;
  std::shared_ptr<Context> context_;  // null until the first forward
  std::shared_ptr<CommContext> comm_ = std::make_shared<CommContext>();
  ForwardOrder order_;
  BackwardProtocol backward_;
};

/// Lets several roots (stages of a pipeline on one rank) share the cap on reductions in flight.
/// ValueError for an empty list.
void share_comm_ctx(const std::vector<State*>& states);

}  // namespace moegrad::fsdp
