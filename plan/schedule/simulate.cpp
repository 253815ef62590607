// SPDX-License-Identifier: Apache-2.0
#include "plan/schedule/simulate.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>

#include "framework/runtime/error.h"
#include "plan/schedule/action_places.h"
#include "plan/schedule/order_graph.h"

namespace moegrad::plan {
namespace {

using enum ActionKind;

void check_costs(const SimulationOptions& options, int stages) {
  check<ValueError>(options.stages.size() == 1 || std::ssize(options.stages) == stages,
                    "simulate: must be given the costs of 1 or of ", stages, " stages, got ",
                    options.stages.size());
  const auto check_cost = [](const std::string& name, double value) {
    check<ValueError>(std::isfinite(value) && value >= 0, "simulate: ", name,
                      " must be a finite number of at least 0, got ", value);
  };
  for (std::size_t i = 0; i < options.stages.size(); ++i) {
    const auto& cost = options.stages[i];
    const auto of_stage = [&](const char* what) {
      return "stage " + std::to_string(i) + ": " + what;
    };
    check_cost(of_stage("forward"), cost.forward);
    check_cost(of_stage("backward_input"), cost.backward_input);
    check_cost(of_stage("backward_weight"), cost.backward_weight);
    check_cost(of_stage("unshard"), cost.unshard);
    check_cost(of_stage("reduce_grad"), cost.reduce_grad);
    check_cost(of_stage("output_bytes"), static_cast<double>(cost.output_bytes));
    check_cost(of_stage("activation_bytes"), static_cast<double>(cost.activation_bytes));
    check_cost(of_stage("input_bytes"), static_cast<double>(cost.input_bytes));
    check_cost(of_stage("parameter_bytes"), static_cast<double>(cost.parameter_bytes));
    check_cost(of_stage("gradient_bytes"), static_cast<double>(cost.gradient_bytes));
  }
  check_cost("latency", options.latency);
  check_cost("bytes_per_time", options.bytes_per_time);
  check_cost("pair_factor", options.pair_factor);
}

/// What things take.
class Costs {
 public:
  explicit Costs(const SimulationOptions& options) : options_(options) {}

  const StageCost& of(int stage) const {
    return options_.stages[options_.stages.size() == 1 ? 0 : static_cast<std::size_t>(stage)];
  }
  /// Compute, UNSHARD or REDUCE_GRAD.
  double of(const Action& action) const {
    const auto& cost = of(action.stage);
    switch (action.kind) {
      case kForward:
      case kRecompute:
        return cost.forward;
      case kBackwardInput:
        return cost.backward_input;
      case kBackwardWeight:
        return cost.backward_weight;
      case kFullBackward:
        return cost.backward_input + cost.backward_weight;
      case kUnshard:
        return cost.unshard;
      case kReduceGrad:
        return cost.reduce_grad;
      default:
        return 0;
    }
  }
  double of_cell(const Cell& cell) const {
    if (cell.size() == 1) return of(cell[0]);
    return options_.pair_factor * (of(cell[0]) + of(cell[1]));
  }
  /// The time in which the bytes of a message leave that is sent by or after `action`.
  double of_bytes(const Action& action) const {
    if (options_.bytes_per_time == 0) return 0;
    const bool forward = action.kind == kForward || action.kind == kSendForward;
    const int stage = forward ? action.stage : action.stage - 1;
    return static_cast<double>(of(stage).output_bytes) / options_.bytes_per_time;
  }

