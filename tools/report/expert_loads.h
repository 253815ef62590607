// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "tools/report/step_bins.h"

namespace moegrad::tools {

/// [mixture layer][expert], in tokens. They are doubles, so that no file makes their sums overflow.
using ExpertCounts = std::vector<std::vector<double>>;

struct LoadBin {
  ExpertCounts counts = {};

  void add(const ExpertCounts& more);
  void merge(const LoadBin& other) { add(other.counts); }
};

/// The load of each expert over the steps of a bin: its tokens, divided by the tokens that it would
/// get if all experts had the same load.
class ExpertLoads {
 public:
  /// For counts of the same shape as these. Bins are wide enough for about a million loads.
  explicit ExpertLoads(const ExpertCounts& shape);

  /// ValueError `must be of <shape>, got <shape>` unless `counts` has the shape that the
  /// constructor was given.
  void add(std::int64_t step, const ExpertCounts& counts);

  std::int64_t layers() const { return std::ssize(shape_); }
  /// The number of experts of a mixture layer.
  std::int64_t experts(std::int64_t layer) const;
  /// The number of bins from the first to the last, including bins without steps.
  std::int64_t bins() const;
  std::int64_t first_step() const;  // of the first bin
  std::int64_t end_step() const;    // after the last bin
  /// How many experts of a mixture layer got no token in any of the last dead_steps() steps.
  std::int64_t dead(std::int64_t layer) const;
  /// 100, or the number of steps if there are fewer.
  std::int64_t dead_steps() const;
  /// [bin][expert]. Bins without steps and bins without tokens are empty.
  std::vector<std::vector<double>> loads(std::int64_t layer) const;

 private:
  std::vector<std::size_t> shape_;
  StepBins<LoadBin> bins_;
  std::vector<std::vector<std::int64_t>> last_used_;  // [mixture layer][expert], a step or -1
  std::int64_t first_ = std::numeric_limits<std::int64_t>::max();
  std::int64_t last_ = -1;
};

}  // namespace moegrad::tools
