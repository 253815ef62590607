// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "framework/distributed/process_group.h"

namespace moegrad::training {

/// What the collectives and messages of a step moved in the groups of an axis. Each figure is the
/// largest of any rank.
struct AxisFigures {
  /// Such as "tp" or "tp+ep"; or the name of a group that is of no axis, such as "world".
  std::string axis = {};
  std::int64_t bytes_sent = 0;
  std::int64_t bytes_received = 0;
  double wait_seconds = 0;  // of all threads of the rank together
};

/// Reads what a rank's groups have counted (ProcessGroup::traffic()) from step to step.
class AxisMeter {
 public:
  /// `axes`: ParallelMeshes::axes_of_groups() of the groups that came from `world`.
  AxisMeter(std::shared_ptr<ProcessGroup> world, std::map<std::string, std::string> axes);
  /// A step begins: what has been counted before is not of it.
  void begin() { before_ = world_->traffic(); }
  /// The step ends: what is counted from here on is not of it.
  void end() { after_ = world_->traffic(); }
  /// The step between begin() and end(), by axis; groups of no axis that moved nothing are left
  /// out. Collective.
  std::vector<AxisFigures> read() const;

 private:
  std::shared_ptr<ProcessGroup> world_;
  std::map<std::string, std::string> axes_;
  std::map<std::string, TrafficFigures> before_, after_;
};

}  // namespace moegrad::training
