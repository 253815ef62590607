// SPDX-License-Identifier: Apache-2.0
#include "plan/schedule/order_graph.h"

#include <algorithm>
#include <boost/graph/breadth_first_search.hpp>
#include <boost/graph/compressed_sparse_row_graph.hpp>
#include <boost/graph/depth_first_search.hpp>
#include <boost/graph/topological_sort.hpp>
#include <iterator>
#include <map>

namespace moegrad::plan {
namespace {

using enum ActionKind;

constexpr std::size_t kNone = static_cast<std::size_t>(-1);

/// The messages from one rank to another so far, in the order in which they leave.
struct Channel {
  std::vector<std::size_t> received;  // the cells that receive them, sorted
  std::size_t last = kNone;           // the last message's vertex
};

class Builder {
 public:
  Builder(const Schedule& schedule, const OrderOptions& options)
      : schedule_(schedule),
        options_(options),
        places_(schedule),
        transfers_(has_transfers(schedule)) {}

  OrderGraph build() {
    for (const auto& row : schedule_) graph_.vertex_of.emplace_back(row.size(), kNoVertices);
    for (std::size_t row = 0; row < schedule_.size(); ++row) add_row(row);
    for (std::size_t row = 0; row < schedule_.size(); ++row) add_messages(row);
    return std::move(graph_);
  }

 private:
  static constexpr std::array<std::size_t, 2> kNoVertices = {kNone, kNone};

  std::size_t add_vertex(OrderVertex vertex) {
    graph_.vertices.push_back(vertex);
    return graph_.vertices.size() - 1;
  }
  void add_edge(std::size_t from, std::size_t to) {
    if (from != kNone) graph_.edges.emplace_back(from, to);
  }
  std::size_t& vertex_at(const ActionPlace& place) {
    return graph_.vertex_of[place.row][place.cell][place.part];
  }

  // The vertices of a row, in the order of its cells.
  void add_row(std::size_t row) {
    std::size_t before = kNone, lane = kNone;
    std::map<int, std::size_t> gathered;  // what the next action of a stage waits for
    for (std::size_t cell = 0; cell < schedule_[row].size(); ++cell) {
      const auto& actions = schedule_[row][cell];
      if (actions.empty()) continue;
      const auto kind = actions[0].kind;
      if (kind == kUnshard || kind == kReduceGrad) {
        const auto vertex = add_vertex({OrderVertex::Kind::kLane, {row, cell}});
        graph_.vertex_of[row][cell].fill(vertex);
        add_edge(before, vertex);
        add_edge(lane, vertex);
        lane = vertex;
        if (kind == kUnshard) gathered[actions[0].stage] = vertex;
        continue;
      }
      for (std::size_t part = 0; part < actions.size(); ++part) {
        if (part == 0 || options_.pairs_in_turn) {
          const auto vertex = cell_vertex({row, cell, part});
          add_edge(before, vertex);
          before = vertex;
        }
        vertex_at({row, cell, part}) = before;
        if (is_compute(actions[part].kind) || kind == kReshard) {
          const auto found = gathered.find(actions[part].stage);
          if (found == gathered.end()) continue;
          add_edge(found->second, before);
          gathered.erase(found);
        }
      }
    }
  }

  std::size_t cell_vertex(const ActionPlace& place) {
    const auto& action = schedule_[place.row][place.cell][place.part];
    if (is_transfer(action.kind) && options_.buffers == 0) {
      const auto known = vertex_at(*places_.find(counterpart_of(action)));
      return known != kNone ? known : add_vertex({OrderVertex::Kind::kTransfer, place});
    }
    return add_vertex({OrderVertex::Kind::kCell, place, !options_.pairs_in_turn});
  }

