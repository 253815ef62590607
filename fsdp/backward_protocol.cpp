// SPDX-License-Identifier: Apache-2.0
#include "fsdp/backward_protocol.h"

#include <algorithm>

#include "framework/autograd/engine.h"
#include "fsdp/comm_context.h"
#include "fsdp/forward_order.h"
#include "fsdp/gradient_reducer.h"
#include "fsdp/param_group.h"

namespace moegrad::fsdp {

namespace {

// Whether this backward has yet to reach the parameter.
bool comes_later(const Tensor& parameter) {
  return is_gradient_awaited(parameter) && !does_gradient_wait(parameter);
}

bool any_parameter(const Unit& unit, bool (*holds)(const Tensor& parameter)) {
  return std::ranges::any_of(unit.groups, [holds](const auto& group) {
    return std::ranges::any_of(group->params(), holds, &ShardedParam::unsharded);
  });
}

}  // namespace

void BackwardProtocol::enter(const IterationOrder& iteration, ForwardOrder& order) {
  if (unit_.switches.unshard_in_backward) {
    unit_.unshard(GatheredFor::kBackward);
  } else {
    for (const auto& group : unit_.groups) group->reshard_if_stale();
  }
  if (entered_) return;
  entered_ = true;
  const auto call = order.take_call();
  last_to_leave_ = call.first_module;
  order.prefetch_backward(iteration, call.index);
}

bool BackwardProtocol::leave(std::size_t module, std::int64_t round, CommContext& comm) {
  if (module != last_to_leave_) return false;
  entered_ = false;
  compute_waiting(comes_later);
  if (unit_.groups.empty() || awaits_gradients()) return false;
  left_ = true;
  if (unit_.switches.reshard_after_backward) unit_.reshard();
  waits_ = any_parameter(unit_, does_gradient_wait);
  if (waits_ && any_parameter(unit_, comes_later)) {
    compute_waiting(does_gradient_wait);
    waits_ = false;
  }
  if (!waits_) pass_on_gradients(round, comm);
  return true;
}

void BackwardProtocol::arrive(std::int64_t round, CommContext& comm) {
  if (!waits_ || any_parameter(unit_, is_gradient_awaited)) return;
  waits_ = false;
  pass_on_gradients(round, comm);
}

bool BackwardProtocol::awaits_gradients() const {
  for (const auto& group : unit_.groups) {
    for (std::size_t i = 0; i < group->params().size(); ++i) {
      if (!group->reducer().has_gradient(i) && comes_later(group->params()[i].unsharded))
        return true;
    }
  }
  return false;
}

void BackwardProtocol::compute_waiting(bool (*of)(const Tensor& parameter)) {
  for (const auto& group : unit_.groups) {
    for (const auto& param : group->params()) {
      if (of(param.unsharded)) compute_waiting_gradients(param.unsharded);
    }
  }
}

bool BackwardProtocol::finish(std::int64_t round, CommContext& comm, bool is_last_backward) {
  const auto& groups = unit_.groups;
  const bool missed =
      !groups.empty() && (!left_ || std::ranges::any_of(groups, [](const auto& group) {
        return group->reducer().has_gradients();
      }));
  reset();
  if (!missed) return false;
  // A gather under way may be of use to the next backward.
  const bool gathering =
      std::ranges::any_of(groups, [](const auto& group) { return group->is_gathering(); });
  if (unit_.switches.reshard_after_backward && (!gathering || is_last_backward)) {
    unit_.reshard();
  }
  pass_on_gradients(round, comm);
  return true;
}

void BackwardProtocol::pass_on_gradients(std::int64_t round, CommContext& comm) {
  if (is_first_of_two_backwards()) return;  // the second brings this micro-batch's gradients
  const auto& switches = unit_.switches;
  for (const auto& group : unit_.groups) {
    auto& reducer = group->reducer();
    if (!switches.requires_gradient_sync) {
      reducer.keep();
      continue;
    }
    const auto* ranks = group->ranks().shard.get();
    reducer.start(switches.requires_all_reduce, switches.reduce_scatter_unused_params,
                  group->name(), round, [&] { comm.drain(ranks, switches.max_reduce_inputs); });
    if (reducer.scattering()) comm.add(ranks, *group);
  }
}

}  // namespace moegrad::fsdp
