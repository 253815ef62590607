// SPDX-License-Identifier: Apache-2.0
#include "train/logs/axis_traffic.h"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "framework/distributed/collectives.h"

namespace moegrad::training {

AxisMeter::AxisMeter(std::shared_ptr<ProcessGroup> world, std::map<std::string, std::string> axes)
    : world_(std::move(world)), axes_(std::move(axes)) {}

std::vector<AxisFigures> AxisMeter::read() const {
  std::vector<AxisFigures> figures;
  std::vector<std::int64_t> counts;
  for (const auto& [group, after] : after_) {
    const auto axis = axes_.find(group);
    const auto found = before_.find(group);
    const auto before = found != before_.end() ? found->second : TrafficFigures();
    figures.push_back({.axis = axis != axes_.end() ? axis->second : group});
    counts.insert(counts.end(),
                  {after.bytes_sent - before.bytes_sent,
                   after.bytes_received - before.bytes_received, after.wait - before.wait});
  }
  if (figures.empty()) return figures;
  all_reduce(*world_, std::span(counts), ReduceOp::kMax, {.label = "bytes of axes"});
  for (std::size_t i = 0; i < figures.size(); ++i) {
    figures[i].bytes_sent = counts[3 * i];
    figures[i].bytes_received = counts[3 * i + 1];
    figures[i].wait_seconds = static_cast<double>(counts[3 * i + 2]) * 1e-9;
  }
  // Groups of no axis, such as that of checkpoints.
  std::erase_if(figures, [&](const AxisFigures& each) {
    const bool is_axis =
        std::ranges::any_of(axes_, [&](const auto& named) { return named.second == each.axis; });
    return !is_axis && each.bytes_sent == 0 && each.bytes_received == 0 && each.wait_seconds == 0;
  });
  return figures;
}

}  // namespace moegrad::training
