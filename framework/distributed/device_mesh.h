// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "framework/distributed/process_group.h"

namespace moegrad {

struct MeshAxis {
  std::string name;
  int size = 1;
};

/// The ranks of a group arranged in a grid with named axes, row-major: the last axis runs fastest.
/// The group of an axis contains the ranks that differ from this rank in that coordinate only.
///
/// Experts may be laid out over the same ranks in another way than the other parameters, so a mesh
/// has two views. It is its own dense view. Its expert view is another mesh, or the same mesh if
/// none was given.
///
/// Making a mesh is collective: all ranks of `group` must name the same axes.
class DeviceMesh {
 public:
  /// Throws ValueError unless the sizes multiply to group->size().
  DeviceMesh(std::shared_ptr<ProcessGroup> group, std::vector<MeshAxis> axes);
  DeviceMesh(std::shared_ptr<ProcessGroup> group, std::vector<MeshAxis> dense_axes,
             std::vector<MeshAxis> expert_axes);
  /// One axis, "shard", whose group is `group` itself.
  static DeviceMesh flat(std::shared_ptr<ProcessGroup> group);

  const DeviceMesh& dense() const { return *this; }
  const DeviceMesh& expert() const { return expert_ != nullptr ? *expert_ : *this; }

  /// The group of all ranks.
  const std::shared_ptr<ProcessGroup>& group() const { return group_; }
  const std::vector<MeshAxis>& axes() const { return axes_; }
  bool has(std::string_view axis) const;

  /// Each throws ValueError if there is no such axis.
  int size(std::string_view axis) const { return axes_[index(axis)].size; }
  int coordinate(std::string_view axis) const { return coordinates_[index(axis)]; }
  const std::shared_ptr<ProcessGroup>& group(std::string_view axis) const {
    return axis_groups_[index(axis)];
  }

 private:
  std::size_t index(std::string_view axis) const;

  std::shared_ptr<ProcessGroup> group_;
  std::vector<MeshAxis> axes_;
  std::vector<int> coordinates_;
  std::vector<std::shared_ptr<ProcessGroup>> axis_groups_;
  std::shared_ptr<const DeviceMesh> expert_;
};

}  // namespace moegrad
