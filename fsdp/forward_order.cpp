// SPDX-License-Identifier: Apache-2.0
#include "fsdp/forward_order.h"

#include <algorithm>

#include "fsdp/context.h"
#include "fsdp/state.h"

namespace moegrad::fsdp {

bool ForwardOrder::none_ran() const { return std::ranges::find(ran_, true) == ran_.end(); }

bool ForwardOrder::all_ran() const { return std::ranges::find(ran_, false) == ran_.end(); }

void ForwardOrder::begin_call(Context& context, std::size_t module) {
  first_module_ = module;
  context.forward_order.push_back(this);
}

void ForwardOrder::note_for_backward(Context& context) {
  auto& order = context.post_forward_order;
  if (noted_) order[*noted_] = nullptr;
  noted_ = order.size();
  order.push_back(this);
}

void ForwardOrder::end_call() {
  if (noted_) calls_.push_back({*noted_, first_module_});
  abandon_call();
}

void ForwardOrder::abandon_call() {
  ran_.assign(ran_.size(), false);
  noted_.reset();
}

ForwardOrder::Call ForwardOrder::take_call() {
  if (calls_.empty()) return {.index = std::nullopt, .first_module = first_module_};
  const auto call = calls_.back();
  calls_.pop_back();
  return call;
}

void ForwardOrder::prefetch_forward(const Context& context, int ahead) const {
  if (forward_prefetch_) {
    for (const auto* next : *forward_prefetch_) next->gather();
    return;
  }
  const auto& last = context.forward_order.front()->last_order_;
  const auto position = context.forward_order.size() - 1;
  if (position >= last.size() || last[position] != this) return;
  const auto end = std::min(last.size(), position + 1 + static_cast<std::size_t>(ahead));
  for (auto next = position + 1; next < end; ++next) last[next]->gather();
}

void ForwardOrder::prefetch_backward(const Context& context,
                                     std::optional<std::size_t> index) const {
  if (backward_prefetch_) {
    for (const auto* next : *backward_prefetch_) next->gather();
    return;
  }
  const auto& order = context.post_forward_order;
  auto position = index.value_or(0);
  while (position > 0 && order[position - 1] == nullptr) --position;
  if (position == 0) return;
  const auto* next = order[position - 1];
  if (next->state_.switches().unshard_in_backward) next->gather();
}

void ForwardOrder::gather() const {
  for (const auto& group : state_.groups()) group->unshard(Event::kPrefetch);
}

void ForwardOrder::forget(const ForwardOrder* other) {
  std::erase(last_order_, other);
  if (forward_prefetch_) std::erase(*forward_prefetch_, other);
  if (backward_prefetch_) std::erase(*backward_prefetch_, other);
}

}  // namespace moegrad::fsdp
