// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <iosfwd>

#include "framework/tensor/tensor.h"

namespace moegrad {

/// What stands on the tape behind a tensor.
struct GraphSummary {
  std::int64_t functions = 0;
  std::int64_t edges = 0;        // between Functions and from Functions to leaves
  std::int64_t leaves = 0;       // distinct ones that require a gradient
  std::int64_t saved_bytes = 0;  // storage that several Functions saved is counted by each
  bool is_dag = true;            // false only if a Function came to own its own graph
};

/// Throws Error if `root` does not require a gradient.
GraphSummary summarize_graph(const Tensor& root);

/// Writes the tape behind `root` in the DOT language of Graphviz, in the direction of backward: an
/// ellipse per Function with name, output shapes, saved bytes and module path, a box per leaf with
/// shape and storage name; an edge is labelled with the position of the input. Nodes are numbered
/// in the order of backward, so the same program writes the same text.
///
/// Throws Error if `root` does not require a gradient.
void write_dot(const Tensor& root, std::ostream& out);

}  // namespace moegrad
