// SPDX-License-Identifier: Apache-2.0
#include "fsdp/forward_order.h"

#include <algorithm>

#include "fsdp/param_group.h"

namespace moegrad::fsdp {

bool ForwardOrder::none_ran() const { return std::ranges::find(ran_, true) == ran_.end(); }

bool ForwardOrder::all_ran() const { return std::ranges::find(ran_, false) == ran_.end(); }

void ForwardOrder::begin_call(IterationOrder& iteration, std::size_t module) {
  first_module_ = module;
  iteration.forward.push_back(this);
}

void ForwardOrder::note_for_backward(IterationOrder& iteration) {
  auto& order = iteration.post_forward;
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

void ForwardOrder::prefetch_forward(const IterationOrder& iteration, int ahead) const {
  if (forward_prefetch_) {
    for (const auto* next : *forward_prefetch_) next->gather(GatheredFor::kForward);
    return;
  }
  const auto& last = iteration.forward.front()->last_order_;
  const auto position = iteration.forward.size() - 1;
  if (position >= last.size() || last[position] != this) return;
  const auto end = std::min(last.size(), position + 1 + static_cast<std::size_t>(ahead));
  for (auto next = position + 1; next < end; ++next) last[next]->gather(GatheredFor::kForward);
}

void ForwardOrder::prefetch_backward(const IterationOrder& iteration,
                                     std::optional<std::size_t> index) const {
  if (backward_prefetch_) {
    for (const auto* next : *backward_prefetch_) next->gather(GatheredFor::kBackward);
    return;
  }
  const auto& order = iteration.post_forward;
  auto position = index.value_or(0);
  while (position > 0 && order[position - 1] == nullptr) --position;
  if (position == 0) return;
  const auto* next = order[position - 1];
  if (next->unit_.switches.unshard_in_backward) next->gather(GatheredFor::kBackward);
}

void ForwardOrder::gather(GatheredFor use) const {
  for (const auto& group : unit_.groups) group->unshard(Event::kPrefetch, use);
}

void ForwardOrder::forget(const ForwardOrder* other) {
  std::erase(last_order_, other);
  if (forward_prefetch_) std::erase(*forward_prefetch_, other);
  if (backward_prefetch_) std::erase(*backward_prefetch_, other);
}

}  // namespace moegrad::fsdp
