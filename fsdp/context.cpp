// SPDX-License-Identifier: Apache-2.0
#include "fsdp/context.h"

#include <algorithm>
#include <memory>

#include "framework/runtime/error.h"
#include "fsdp/param_group.h"
#include "fsdp/same_values.h"
#include "fsdp/state.h"

namespace moegrad::fsdp {

std::vector<ParamGroup*>& CommContext::scattering(const ProcessGroup* ranks) {
  const auto found =
      std::ranges::find(scattering_, ranks, [](const auto& entry) { return entry.first; });
  if (found != scattering_.end()) return found->second;
  return scattering_.emplace_back(ranks, std::vector<ParamGroup*>()).second;
}

void CommContext::drain(const ProcessGroup* ranks, std::size_t max_in_flight) {
  auto& groups = scattering(ranks);
  while (groups.size() >= max_in_flight) {
    groups.front()->reducer().finish_scatter();
    groups.erase(groups.begin());
  }
}

void CommContext::add(const ProcessGroup* ranks, ParamGroup& group) {
  std::erase(scattering(ranks), &group);
  scattering(ranks).push_back(&group);
  if (std::ranges::find(reducing_, &group) == reducing_.end()) reducing_.push_back(&group);
}

void CommContext::finish() {
  for (auto& [ranks, groups] : scattering_) groups.clear();
  // Issues all all-reduces before it waits for the first one.
  for (auto* group : reducing_) group->reducer().finish_scatter();
  for (auto* group : reducing_) group->reducer().finish();
  reducing_.clear();
}

void CommContext::remove(ParamGroup& group) {
  for (auto& [ranks, groups] : scattering_) std::erase(groups, &group);
  std::erase(reducing_, &group);
}

void Context::initialize(State& root) {
  check(root.modules_.size() == 1, "fully_shard: '", root.path_,
        "' ran forward first, but a group of several modules cannot be the root; register them in "
        "one module, pass that to fully_shard, too, and call it");
  const auto context = std::make_shared<Context>();
  context->root = &root;
  const auto slots = root.modules_[0]->parameter_slots();
  for (const auto& [path, module] : root.modules_[0]->named_modules()) {
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
    state->comm_ = root.comm_;
  }
  NamedTensors buffers;
  for (const auto& slot : root.modules_[0]->buffer_slots()) {
    if (slot.persistent) buffers.push_back({slot.name, *slot.tensor});
  }
  check_same_values(context->states, buffers);
  for (auto* state : context->states) state->context_ = context;
}

void Context::forget(const State* state) {
  std::erase(states, state);
  const ForwardOrder* const order = &state->order_;
  std::erase(forward_order, order);
  // Others know their indices in post_forward_order, so its entries are kept.
  ForwardOrder* const none = nullptr;
  std::ranges::replace(post_forward_order, order, none);
  for (auto* other : states) other->order_.forget(order);
  if (root != state) return;
  root = nullptr;
  for (auto* orphan : states) orphan->leave_context();
}

}  // namespace moegrad::fsdp
