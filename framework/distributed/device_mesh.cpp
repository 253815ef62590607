// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/device_mesh.h"

#include <algorithm>
#include <sstream>
#include <utility>

namespace moegrad {
namespace {

// Returns its argument; throws if it is null.
std::shared_ptr<ProcessGroup> checked(std::shared_ptr<ProcessGroup> group) {
  check<ValueError>(
      group != nullptr,
      "DeviceMesh: needs a process group, got null; RankContext::current().group() "
      "is null outside launch(), so run this in the body of launch(world_size, body)");
  return group;
}

std::string list_axes(const std::vector<MeshAxis>& axes) {
  std::ostringstream list;
  for (const auto& axis : axes) {
    list << (&axis == &axes.front() ? "" : ", ") << axis.name << ' ' << axis.size;
  }
  return list.str();
}

void check_axes(const std::vector<MeshAxis>& axes, int ranks) {
  std::int64_t product = 1;
  for (auto axis = axes.begin(); axis != axes.end(); ++axis) {
    check<ValueError>(axis->size >= 1, "DeviceMesh: the size of axis ", axis->name,
                      " must be at least 1, got ", axis->size);
    check<ValueError>(std::ranges::count(axes, axis->name, &MeshAxis::name) == 1,
                      "DeviceMesh: axis names must differ, got ", list_axes(axes));
    product *= axis->size;
  }
  check<ValueError>(product == ranks, "DeviceMesh: axes ", list_axes(axes), " must make ", ranks,
                    " ranks, got ", product);
}

}  // namespace

DeviceMesh::DeviceMesh(std::shared_ptr<ProcessGroup> group, std::vector<MeshAxis> axes)
    : group_(checked(std::move(group))),
      axes_(std::move(axes)),
      coordinates_(axes_.size()),
      axis_groups_(axes_.size()) {
  check_axes(axes_, group_->size());
  int stride = group_->size();
  for (std::size_t i = 0; i < axes_.size(); ++i) {
    const int size = axes_[i].size;
    stride /= size;
    coordinates_[i] = group_->rank() / stride % size;
    if (size == group_->size()) {
      axis_groups_[i] = group_;
      continue;
    }
    std::vector<int> ranks;
    for (int k = 0; k < size; ++k) {
      ranks.push_back(group_->rank() + (k - coordinates_[i]) * stride);
    }
    axis_groups_[i] = group_->subgroup(ranks, axes_[i].name);
  }
}

DeviceMesh::DeviceMesh(std::shared_ptr<ProcessGroup> group, std::vector<MeshAxis> dense_axes,
                       std::vector<MeshAxis> expert_axes)
    : DeviceMesh(group, std::move(dense_axes)) {
  expert_ = std::make_shared<DeviceMesh>(std::move(group), std::move(expert_axes));
}

DeviceMesh DeviceMesh::flat(std::shared_ptr<ProcessGroup> group) {
  const int size = checked(group)->size();
  return DeviceMesh(std::move(group), {{"shard", size}});
}

bool DeviceMesh::has(std::string_view axis) const {
  return std::ranges::find(axes_, axis, &MeshAxis::name) != axes_.end();
}

std::size_t DeviceMesh::index(std::string_view axis) const {
  check<ValueError>(has(axis), "DeviceMesh: no axis ", axis, ", got axes ", list_axes(axes_));
  return static_cast<std::size_t>(std::ranges::find(axes_, axis, &MeshAxis::name) - axes_.begin());
}

}  // namespace moegrad
