// SPDX-License-Identifier: Apache-2.0
#include "framework/autograd/graph.h"

#include <algorithm>
#include <boost/graph/adjacency_list.hpp>
#include <boost/graph/graphviz.hpp>
#include <boost/graph/topological_sort.hpp>
#include <boost/range/iterator_range.hpp>
#include <iterator>
#include <ostream>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "framework/autograd/function.h"

namespace moegrad {
namespace {

struct Node {
  const Function* function = nullptr;  // null for a leaf
  Tensor leaf;
};

struct Use {
  std::size_t input = 0;
};

// Bidirectional, because it has a list of all edges. The iterator of directedS causes a false
// warning of g++ 12.
using Graph = boost::adjacency_list<boost::vecS, boost::vecS, boost::bidirectionalS, Node, Use>;

std::vector<const Function*> reachable(const Function* root) {
  std::unordered_set<const Function*> seen;
  std::vector<const Function*> functions, stack;
  if (root != nullptr) stack.push_back(root);
  while (!stack.empty()) {
    const auto* function = stack.back();
    stack.pop_back();
    if (!seen.insert(function).second) continue;
    functions.push_back(function);
    for (const auto& edge : function->edges()) {
      if (edge.function) stack.push_back(edge.function.get());
    }
  }
  std::ranges::sort(functions, [](const Function* a, const Function* b) {
    return a->sequence() > b->sequence();
  });
  return functions;
}

// Functions by falling sequence number, then leaves as they are met.
Graph view_of(const Tensor& root) {
  check(root.requires_grad(), "graph: the tensor does not require a gradient and has no graph");
  Graph graph;
  std::unordered_map<const void*, Graph::vertex_descriptor> vertices;
  const auto add_leaf = [&](const Tensor& leaf) {
    const auto [position, inserted] = vertices.try_emplace(leaf.impl().get());
    if (inserted) position->second = boost::add_vertex(Node{nullptr, leaf}, graph);
    return position->second;
  };
  const auto functions = reachable(root.grad_fn().get());
  for (const auto* function : functions) {
    vertices[function] = boost::add_vertex(Node{function, {}}, graph);
  }
  for (const auto* function : functions) {
    for (std::size_t i = 0; i < function->edges().size(); ++i) {
      const auto& edge = function->edges()[i];
      if (!edge.needs_grad()) continue;
      const auto target = edge.function ? vertices.at(edge.function.get()) : add_leaf(edge.leaf);
      boost::add_edge(vertices.at(function), target, Use{i}, graph);
    }
  }
  if (root.is_leaf()) add_leaf(root);
  return graph;
}

// Escapes text for a double-quoted DOT string, where \n is a line break.
std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    result += c;
  }
  return result;
}

void write_function(const Function& function, std::ostream& out) {
  out << "[label=\"" << escaped(function.name()) << "\\n";
  for (std::size_t i = 0; i < function.outputs().size(); ++i) {
    out << (i == 0 ? "" : ", ") << function.outputs()[i].shape;
  }
  if (const auto bytes = function.saved_bytes(); bytes > 0) out << "\\nsaves " << bytes << " bytes";
  if (function.scope()) out << "\\n" << escaped(function.scope()->path());
  out << "\"]";
}

void write_leaf(const Tensor& leaf, std::ostream& out) {
  const auto& name = leaf.storage().name();
  out << "[shape=box, label=\"" << (name.empty() ? "leaf" : escaped(name)) << "\\n"
      << leaf.shape() << "\"]";
}

const std::string& module_path(const Function& function) {
  static const std::string none;
  return function.scope() ? function.scope()->path() : none;
}

}  // namespace

GraphSummary summarize_graph(const Tensor& root) {
  const auto graph = view_of(root);
  GraphSummary summary;
  summary.edges = static_cast<std::int64_t>(boost::num_edges(graph));
  for (std::size_t i = 0; i < boost::num_vertices(graph); ++i) {
    if (const auto* function = graph[i].function) {
      ++summary.functions;
      summary.saved_bytes += function->saved_bytes();
      summary.packed_bytes += function->packed_bytes();
    } else {
      ++summary.leaves;
    }
  }
  std::vector<Graph::vertex_descriptor> order;
  try {
    boost::topological_sort(graph, std::back_inserter(order));
  } catch (const boost::not_a_dag&) {
    summary.is_dag = false;
  }
  return summary;
}

