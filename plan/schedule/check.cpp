// SPDX-License-Identifier: Apache-2.0
#include "plan/schedule/check.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "framework/runtime/error.h"
#include "plan/schedule/action_places.h"
#include "plan/schedule/order_graph.h"

namespace moegrad::plan {
namespace {

using enum ActionKind;

template <class... Parts>
void expect(bool ok, const ActionPlace& at, const Parts&... parts) {
  check<ValueError>(ok, "check_schedule: ", place_name(at.row, at.cell), ": ", parts...);
}

/// Calls visit(action, place) for each action, row by row.
template <class Visit>
void for_each_placed(const Schedule& schedule, const Visit& visit) {
  for (std::size_t row = 0; row < schedule.size(); ++row) {
    for (std::size_t cell = 0; cell < schedule[row].size(); ++cell) {
      for (std::size_t part = 0; part < schedule[row][cell].size(); ++part) {
        visit(schedule[row][cell][part], ActionPlace{row, cell, part});
      }
    }
  }
}

void check_cells(const Schedule& schedule) {
  bool some = false;
  for_each_placed(schedule, [&](const Action& action, const ActionPlace& at) {
    some = true;
    expect(action.stage >= 0 && action.micro_batch >= 0, at,
           "stages and micro-batches must be counted from 0, got ", to_string(action));
    expect(has_micro_batch(action.kind) || action.micro_batch == 0, at, to_string(action),
           " must have no micro-batch, got ", action.micro_batch);
    const auto& cell = schedule[at.row][at.cell];
    expect(cell.size() == 1 ||
               (cell.size() == 2 && cell[0].kind == kForward && is_input_backward(cell[1].kind)),
           at, "must be one action, or F and then I or B, got ", to_string(cell), " and ",
           cell.size(), " actions");
  });
  check<ValueError>(some, "check_schedule: must have at least one action, got none");
}

void check_once(const ActionPlaces& places) {
  const auto& all = places.all();
  for (std::size_t i = 1; i < all.size(); ++i) {
    const auto& [action, at] = all[i];
    expect(all[i - 1].first != action, at, to_string(action), " must be there once, got it in ",
           place_name(all[i - 1].second.row, all[i - 1].second.cell), " already");
  }
}

/// The rows of each stage, which are as many as there may be copies at most.
using StageRows = std::map<int, std::vector<std::size_t>>;

StageRows check_rows(const Schedule& schedule, int copies) {
  StageRows rows;
  for_each_placed(schedule, [&](const Action& action, const ActionPlace& at) {
    auto& known = rows[action.stage];
    if (std::ranges::find(known, at.row) != known.end()) return;
    known.push_back(at.row);
    expect(std::ssize(known) <= copies, at, "stage ", action.stage, " must be on ", copies,
           copies == 1 ? " rank" : " ranks at most", ", got ", to_string(action), " here and row ",
           known[0], " with the same stage");
  });
  return rows;
}

void check_complete(const ActionPlaces& places, const StageRows& rows, const ScheduleSize& size) {
  const auto missing = [&](const Action& action, const std::string& wanted) {
    const auto known = rows.find(action.stage);
    const auto where = known == rows.end() ? "" : "row " + std::to_string(known->second[0]) + ": ";
    throw ValueError("check_schedule: " + where + "must have " + wanted + ", got none");
  };
  // All forwards are next to each other, so the first gap is the first that is missing.
  Action next = {kForward, 0, 0};
  const auto step = [&] {
    if (++next.micro_batch < size.micro_batches) return;
    next.micro_batch = 0;
    ++next.stage;
  };
  for (const auto& [action, at] : places.all()) {
    if (action.kind != kForward) break;
    if (action != next) missing(next, to_string(next));
    step();
  }
  if (next.stage < size.stages) missing(next, to_string(next));
  for (const auto& [action, forward] : places.all()) {
    if (action.kind != kForward) break;
    const Action input = {kBackwardInput, action.stage, action.micro_batch};
    const Action weight = {kBackwardWeight, action.stage, action.micro_batch};
    const Action whole = {kFullBackward, action.stage, action.micro_batch};
    const auto* both = places.find(whole);
    for (const auto& half : {input, weight}) {
      const auto* found = places.find(half);
      if (both == nullptr && found == nullptr) {
        missing(half, to_string(half) + " or " + to_string(whole));
      }
      if (both != nullptr && found != nullptr) {
        expect(false, *found, "must have either ", to_string(whole), " or its halves, got ",
               to_string(half), " here and ", to_string(whole), " in ",
               place_name(both->row, both->cell));
      }
    }
  }
}

/// That `later` stands on the rank of `earlier`, in a cell after it.
void check_order(const ActionPlaces& places, const Action& earlier, const ActionPlace& first,
                 const Action& later) {
  const auto* at = places.find(later);
  if (at == nullptr) return;
  expect(at->row == first.row, *at, to_string(later), " must be in row ", first.row, ", where ",
         to_string(earlier), " is");
  expect(first.cell < at->cell, *at, to_string(later), " must come after ", to_string(earlier),
         ", got that in cell ", first.cell);
}

/// F, R, I and W of a stage and micro-batch, in this order on one rank.
void check_orders(const ActionPlaces& places) {
  for (const auto& [action, at] : places.all()) {
    const auto& [kind, stage, micro_batch] = action;
    const auto comes_before = [&, &earlier = action, &first = at](ActionKind later, int of,
                                                                  int batch) {
      check_order(places, earlier, first, {later, of, batch});
    };
    if (kind == kForward || kind == kRecompute) {
      if (kind == kForward) comes_before(kRecompute, stage, micro_batch);
      comes_before(kBackwardInput, stage, micro_batch);
      comes_before(kFullBackward, stage, micro_batch);
    }
    if (kind == kBackwardInput) comes_before(kBackwardWeight, stage, micro_batch);
  }
}

/// That the transfer is of a message from one rank to another: SEND after what makes it, RECV
/// before what reads it.
void check_transfer(const ActionPlaces& places, const Action& transfer, const ActionPlace& at) {
  const auto sends = is_send(transfer.kind);
  const auto& send = sends ? transfer : counterpart_of(transfer);
  const bool forward = send.kind == kSendForward;
  const auto* from = forward ? places.find({kForward, send.stage, send.micro_batch})
                             : places.find_input_backward(send.stage, send.micro_batch);
  const auto receiver = counterpart_of(send).stage;
  const auto* to = forward ? places.find({kForward, receiver, send.micro_batch})
                           : places.find_input_backward(receiver, send.micro_batch);
  expect(from != nullptr && to != nullptr, at, to_string(transfer),
         " must be a message from stage to stage, got stages ", send.stage, " and ", receiver);
  expect(from->row != to->row, at, to_string(transfer),
         " must go from rank to rank, got both stages on rank ", from->row);
  const auto& own = sends ? *from : *to;
  expect(own.row == at.row, at, to_string(transfer), " must be in row ", own.row,
         ", where its stage is");
  expect(sends ? own.cell < at.cell : at.cell < own.cell, at, to_string(transfer), " must come ",
         sends ? "after what it sends" : "before what needs it", ", got that in cell ", own.cell);
  const auto other = counterpart_of(transfer);
  expect(places.find(other) != nullptr, at, to_string(transfer), " must have a ", to_string(other),
         ", got none");
}

void check_transfers(const ActionPlaces& places) {
  for (const auto& [action, at] : places.all()) {
    if (is_transfer(action.kind)) {
      check_transfer(places, action, at);
      continue;
    }
    const auto* consumer = consumer_of(places, action);
    if (consumer == nullptr || consumer->row == at.row) continue;
    const Action send = {action.kind == kForward ? kSendForward : kSendBackward, action.stage,
                         action.micro_batch};
    expect(places.find(send) != nullptr, at, to_string(action), " must have a ", to_string(send),
           ", since its reader is on rank ", consumer->row, "; got none");
  }
}

void check_gathers(const Schedule& schedule) {
  std::set<std::size_t> gathers;                         // rows that gather anything
  std::set<std::pair<std::size_t, int>> runs, gathered;  // rows and stages
  for_each_placed(schedule, [&](const Action& action, const ActionPlace& at) {
    if (action.kind == kUnshard || action.kind == kReshard) gathers.insert(at.row);
    if (is_compute(action.kind)) runs.emplace(at.row, action.stage);
  });
  for_each_placed(schedule, [&](const Action& action, const ActionPlace& at) {
    const auto key = std::pair(at.row, action.stage);
    expect(has_micro_batch(action.kind) || runs.contains(key), at, to_string(action),
           " must be on a rank that runs the stage, got one that does not");
    if (action.kind == kUnshard) {
      expect(gathered.insert(key).second, at, to_string(action),
             " must gather what is not gathered, got it gathered already");
    } else if (action.kind == kReshard) {
      expect(gathered.erase(key) == 1, at, to_string(action),
             " must free what is gathered, got it not gathered");
    } else if (is_compute(action.kind) && gathers.contains(at.row)) {
      expect(gathered.contains(key), at, to_string(action), " needs parameters that ", action.stage,
             "UNSHARD has gathered, got them not gathered");
    }
  });
}

void check_reductions(const Schedule& schedule) {
  std::map<std::pair<std::size_t, int>, ActionPlace> last, reduced;  // by row and stage
  for_each_placed(schedule, [&](const Action& action, const ActionPlace& at) {
    const auto key = std::pair(at.row, action.stage);
    if (is_weight_backward(action.kind)) last[key] = at;
    if (action.kind != kReduceGrad) return;
    const auto [known, added] = reduced.try_emplace(key, at);
    expect(added, at, to_string(action), " must be there once, got it in ",
           place_name(known->second.row, known->second.cell), " already");
  });
  if (reduced.empty()) return;
  for (const auto& [key, at] : last) {
    const auto& [row, stage] = key;
    const auto found = reduced.find(key);
    check<ValueError>(found != reduced.end(), "check_schedule: row ", row, ": must have ", stage,
                      "REDUCE_GRAD, as another stage has one, got none");
    expect(at.cell < found->second.cell, found->second, stage,
           "REDUCE_GRAD must come after the stage's last W or B, got that in cell ", at.cell);
  }
}

std::string cycle_text(const Schedule& schedule, const OrderGraph& graph,
                       const std::vector<std::size_t>& cycle) {
  std::string text;
  const auto is_between = [&](std::size_t i) {
    // What a rank does between two others of its cells says nothing.
    const auto at = [&](std::size_t position) -> const OrderVertex& {
      return graph.vertices[cycle[position % cycle.size()]];
    };
    const auto follows = [](const OrderVertex& first, const OrderVertex& second) {
      return first.kind == OrderVertex::Kind::kCell && second.kind == OrderVertex::Kind::kCell &&
             first.place.row == second.place.row && first.place < second.place;
    };
    return follows(at(i + cycle.size() - 1), at(i)) && follows(at(i), at(i + 1));
  };
  for (std::size_t i = 0; i < cycle.size(); ++i) {
    const auto& [kind, place, whole_cell] = graph.vertices[cycle[i]];
    if (kind == OrderVertex::Kind::kMessage || is_between(i)) continue;
    const auto& cell = schedule[place.row][place.cell];
    text += (text.empty() ? "" : "; ") + place_name(place.row, place.cell) + ": " +
            (whole_cell ? to_string(cell) : to_string(cell[place.part]));
    if (kind == OrderVertex::Kind::kTransfer) text += " and " + to_string(counterpart_of(cell[0]));
  }
  return text;
}

}  // namespace

void check_schedule(const Schedule& schedule, const ScheduleRules& rules) {
  check<ValueError>(rules.copies >= 1 && rules.buffers >= 0,
                    "check_schedule: copies must be at "
                    "least 1 and buffers at least 0, got ",
                    rules.copies, " and ", rules.buffers);
  check_cells(schedule);
  const ActionPlaces places(schedule);
  check_once(places);
  const auto rows = check_rows(schedule, rules.copies);
  auto size = size_of(schedule);
  const auto expect_size = [](int& got, int wanted, const char* what) {
    check<ValueError>(wanted == 0 || got <= wanted, "check_schedule: must have ", wanted, what,
                      ", got ", got);
    got = std::max(got, wanted);
  };
  expect_size(size.stages, rules.stages, " stages");
  expect_size(size.micro_batches, rules.micro_batches, " micro-batches");
  check_complete(places, rows, size);
  check_orders(places);
  if (has_transfers(schedule)) check_transfers(places);
  check_gathers(schedule);
  check_reductions(schedule);
  const auto graph =
      order_graph(schedule, {.buffers = rules.buffers, .pairs_in_turn = rules.pairs_in_turn});
  if (topological_order(graph)) return;
  throw ValueError(
      "check_schedule: deadlock, each waits for the one before it and the first for the last: " +
      cycle_text(schedule, graph, find_cycle(graph)));
}

int buffers_needed(const Schedule& schedule) {
  OrderOptions options = {.buffers = 0};
  while (!topological_order(order_graph(schedule, options))) ++options.buffers;
  return options.buffers;
}

}  // namespace moegrad::plan
