// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <vector>

namespace moegrad::tools {

/// Values of steps, in bins of 2^shift() successive steps. Bins are as narrow as the allowed number
/// of bins permits, so each step has its own bin until there are too many. Bin must have
/// merge(const Bin&).
template <class Bin>
class StepBins {
 public:
  /// There are at most `most` bins from the first to the last, including bins without a step.
  explicit StepBins(std::int64_t most) : most_(most) {}

  /// The bin of a step >= 0. It is made if it does not exist.
  Bin& at(std::int64_t step) {
    while (!bins_.empty() && bins_between(step) >= most_) widen();
    return bins_[step >> shift_];
  }

  /// By number: bin i has the steps from i * 2^shift up to (i + 1) * 2^shift.
  const std::map<std::int64_t, Bin>& bins() const { return bins_; }
  int shift() const { return shift_; }

 private:
  std::int64_t bins_between(std::int64_t step) const {
    const auto key = step >> shift_;
    return std::max(key, bins_.rbegin()->first) - std::min(key, bins_.begin()->first);
  }

  void widen() {
    std::map<std::int64_t, Bin> wider;
    for (auto& [key, bin] : bins_) wider[key >> 1].merge(bin);
    bins_.swap(wider);
    ++shift_;
  }

  std::int64_t most_;
  int shift_ = 0;
  std::map<std::int64_t, Bin> bins_;
};

/// The values of a bin's steps. If none of them is a number, the bin is a gap.
struct CurveBin {
  std::int64_t count = 0;  // of numbers
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();
  double sum = 0;
  double step_sum = 0;

  double mean() const { return sum / static_cast<double>(count); }
  double step() const { return step_sum / static_cast<double>(count); }
  void add(std::int64_t step, double value);
  void merge(const CurveBin& other);
};

/// Values over steps. A step that appears twice counts twice.
class Curve {
 public:
  static constexpr std::int64_t kMostBins = 400;

  void add(std::int64_t step, double value);

  std::vector<CurveBin> bins() const;  // in order
  bool has_values() const;             // whether any of them is a number
  double last() const { return last_; }
  std::int64_t missing() const { return missing_; }  // values that are not numbers

 private:
  StepBins<CurveBin> bins_{kMostBins};
  double last_ = std::numeric_limits<double>::quiet_NaN();
  std::int64_t missing_ = 0;
};

}  // namespace moegrad::tools
