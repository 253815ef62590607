// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "framework/distributed/process_group.h"

namespace moegrad {

struct MeshAxis {
  std::string name;
  int size = 1;
  friend bool operator==(const MeshAxis&, const MeshAxis&) = default;
};

/// Ranks arranged in a grid with named axes, row-major: the last axis runs fastest. The group of an
/// axis contains the ranks that differ from this rank in that coordinate only.
///
///     const DeviceMesh mesh(group, {{"pp", 2}, {"shard", 4}, {"tp", 2}});
///     mesh["tp"].group();                                  // the 2 ranks beside each other
///     mesh.slice({"shard", "tp"});                         // this stage's 8 ranks as a 4 x 2 grid
///     mesh.flatten({"shard", "tp"}, "all");                // 2 x 8: axes pp and all
///     mesh.unflatten("shard", {{"copy", 2}, {"shard", 2}});  // 2 x 2 x 2 x 2
///
/// A mesh is a value; slices share its groups. Groups are cached by the ranks in them, so equal
/// ranks have one group in all meshes that came from one mesh. What makes groups is collective: the
/// constructor, flatten(), unflatten() and unflatten_by_host(). All ranks of the mesh must call it
/// with the same axes.
class DeviceMesh {
 public:
  /// Throws ValueError unless the sizes multiply to group->size().
  DeviceMesh(std::shared_ptr<ProcessGroup> group, const std::vector<MeshAxis>& axes);
  /// One axis, "shard", whose group is `group` itself.
  static DeviceMesh flat(std::shared_ptr<ProcessGroup> group);

  std::vector<MeshAxis> axes() const;
  bool has(std::string_view axis) const;
  /// The number of ranks in the mesh.
  int size() const;
  /// The group of all ranks of the mesh. ValueError for a slice of several axes, which has none
  /// until they are flattened.
  const std::shared_ptr<ProcessGroup>& group() const;

  /// Each throws ValueError, with the mesh's axes, if there is no such axis.
  int size(std::string_view axis) const { return find(axis).size(); }
  int coordinate(std::string_view axis) const { return find(axis).coordinate; }
  const std::shared_ptr<ProcessGroup>& group(std::string_view axis) const {
    return find(axis).group;
  }

  /// The mesh of one axis: the ranks that differ from this rank in that coordinate only.
  DeviceMesh operator[](std::string_view axis) const { return slice({std::string(axis)}); }
  /// The mesh of some axes: the ranks that differ from this rank in those coordinates only.
  /// ValueError unless the axes are there, in the mesh's order.
  DeviceMesh slice(const std::vector<std::string>& axes) const;
  /// The mesh with these axes made one, at the place of the first. ValueError unless they are
  /// neighbours, in the mesh's order, and the name is free.
  DeviceMesh flatten(const std::vector<std::string>& axes, const std::string& name) const;
  /// The mesh with one axis made several, at its place. ValueError unless their sizes multiply to
  /// its size, their names are free, and, if flatten() made the axis, it is cut where it was joined
  /// (or its ranks are evenly spaced).
  DeviceMesh unflatten(std::string_view axis, const std::vector<MeshAxis>& parts) const;
  /// The mesh with one axis made two: the hosts, "AXIS_host", and a host's ranks, "AXIS_local".
  /// Nothing unless each group of the axis is on several hosts, with several ranks in a row on
  /// each, and as many on each host of each group.
  std::optional<DeviceMesh> unflatten_by_host(std::string_view axis) const;

 private:
  struct Axis {
    std::string name;
    std::vector<int> offsets;  // coordinate -> rank in the root's group, from coordinate 0 on
    int coordinate = 0;
    std::shared_ptr<ProcessGroup> group = nullptr;

    int size() const { return static_cast<int>(offsets.size()); }
  };
  class Groups;

  DeviceMesh(std::shared_ptr<Groups> groups, std::vector<Axis> axes);
  const Axis& find(std::string_view axis) const;
  // The places of these axes in axes_.
  std::vector<std::size_t> find_all(std::string_view what,
                                    const std::vector<std::string>& axes) const;
  static std::vector<Axis> cut(const Axis& axis, const std::vector<MeshAxis>& parts);
  static std::vector<int> joined_offsets(const std::vector<Axis>& axes);
  // The axes, [begin, end) of them replaced by `parts`.
  DeviceMesh replaced(std::size_t begin, std::size_t end, std::vector<Axis> parts) const;

  std::shared_ptr<Groups> groups_;
  std::vector<Axis> axes_;
};

}  // namespace moegrad