 private:
  const SimulationOptions& options_;
};

/// When each vertex begins and ends, and which one it waits for last.
struct Times {
  std::vector<double> begin, end;
  std::vector<std::size_t> after;  // itself if it begins at 0
};

double duration_of(const Schedule& schedule, const OrderVertex& vertex, const Costs& costs,
                   double latency) {
  const auto& cell = schedule[vertex.place.row][vertex.place.cell];
  const auto& action = cell[vertex.place.part];
  switch (vertex.kind) {
    case OrderVertex::Kind::kMessage:
      return costs.of_bytes(action);
    case OrderVertex::Kind::kTransfer: {
      const auto send = is_send(action.kind) ? action : counterpart_of(action);
      return latency + costs.of_bytes(send);
    }
    default:
      return vertex.whole_cell ? costs.of_cell(cell) : costs.of(action);
  }
}

Times times_of(const Schedule& schedule, const OrderGraph& graph,
               const SimulationOptions& options) {
  const Costs costs(options);
  const auto count = graph.vertices.size();
  Times times = {std::vector<double>(count), std::vector<double>(count),
                 std::vector<std::size_t>(count)};
  std::vector<std::vector<std::size_t>> waits(count);
  for (const auto& [first, second] : graph.edges) waits[second].push_back(first);
  const auto order = topological_order(graph);
  for (const auto vertex : order.value()) {
    times.after[vertex] = vertex;
    const bool is_message = graph.vertices[vertex].kind == OrderVertex::Kind::kMessage;
    for (const auto before : waits[vertex]) {
      const bool arrives =
          graph.vertices[before].kind == OrderVertex::Kind::kMessage && !is_message;
      const double ready = times.end[before] + (arrives ? options.latency : 0);
      if (ready > times.begin[vertex]) {
        times.begin[vertex] = ready;
        times.after[vertex] = before;
      }
    }
    times.end[vertex] =
        times.begin[vertex] + duration_of(schedule, graph.vertices[vertex], costs, options.latency);
  }
  return times;
}

std::vector<TimedAction> critical_path(const Schedule& schedule, const OrderGraph& graph,
                                       const Times& times) {
  if (graph.vertices.empty()) return {};
  auto vertex = static_cast<std::size_t>(std::ranges::max_element(times.end) - times.end.begin());
  std::vector<TimedAction> path;
  for (;;) {
    const auto& [kind, place, whole_cell] = graph.vertices[vertex];
    if (kind != OrderVertex::Kind::kMessage && times.begin[vertex] < times.end[vertex]) {
      const auto& cell = schedule[place.row][place.cell];
      // Both halves of a pair that is one operation.
      for (auto part = whole_cell ? cell.size() : place.part + 1; part-- > place.part;) {
        path.push_back({cell[part], place.row, place.cell, times.begin[vertex], times.end[vertex]});
      }
    }
    if (times.after[vertex] == vertex) break;
    vertex = times.after[vertex];
  }
  std::ranges::reverse(path);
  return path;
}

/// A change of what is live.
struct Change {
  double time = 0;
  LiveBytes bytes = {};
  int activations = 0;
};

void add_bytes(std::int64_t& sum, std::int64_t bytes) {
  check<ValueError>(!__builtin_add_overflow(sum, bytes, &sum),
                    "simulate: the bytes of a rank must be below 2^63, got more");
}

/// The changes on one rank, from its actions in their order.
std::vector<Change> changes_of(std::span<const TimedAction> actions, const Costs& costs) {
  std::set<int> with_gradient;
  std::set<std::pair<int, int>> recomputed;
  std::map<int, std::int64_t> own_parameters;
  bool gathers = false;
  for (const auto& [action, row, cell, begin, end] : actions) {
    if (action.kind == kRecompute) recomputed.emplace(action.stage, action.micro_batch);
    if (is_compute(action.kind))
      own_parameters[action.stage] = costs.of(action.stage).parameter_bytes;
    gathers |= action.kind == kUnshard;
  }
  std::vector<Change> changes = {{}};
  for (const auto& [stage, bytes] : own_parameters) {
    if (!gathers) add_bytes(changes[0].bytes.parameters, bytes);
  }
  for (const auto& [action, row, cell, begin, end] : actions) {
    const auto& [kind, stage, micro_batch] = action;
    const auto& cost = costs.of(stage);
    const bool again = recomputed.contains({stage, micro_batch});
    if (kind == kForward) {
      changes.push_back({begin, {.activations = cost.activation_bytes}, 1});
      // F makes all activations, but keeps the input alone.
      if (again)
        changes.push_back({end, {.activations = cost.input_bytes - cost.activation_bytes}});
    } else if (kind == kRecompute) {
      changes.push_back({begin, {.activations = cost.activation_bytes - cost.input_bytes}});
    } else if (is_weight_backward(kind)) {
      if (with_gradient.insert(stage).second) {
        changes.push_back({begin, {.gradients = cost.gradient_bytes}});
      }
      changes.push_back({end, {.activations = -cost.activation_bytes}, -1});
    } else if (kind == kUnshard) {
      changes.push_back({begin, {.parameters = cost.parameter_bytes}});
    } else if (kind == kReshard) {
      changes.push_back({begin, {.parameters = -cost.parameter_bytes}});
    } else if (kind == kReduceGrad) {
      changes.push_back({end, {.gradients = -cost.gradient_bytes}});
    }
  }
  // Lanes run beside the row, so times do not only rise.
  std::ranges::stable_sort(changes, {}, &Change::time);
  return changes;
}

void add_memory(RankSimulation& rank, std::span<const TimedAction> actions, const Costs& costs) {
  LiveBytes live;
  std::int64_t total = 0;
  int activations = 0;
  for (const auto& change : changes_of(actions, costs)) {
    live.time = change.time;
    for (const auto kind :
         {&LiveBytes::activations, &LiveBytes::parameters, &LiveBytes::gradients}) {
      add_bytes(live.*kind, change.bytes.*kind);
      add_bytes(total, change.bytes.*kind);
    }
    activations += change.activations;
    rank.peak_bytes = std::max(rank.peak_bytes, total);
    rank.peak_activations = std::max(rank.peak_activations, activations);
    if (!rank.live.empty() && rank.live.back().time == live.time) rank.live.pop_back();
    rank.live.push_back(live);
  }
}

}  // namespace

Simulation simulate(const Schedule& schedule, const SimulationOptions& options) {
  check_schedule(schedule, {.copies = options.copies,
                            .buffers = options.buffers,
                            .pairs_in_turn = options.pairs_in_turn});
  check_costs(options, size_of(schedule).stages);
  const auto graph =
      order_graph(schedule, {.buffers = options.buffers, .pairs_in_turn = options.pairs_in_turn});
  const auto times = times_of(schedule, graph, options);
  const Costs costs(options);

  Simulation result;
  result.makespan = std::ranges::max(times.end);
  check<ValueError>(std::isfinite(result.makespan), "simulate: times must have a finite sum, got ",
                    result.makespan);
  for (std::size_t row = 0; row < schedule.size(); ++row) {
    auto& rank = result.ranks.emplace_back();
    const auto first = result.actions.size();
    for (std::size_t cell = 0; cell < schedule[row].size(); ++cell) {
      const auto& actions = schedule[row][cell];
      for (std::size_t part = 0; part < actions.size(); ++part) {
        const auto vertex = graph.vertex_of[row][cell][part];
        result.actions.push_back(
            {actions[part], row, cell, times.begin[vertex], times.end[vertex]});
      }
      if (actions.empty() || !is_compute(actions[0].kind)) continue;
      rank.busy += options.pairs_in_turn && actions.size() == 2
                       ? costs.of(actions[0]) + costs.of(actions[1])
                       : costs.of_cell(actions);
    }
    rank.bubble = result.makespan - rank.busy;
    add_memory(rank, std::span(result.actions).subspan(first), costs);
  }
  result.critical_path = critical_path(schedule, graph, times);
  return result;
}

}  // namespace moegrad::plan