  // What the row's actions wait for of other stages, and the messages that it sends.
  void add_messages(std::size_t row) {
    std::map<std::size_t, Channel> channels;  // by the rank that receives
    for (std::size_t cell = 0; cell < schedule_[row].size(); ++cell) {
      for (std::size_t part = 0; part < schedule_[row][cell].size(); ++part) {
        const ActionPlace place = {row, cell, part};
        const auto& action = schedule_[row][cell][part];
        if (is_send(action.kind)) {
          if (options_.buffers != 0) {
            add_message(place, *places_.find(counterpart_of(action)), channels);
          }
        } else if (const auto* consumer = consumer_of(places_, action)) {
          if (consumer->row == row) {
            add_edge(vertex_at(place), vertex_at(*consumer));
          } else if (!transfers_) {
            add_message(place, *consumer, channels);
          }
        }
      }
    }
  }

  void add_message(const ActionPlace& from, const ActionPlace& to,
                   std::map<std::size_t, Channel>& channels) {
    auto& [received, last] = channels[to.row];
    const auto message = add_vertex({OrderVertex::Kind::kMessage, from});
    add_edge(vertex_at(from), message);
    add_edge(last, message);
    add_edge(message, vertex_at(to));
    last = message;
    if (!transfers_ || options_.buffers == kUnlimitedBuffers) return;
    // The RECV by which all but n - 1 of the messages before are received.
    const auto buffers = static_cast<std::size_t>(options_.buffers);
    if (received.size() >= buffers) {
      add_edge(graph_.vertex_of[to.row][received[received.size() - buffers]][0], vertex_at(from));
    }
    received.insert(std::ranges::upper_bound(received, to.cell), to.cell);
  }

  const Schedule& schedule_;
  const OrderOptions options_;
  const ActionPlaces places_;
  const bool transfers_;
  OrderGraph graph_;
};

using BoostGraph = boost::compressed_sparse_row_graph<boost::directedS>;

BoostGraph boost_graph(const OrderGraph& graph) {
  return {boost::edges_are_unsorted_multi_pass, graph.edges.begin(), graph.edges.end(),
          graph.vertices.size()};
}

/// Finds the edges that lead back to a vertex on the way to them, and keeps the one to the earliest
/// vertex, which the order of rows and cells decides.
struct BackEdge : boost::default_dfs_visitor {
  explicit BackEdge(std::optional<std::pair<std::size_t, std::size_t>>& edge) : found(edge) {}

  template <class Edge, class Graph>
  void back_edge(const Edge& edge, const Graph& graph) {
    const auto begin = boost::target(edge, graph);
    if (!found || begin < found->second) found = {boost::source(edge, graph), begin};
  }

  std::optional<std::pair<std::size_t, std::size_t>>& found;
};

}  // namespace

OrderGraph order_graph(const Schedule& schedule, const OrderOptions& options) {
  return Builder(schedule, options).build();
}

std::optional<std::vector<std::size_t>> topological_order(const OrderGraph& graph) {
  const auto boosted = boost_graph(graph);
  std::vector<std::size_t> order;
  order.reserve(graph.vertices.size());
  try {
    boost::topological_sort(boosted, std::back_inserter(order));
  } catch (const boost::not_a_dag&) {
    return std::nullopt;
  }
  std::ranges::reverse(order);
  return order;
}

std::vector<std::size_t> find_cycle(const OrderGraph& graph) {
  const auto boosted = boost_graph(graph);
  std::optional<std::pair<std::size_t, std::size_t>> edge;
  boost::depth_first_search(boosted, boost::visitor(BackEdge(edge)));
  if (!edge) return {};
  // The shortest way from the edge's end to its beginning.
  const auto [end, begin] = *edge;
  std::vector<std::size_t> before(graph.vertices.size());
  boost::breadth_first_search(boosted, begin,
                              boost::visitor(boost::make_bfs_visitor(boost::record_predecessors(
                                  before.data(), boost::on_tree_edge()))));
  std::vector<std::size_t> cycle = {end};
  while (cycle.back() != begin) cycle.push_back(before[cycle.back()]);
  std::ranges::reverse(cycle);
  return cycle;
}

}  // namespace moegrad::plan
