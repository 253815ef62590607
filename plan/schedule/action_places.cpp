// SPDX-License-Identifier: Apache-2.0
#include "plan/schedule/action_places.h"

#include <algorithm>

namespace moegrad::plan {

using enum ActionKind;

ActionPlaces::ActionPlaces(const Schedule& schedule) {
  for (std::size_t row = 0; row < schedule.size(); ++row) {
    for (std::size_t cell = 0; cell < schedule[row].size(); ++cell) {
      const auto& actions = schedule[row][cell];
      for (std::size_t part = 0; part < actions.size(); ++part) {
        if (has_micro_batch(actions[part].kind)) all_.push_back({actions[part], {row, cell, part}});
      }
    }
  }
  std::ranges::stable_sort(all_, {}, &std::pair<Action, ActionPlace>::first);
}

const ActionPlace* ActionPlaces::find(const Action& action) const {
  const auto found =
      std::ranges::lower_bound(all_, action, {}, &std::pair<Action, ActionPlace>::first);
  return found != all_.end() && found->first == action ? &found->second : nullptr;
}

const ActionPlace* ActionPlaces::find_input_backward(int stage, int micro_batch) const {
  const auto* whole = find({kFullBackward, stage, micro_batch});
  return whole != nullptr ? whole : find({kBackwardInput, stage, micro_batch});
}

const ActionPlace* consumer_of(const ActionPlaces& places, const Action& action) {
  const auto& [kind, stage, micro_batch] = action;
  if (kind == kForward) return places.find({kForward, stage + 1, micro_batch});
  if (is_input_backward(kind)) return places.find_input_backward(stage - 1, micro_batch);
  return nullptr;
}

const ActionPlace* producer_of(const ActionPlaces& places, const Action& action) {
  const auto& [kind, stage, micro_batch] = action;
  if (kind == kForward) return places.find({kForward, stage - 1, micro_batch});
  if (is_input_backward(kind)) return places.find_input_backward(stage + 1, micro_batch);
  return nullptr;
}

Action counterpart_of(const Action& transfer) {
  const auto& [kind, stage, micro_batch] = transfer;
  switch (kind) {
    case kSendForward:
      return {kRecvForward, stage + 1, micro_batch};
    case kRecvForward:
      return {kSendForward, stage - 1, micro_batch};
    case kSendBackward:
      return {kRecvBackward, stage - 1, micro_batch};
    default:
      return {kSendBackward, stage + 1, micro_batch};
  }
}

}  // namespace moegrad::plan
