// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include "framework/tensor/tensor.h"

namespace moegrad {

/// What the tape contains behind a tensor.
struct GraphSummary {
  std::int64_t functions = 0;
  std::int64_t edges = 0;         // between Functions and from Functions to leaves
  std::int64_t leaves = 0;        // distinct leaves that require a gradient
  std::int64_t saved_bytes = 0;   // each Function counts its saved storage, shared or not
  std::int64_t packed_bytes = 0;  // those of them that hooks have packed
  bool is_dag = true;             // false only if a Function came to own its own graph
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

/// The longest chain of Functions that wait for each other, by floating-point operations of forward
/// (Function::flops). More processors cannot shorten it.
struct CriticalPath {
  struct Step {
    std::string name;
    std::string path;  // of the module; empty outside any
    double flops = 0.0;
  };
  double flops = 0.0;        // along the path
  double total_flops = 0.0;  // of all Functions
  std::vector<Step> steps;   // in order of forward
};

/// Throws Error if `root` does not require a gradient.
CriticalPath critical_path(const Tensor& root);

/// The bytes that exist after a Function's forward, or during its backward.
struct LiveBytes {
  bool backward = false;
  std::string name;
  std::string path;
  std::int64_t saved = 0;           // storage of saved tensors, counted once, without leaves
  std::int64_t packed = 0;          // what hooks have packed, as large as it was saved
  std::int64_t gradients = 0;       // on their way between Functions
  std::int64_t leaf_gradients = 0;  // that have arrived at leaves

  std::int64_t total() const { return saved + gradients + leaf_gradients; }
};

/// Bytes that training holds over time, from the tape alone: after each Function in forward, then
/// during each Function in backward, when the gradients of its outputs and its inputs exist
/// together. Each gradient counts as a separate buffer. Results that no Function saved and the
/// scratch memory of kernels are not counted. What hooks have packed is counted apart: it may be
/// anywhere.
///
/// Throws Error if `root` does not require a gradient.
std::vector<LiveBytes> live_bytes_profile(const Tensor& root);

}  // namespace moegrad
