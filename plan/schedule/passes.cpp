// SPDX-License-Identifier: Apache-2.0
#include "plan/schedule/passes.h"

#include <algorithm>
#include <map>
#include <set>

#include "framework/runtime/error.h"
#include "plan/schedule/action_places.h"

namespace moegrad::plan {
namespace {

using enum ActionKind;

/// The schedule whose rows are change(row).
template <class Change>
Schedule row_by_row(const Schedule& schedule, const Change& change) {
  Schedule changed;
  for (const auto& row : schedule) changed.push_back(change(row));
  return changed;
}

Row merged(const Row& row) {
  Row result;
  for (const auto& cell : row) {
    if (cell.empty()) continue;
    if (cell.size() == 1 && cell[0].kind == kBackwardWeight && !result.empty()) {
      auto& before = result.back();
      const auto& [kind, stage, micro_batch] = cell[0];
      if (before == Cell{{kBackwardInput, stage, micro_batch}}) {
        before = {{kFullBackward, stage, micro_batch}};
        continue;
      }
    }
    result.push_back(cell);
  }
  return result;
}

/// The first `count` stages that compute from `cell` on.
std::vector<int> next_stages(const Row& row, std::size_t cell, int count) {
  std::vector<int> stages;
  for (; cell < row.size(); ++cell) {
    for (const auto& action : row[cell]) {
      if (std::ssize(stages) == count) return stages;
      if (is_compute(action.kind) && std::ranges::count(stages, action.stage) == 0) {
        stages.push_back(action.stage);
      }
    }
  }
  return stages;
}

Row with_gathers(const Row& row, int most_gathered) {
  Row result;
  std::set<int> gathered;
  for (std::size_t cell = 0; cell < row.size(); ++cell) {
    const auto next = next_stages(row, cell, most_gathered);
    std::erase_if(gathered, [&](int stage) {
      const bool freed = std::ranges::count(next, stage) == 0;
      if (freed) result.push_back({{.kind = kReshard, .stage = stage}});
      return freed;
    });
    for (const int stage : next) {
      if (gathered.insert(stage).second) result.push_back({{.kind = kUnshard, .stage = stage}});
    }
    result.push_back(row[cell]);
  }
  for (const int stage : gathered) result.push_back({{.kind = kReshard, .stage = stage}});
  return result;
}

Row with_reductions(const Row& row) {
  std::map<int, std::size_t> last;  // the cell of each stage's last W or B
  for (std::size_t cell = 0; cell < row.size(); ++cell) {
    for (const auto& action : row[cell]) {
      if (is_weight_backward(action.kind)) last[action.stage] = cell;
    }
  }
  Row result;
  for (std::size_t cell = 0; cell < row.size(); ++cell) {
    result.push_back(row[cell]);
    for (const auto& action : row[cell]) {
      if (is_weight_backward(action.kind) && last[action.stage] == cell) {
        result.push_back({{.kind = kReduceGrad, .stage = action.stage}});
      }
    }
  }
  return result;
}

void require_no_transfers(const char* name, const Schedule& schedule) {
  check<ValueError>(!has_transfers(schedule), name,
                    ": must be given a schedule without transfers, got one with them");
}

/// A message from a cell to another rank.
struct Message {
  Action send = {};
  std::size_t to = 0;  // the rank
};

/// The messages that go to other ranks when this cell is done.
std::vector<Message> messages_of(const ActionPlaces& places, const Cell& cell, std::size_t row) {
  std::vector<Message> messages;
  for (const auto& action : cell) {
    const auto* consumer = consumer_of(places, action);
    if (consumer == nullptr || consumer->row == row) continue;
    const auto kind = action.kind == kForward ? kSendForward : kSendBackward;
    messages.push_back({{kind, action.stage, action.micro_batch}, consumer->row});
  }
  return messages;
}

/// The RECVs that a cell needs, if what they receive is made on another rank.
std::vector<Action> needs_of(const ActionPlaces& places, const Cell& cell, std::size_t row) {
  std::vector<Action> needs;
  for (const auto& action : cell) {
    const auto* producer = producer_of(places, action);
    if (producer == nullptr || producer->row == row) continue;
    const auto kind = action.kind == kForward ? kRecvForward : kRecvBackward;
    needs.push_back({kind, action.stage, action.micro_batch});
  }
  return needs;
}

}  // namespace

Schedule merge_backward(const Schedule& schedule) { return row_by_row(schedule, merged); }

Schedule add_recompute(const Schedule& schedule, const std::vector<int>& stages) {
  require_no_transfers("add_recompute", schedule);
  const auto size = size_of(schedule);
  for (const int stage : stages) {
    check<ValueError>(0 <= stage && stage < size.stages,
                      "add_recompute: a stage must be from 0 to ", size.stages - 1, ", got ",
                      stage);
  }
  return row_by_row(schedule, [&](const Row& row) {
    Row result;
    for (const auto& cell : row) {
      for (const auto& [kind, stage, micro_batch] : cell) {
        if (is_input_backward(kind) && std::ranges::count(stages, stage) > 0) {
          result.push_back({{kRecompute, stage, micro_batch}});
        }
      }
      result.push_back(cell);
    }
    return result;
  });
}

Schedule add_unshard(const Schedule& schedule, int most_gathered) {
  require_no_transfers("add_unshard", schedule);
  const auto has_pair = [](const Row& row) {
    return std::ranges::any_of(row, [](const Cell& cell) { return cell.size() == 2; });
  };
  const int least = std::ranges::any_of(schedule, has_pair) ? 2 : 1;
  check<ValueError>(most_gathered >= least, "add_unshard: at least ", least,
                    " stages must be gathered at once, got ", most_gathered);
  return row_by_row(schedule, [&](const Row& row) { return with_gathers(row, most_gathered); });
}

Schedule add_reduce_grad(const Schedule& schedule) { return row_by_row(schedule, with_reductions); }

Schedule add_transfers(const Schedule& schedule) {
  require_no_transfers("add_transfers", schedule);
  const ActionPlaces places(schedule);
  Schedule result(schedule.size());
  for (std::size_t row = 0; row < schedule.size(); ++row) {
    for (const auto& cell : schedule[row]) {
      for (const auto& recv : needs_of(places, cell, row)) result[row].push_back({recv});
      result[row].push_back(cell);
      for (const auto& message : messages_of(places, cell, row)) {
        result[row].push_back({message.send});
      }
    }
  }
  return result;
}

Schedule add_transfers_when_sent(const Schedule& schedule) {
  require_no_transfers("add_transfers_when_sent", schedule);
  const ActionPlaces places(schedule);
  Schedule result(schedule.size());
  std::set<Action> received;                       // the RECVs so far
  std::vector<std::size_t> next(schedule.size());  // each rank's next cell
  const auto is_ready = [&](const Cell& cell, std::size_t row) {
    const auto needs = needs_of(places, cell, row);
    if (!std::ranges::all_of(needs, [&](const Action& recv) { return received.contains(recv); })) {
      return false;
    }
    return std::ranges::all_of(cell, [&](const Action& action) {
      const auto* producer = producer_of(places, action);
      return producer == nullptr || producer->row != row || producer->cell < next[row];
    });
  };
  for (bool progress = true; progress;) {
    progress = false;
    for (std::size_t row = 0; row < schedule.size(); ++row) {
      if (next[row] == schedule[row].size()) continue;
      const auto& cell = schedule[row][next[row]];
      if (!is_ready(cell, row)) continue;
      result[row].push_back(cell);
      for (const auto& [send, to] : messages_of(places, cell, row)) {
        result[row].push_back({send});
        result[to].push_back({counterpart_of(send)});
        received.insert(counterpart_of(send));
      }
      ++next[row];
      progress = true;
    }
  }
  for (std::size_t row = 0; row < schedule.size(); ++row) {
    check<ValueError>(next[row] == schedule[row].size(),
                      "add_transfers_when_sent: ", place_name(row, next[row]),
                      ": ranks wait for each other, so that this cell never runs");
  }
  return result;
}

}  // namespace moegrad::plan
