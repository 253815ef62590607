// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "plan/schedule/action.h"

namespace moegrad::plan {

/// Where an action stands: part 1 is the second of a pair.
struct ActionPlace {
  std::size_t row = 0;
  std::size_t cell = 0;
  std::size_t part = 0;

  friend auto operator<=>(const ActionPlace&, const ActionPlace&) = default;
};

/// Where each action of a schedule stands that has a micro-batch.
class ActionPlaces {
 public:
  explicit ActionPlaces(const Schedule& schedule);

  /// Sorted; equal actions are next to each other, in the order of rows and cells.
  const std::vector<std::pair<Action, ActionPlace>>& all() const { return all_; }
  /// The place of an action, the first if there are several; null if there is none.
  const ActionPlace* find(const Action& action) const;
  /// The place of I or B of that stage and micro-batch.
  const ActionPlace* find_input_backward(int stage, int micro_batch) const;

 private:
  std::vector<std::pair<Action, ActionPlace>> all_;
};

/// The action of another stage that reads what this one makes: F of the next stage for F, I or B of
/// the stage before for I or B. Null if there is none.
const ActionPlace* consumer_of(const ActionPlaces& places, const Action& action);

/// The action of another stage that makes what this one reads: F of the stage before for F, I or B
/// of the next one for I or B. Null if there is none.
const ActionPlace* producer_of(const ActionPlaces& places, const Action& action);

/// The SEND of a RECV, or the RECV of a SEND.
Action counterpart_of(const Action& transfer);

}  // namespace moegrad::plan
