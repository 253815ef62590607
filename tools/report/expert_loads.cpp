// SPDX-License-Identifier: Apache-2.0
#include "tools/report/expert_loads.h"

#include <algorithm>
#include <numeric>
#include <sstream>

#include "framework/runtime/error.h"

namespace moegrad::tools {
namespace {

constexpr std::int64_t kMostBins = 384;        // about as many as the chart has pixels
constexpr std::size_t kMostLoads = 1'000'000;  // on a page
constexpr std::int64_t kMostDeadSteps = 100;

std::vector<std::size_t> shape_of(const ExpertCounts& counts) {
  std::vector<std::size_t> shape;
  for (const auto& layer : counts) shape.push_back(layer.size());
  return shape;
}

std::int64_t most_bins(const std::vector<std::size_t>& shape) {
  const auto loads = std::accumulate(shape.begin(), shape.end(), std::size_t{1});
  return std::clamp(static_cast<std::int64_t>(kMostLoads / loads), std::int64_t{1}, kMostBins);
}

// "4 layers of 8, 8, 8, 8 experts".
std::string describe(const std::vector<std::size_t>& shape) {
  std::ostringstream text;
  text << shape.size() << " layers of";
  for (const auto experts : shape) text << ' ' << experts;
  text << " experts";
  return text.str();
}

}  // namespace

void LoadBin::add(const ExpertCounts& more) {
  counts.resize(more.size());
  for (std::size_t layer = 0; layer < more.size(); ++layer) {
    counts[layer].resize(more[layer].size());
    std::ranges::transform(counts[layer], more[layer], counts[layer].begin(), std::plus<>());
  }
}

ExpertLoads::ExpertLoads(const ExpertCounts& shape)
    : shape_(shape_of(shape)), bins_(most_bins(shape_)) {
  for (const auto experts : shape_) last_used_.emplace_back(experts, -1);
}

void ExpertLoads::add(std::int64_t step, const ExpertCounts& counts) {
  const auto shape = shape_of(counts);
  check<ValueError>(shape == shape_, "must be of ", describe(shape_), ", got ", describe(shape));
  bins_.at(step).add(counts);
  first_ = std::min(first_, step);
  last_ = std::max(last_, step);
  for (std::size_t layer = 0; layer < counts.size(); ++layer) {
    for (std::size_t expert = 0; expert < counts[layer].size(); ++expert) {
      auto& last_used = last_used_[layer][expert];
      if (counts[layer][expert] > 0) last_used = std::max(last_used, step);
    }
  }
}

std::int64_t ExpertLoads::dead_steps() const {
  return std::min(kMostDeadSteps, last_ - first_ + 1);
}

std::int64_t ExpertLoads::dead(std::int64_t layer) const {
  return std::ranges::count_if(
      last_used_[static_cast<std::size_t>(layer)],
      [&](std::int64_t last_used) { return last_used <= last_ - dead_steps(); });
}

std::int64_t ExpertLoads::experts(std::int64_t layer) const {
  return static_cast<std::int64_t>(shape_[static_cast<std::size_t>(layer)]);
}

std::int64_t ExpertLoads::bins() const {
  return bins_.bins().rbegin()->first - bins_.bins().begin()->first + 1;
}

std::int64_t ExpertLoads::first_step() const {
  return bins_.bins().begin()->first << bins_.shift();
}

std::int64_t ExpertLoads::end_step() const {
  return (bins_.bins().rbegin()->first + 1) << bins_.shift();
}

std::vector<std::vector<double>> ExpertLoads::loads(std::int64_t layer) const {
  std::vector<std::vector<double>> loads(static_cast<std::size_t>(bins()));
  const auto first = bins_.bins().begin()->first;
  for (const auto& [key, bin] : bins_.bins()) {
    const auto& counts = bin.counts[static_cast<std::size_t>(layer)];
    const auto total = std::accumulate(counts.begin(), counts.end(), 0.0);
    if (total == 0) continue;
    const double mean = total / static_cast<double>(counts.size());
    for (const auto count : counts) {
      loads[static_cast<std::size_t>(key - first)].push_back(count / mean);
    }
  }
  return loads;
}

}  // namespace moegrad::tools