CriticalPath critical_path(const Tensor& root) {
  const auto graph = view_of(root);
  std::vector<Graph::vertex_descriptor> producers_first;
  boost::topological_sort(graph, std::back_inserter(producers_first));
  // For each vertex, the longest chain that ends in it: the chain's operations, and the vertex
  // before the last (or the vertex itself).
  std::vector<double> flops(boost::num_vertices(graph), 0.0);
  std::vector<Graph::vertex_descriptor> before(flops.size());
  CriticalPath result;
  for (const auto vertex : producers_first) {
    before[vertex] = vertex;
    if (graph[vertex].function == nullptr) continue;
    double longest = 0.0;
    for (const auto& edge : boost::make_iterator_range(boost::out_edges(vertex, graph))) {
      const auto producer = boost::target(edge, graph);
      if (graph[producer].function == nullptr) continue;
      if (before[vertex] == vertex || flops[producer] > longest) {
        longest = flops[producer];
        before[vertex] = producer;
      }
    }
    const double own = graph[vertex].function->flops();
    flops[vertex] = longest + own;
    result.total_flops += own;
  }
  if (producers_first.empty()) return result;
  auto vertex = producers_first.back();  // the root, which all others lead to
  result.flops = flops[vertex];
  while (graph[vertex].function != nullptr) {
    const auto& function = *graph[vertex].function;
    result.steps.push_back({std::string(function.name()), module_path(function), function.flops()});
    if (before[vertex] == vertex) break;
    vertex = before[vertex];
  }
  std::ranges::reverse(result.steps);
  return result;
}

std::vector<LiveBytes> live_bytes_profile(const Tensor& root) {
  check(root.requires_grad(), "graph: the tensor does not require a gradient and has no graph");
  const auto backward_order = reachable(root.grad_fn().get());
  std::unordered_set<const Storage*> leaves;
  for (const auto* function : backward_order) {
    for (const auto& edge : function->edges()) {
      if (edge.leaf.defined()) leaves.insert(&edge.leaf.storage());
    }
  }
  std::vector<LiveBytes> profile;
  LiveBytes now;
  std::unordered_map<const Storage*, std::int64_t> savers;
  const auto record = [&](const Function& function, bool backward) {
    now.backward = backward;
    now.name = function.name();
    now.path = module_path(function);
    profile.push_back(now);
  };
  const auto for_each_saved = [&](const Function& function, const auto& visit) {
    for (const auto* saved : function.saved()) {
      const auto* storage = saved->storage();
      if (storage != nullptr && !leaves.contains(storage)) visit(storage);
    }
  };
  for (auto i = backward_order.rbegin(); i != backward_order.rend(); ++i) {
    for_each_saved(**i, [&](const Storage* storage) {
      if (savers[storage]++ == 0) now.saved += storage->bytes();
    });
    now.packed += (*i)->packed_bytes();
    record(**i, false);
  }

  // The outputs and leaves whose gradient exists.
  std::unordered_map<const Function*, std::vector<bool>> arrived;
  std::unordered_set<const TensorImpl*> reached_leaves;
  const auto bytes_of = [](const Shape& shape, Dtype dtype) {
    return shape.numel() * size_of(dtype);
  };
  const auto arrive = [&](const Function& function, std::size_t output) {
    auto& outputs = arrived[&function];
    outputs.resize(function.outputs().size());
    if (outputs[output]) return;
    outputs[output] = true;
    const auto& info = function.outputs()[output];
    now.gradients += bytes_of(info.shape, info.dtype);
  };
  if (!backward_order.empty()) arrive(*backward_order.front(), root.output_index());
  for (const auto* function : backward_order) {
    for (const auto& edge : function->edges()) {
      if (edge.function) arrive(*edge.function, edge.output_index);
      if (edge.leaf.defined() && reached_leaves.insert(edge.leaf.impl().get()).second) {
        now.leaf_gradients += bytes_of(edge.shape, arithmetic_dtype(edge.dtype));
      }
    }
    record(*function, true);
    for_each_saved(*function, [&](const Storage* storage) {
      if (--savers[storage] == 0) now.saved -= storage->bytes();
    });
    now.packed -= function->packed_bytes();
    const auto& outputs = arrived[function];
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (outputs[i])
        now.gradients -= bytes_of(function->outputs()[i].shape, function->outputs()[i].dtype);
    }
  }
  return profile;
}

void write_dot(const Tensor& root, std::ostream& out) {
  const auto graph = view_of(root);
  boost::write_graphviz(
      out, graph,
      [&](std::ostream& stream, Graph::vertex_descriptor vertex) {
        const auto& node = graph[vertex];
        node.function != nullptr ? write_function(*node.function, stream)
                                 : write_leaf(node.leaf, stream);
      },
      [&](std::ostream& stream, const Graph::edge_descriptor& edge) {
        stream << "[label=\"" << graph[edge].input << "\"]";
      });
}

}  // namespace moegrad
