// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "plan/schedule/action.h"
#include "plan/schedule/action_places.h"
#include "plan/schedule/check.h"

namespace moegrad::plan {

// Note [Order of a schedule]
// What must come before what is a graph. Its vertices are cells and messages, its edges say which
// one waits for which:
//
//   - a rank does one cell after the other, but goes on while parameters are gathered and gradients
//     reduced: these have a lane of their own, one at a time;
//   - a stage's first action after UNSHARD waits for the parameters;
//   - a forward waits for that of the stage before, a backward for that of the next stage: directly
//     on the same rank, else by a message. Where the schedule has no transfers, a message leaves
//     when its producer has ended, and arrives at its consumer;
//   - messages between two ranks leave one after the other;
//   - with n buffers a SEND waits until at most n - 1 of the messages that the rank sent to the
//   same
//     rank before are not yet received; with none, SEND and RECV are one vertex, in both rows.
//
// The schedule can run if and only if the graph has no cycle. When each vertex begins is then the
// longest path to it.

struct OrderVertex {
  enum class Kind : std::uint8_t {
    kCell,      // in its rank's order
    kLane,      // UNSHARD or REDUCE_GRAD
    kMessage,   // on its way
    kTransfer,  // a SEND and its RECV that wait for each other
  };

  Kind kind = Kind::kCell;
  ActionPlace place = {};  // for a message: what sends it
  bool whole_cell = true;  // or the action of `place` alone, where the halves of a pair run in turn
};

struct OrderGraph {
  std::vector<OrderVertex> vertices;
  std::vector<std::pair<std::size_t, std::size_t>> edges;  // the second waits for the first
  /// The vertex of each cell's parts: [row][cell][part]. An idle cell has none.
  std::vector<std::vector<std::array<std::size_t, 2>>> vertex_of;
};

struct OrderOptions {
  int buffers = kUnlimitedBuffers;
  bool pairs_in_turn = false;  // the halves of a pair run one after the other
};

/// The graph of a schedule in which each action is where it must be, as check_schedule() has found.
OrderGraph order_graph(const Schedule& schedule, const OrderOptions& options);

/// The vertices, each after all that it waits for; nothing if there is a cycle.
std::optional<std::vector<std::size_t>> topological_order(const OrderGraph& graph);

/// A shortest cycle among those through one edge that is in any; each vertex
/// waits for the one before it, the first for the last. Empty if there is none.
std::vector<std::size_t> find_cycle(const OrderGraph& graph);

}  // namespace moegrad::plan
