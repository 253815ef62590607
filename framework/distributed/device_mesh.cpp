// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/device_mesh.h"

#include <algorithm>
#include <map>
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

void check_names(const std::vector<MeshAxis>& axes) {
  for (const auto& axis : axes) {
    check<ValueError>(std::ranges::count(axes, axis.name, &MeshAxis::name) == 1,
                      "DeviceMesh: axis names must differ, got ", list_axes(axes));
  }
}

void check_sizes(const std::vector<MeshAxis>& axes, int ranks) {
  std::int64_t product = 1;
  for (const auto& axis : axes) {
    check<ValueError>(axis.size >= 1, "DeviceMesh: the size of axis ", axis.name,
                      " must be at least 1, got ", axis.size);
    check<ValueError>(product <= ranks, "DeviceMesh: axes ", list_axes(axes), " must make ", ranks,
                      " ranks, got more");
    product *= axis.size;
  }
  check<ValueError>(product == ranks, "DeviceMesh: axes ", list_axes(axes), " must make ", ranks,
                    " ranks, got ", product);
}

}  // namespace

// The groups of all meshes that came from one, by the ranks in them.
class DeviceMesh::Groups {
 public:
  explicit Groups(std::shared_ptr<ProcessGroup> root) : root_(std::move(root)) {}

  const std::shared_ptr<ProcessGroup>& root() const { return root_; }

  // The group of the ranks that differ from this rank along `axis`.
  const std::shared_ptr<ProcessGroup>& of(const Axis& axis) {
    if (axis.size() == root_->size()) return root_;
    const int first = root_->rank() - axis.offsets[static_cast<std::size_t>(axis.coordinate)];
    std::vector<int> ranks;
    for (const int offset : axis.offsets) ranks.push_back(first + offset);
    auto& group = cache_[ranks];
    if (group == nullptr) group = root_->subgroup(ranks, axis.name);
    return group;
  }

 private:
  std::shared_ptr<ProcessGroup> root_;
  std::map<std::vector<int>, std::shared_ptr<ProcessGroup>> cache_;
};

DeviceMesh::DeviceMesh(std::shared_ptr<ProcessGroup> group, const std::vector<MeshAxis>& axes)
    : groups_(std::make_shared<Groups>(checked(std::move(group)))) {
  const auto& root = *groups_->root();
  check_names(axes);
  check_sizes(axes, root.size());
  Axis whole = {.name = {}, .offsets = {}, .coordinate = root.rank()};
  for (int rank = 0; rank < root.size(); ++rank) whole.offsets.push_back(rank);
  axes_ = cut(whole, axes);
  for (auto& axis : axes_) axis.group = groups_->of(axis);
}

DeviceMesh::DeviceMesh(std::shared_ptr<Groups> groups, std::vector<Axis> axes)
    : groups_(std::move(groups)), axes_(std::move(axes)) {}

DeviceMesh DeviceMesh::flat(std::shared_ptr<ProcessGroup> group) {
  const int size = checked(group)->size();
  return DeviceMesh(std::move(group), {{"shard", size}});
}

std::vector<MeshAxis> DeviceMesh::axes() const {
  std::vector<MeshAxis> axes;
  for (const auto& axis : axes_) axes.push_back({.name = axis.name, .size = axis.size()});
  return axes;
}

bool DeviceMesh::has(std::string_view axis) const {
  return std::ranges::find(axes_, axis, &Axis::name) != axes_.end();
}

int DeviceMesh::size() const {
  int size = 1;
  for (const auto& axis : axes_) size *= axis.size();
  return size;
}

const std::shared_ptr<ProcessGroup>& DeviceMesh::group() const {
  const auto& root = groups_->root();
  if (size() == root->size()) return root;
  check<ValueError>(axes_.size() == 1, "DeviceMesh: axes ", list_axes(axes()),
                    " have no group of their own; flatten them first");
  return axes_.front().group;
}

DeviceMesh DeviceMesh::slice(const std::vector<std::string>& axes) const {
  std::vector<Axis> kept;
  for (const auto place : find_all("slice", axes)) kept.push_back(axes_[place]);
  return {groups_, std::move(kept)};
}

// The axes that `axis` becomes; their sizes multiply to its size.
std::vector<DeviceMesh::Axis> DeviceMesh::cut(const Axis& axis,
                                              const std::vector<MeshAxis>& parts) {
  std::vector<Axis> axes;
  int stride = axis.size();
  for (const auto& [name, size] : parts) {
    stride /= size;
    auto& part = axes.emplace_back(
        Axis{.name = name, .offsets = {}, .coordinate = axis.coordinate / stride % size});
    for (int k = 0; k < size; ++k) {
      part.offsets.push_back(axis.offsets[static_cast<std::size_t>(k * stride)]);
    }
  }
  return axes;
}

// The offsets of the axis that these axes make together.
std::vector<int> DeviceMesh::joined_offsets(const std::vector<Axis>& axes) {
  std::vector<int> joined = {0};
  for (const auto& axis : axes) {
    std::vector<int> offsets;
    for (const int outer : joined) {
      for (const int inner : axis.offsets) offsets.push_back(outer + inner);
    }
    joined = std::move(offsets);
  }
  return joined;
}

DeviceMesh DeviceMesh::flatten(const std::vector<std::string>& axes,
                               const std::string& name) const {
  const auto places = find_all("flatten", axes);
  check<ValueError>(places.back() - places.front() + 1 == places.size(),
                    "DeviceMesh: flatten must get neighbours of ", list_axes(this->axes()),
                    "; take a slice of the axes first");
  std::vector<Axis> joined;
  Axis flat = {.name = name, .offsets = {}, .coordinate = 0};
  for (const auto place : places) {
    joined.push_back(axes_[place]);
    flat.coordinate = flat.coordinate * axes_[place].size() + axes_[place].coordinate;
  }
  flat.offsets = joined_offsets(joined);
  return replaced(places.front(), places.back() + 1, {flat});
}

DeviceMesh DeviceMesh::unflatten(std::string_view axis, const std::vector<MeshAxis>& parts) const {
  const auto place = find_all("unflatten", {std::string(axis)}).front();
  const auto& whole = axes_[place];
  check_sizes(parts, whole.size());
  auto split = cut(whole, parts);
  check<ValueError>(joined_offsets(split) == whole.offsets, "DeviceMesh: axis ", axis,
                    " must be cut where axes were joined, got ", list_axes(parts));
  return replaced(place, place + 1, std::move(split));
}

std::optional<DeviceMesh> DeviceMesh::unflatten_by_host(std::string_view axis) const {
  const auto& whole = find(axis);
  const auto hosts = groups_->root()->hosts();
  std::vector<std::vector<int>> groups;  // of the axis, as the hosts of their ranks
  std::vector<bool> seen(hosts.size());
  for (std::size_t first = 0; first < hosts.size(); ++first) {
    if (seen[first]) continue;
    auto& group = groups.emplace_back();
    for (const int offset : whole.offsets) {
      const auto rank = first + static_cast<std::size_t>(offset);
      seen[rank] = true;
      group.push_back(hosts[rank]);
    }
  }
  const auto ranks_of_first = std::ranges::count(groups.front(), groups.front().front());
  const int each = static_cast<int>(ranks_of_first);
  if (each == 1 || each == whole.size() || whole.size() % each != 0) return std::nullopt;
  for (const auto& group : groups) {
    for (std::size_t i = 0; i < group.size(); ++i) {
      const auto run = i - i % static_cast<std::size_t>(each);
      if (group[i] != group[run] || std::ranges::count(group, group[i]) != each) {
        return std::nullopt;
      }
    }
  }
  const auto name = whole.name;
  return unflatten(axis, {{.name = name + "_host", .size = whole.size() / each},
                          {.name = name + "_local", .size = each}});
}

DeviceMesh DeviceMesh::replaced(std::size_t begin, std::size_t end, std::vector<Axis> parts) const {
  const auto at = [&](std::size_t place) {
    return axes_.begin() + static_cast<std::ptrdiff_t>(place);
  };
  DeviceMesh mesh(groups_, {axes_.begin(), at(begin)});
  mesh.axes_.insert(mesh.axes_.end(), parts.begin(), parts.end());
  mesh.axes_.insert(mesh.axes_.end(), at(end), axes_.end());
  check_names(mesh.axes());
  for (auto& axis : mesh.axes_) {
    if (axis.group == nullptr) axis.group = groups_->of(axis);
  }
  return mesh;
}

const DeviceMesh::Axis& DeviceMesh::find(std::string_view axis) const {
  check<ValueError>(has(axis), "DeviceMesh: no axis ", axis, ", got axes ", list_axes(axes()));
  return *std::ranges::find(axes_, axis, &Axis::name);
}

std::vector<std::size_t> DeviceMesh::find_all(std::string_view what,
                                              const std::vector<std::string>& axes) const {
  check<ValueError>(!axes.empty(), "DeviceMesh: ", what, " must get an axis of ",
                    list_axes(this->axes()), ", got none");
  std::vector<std::size_t> places;
  for (const auto& axis : axes) {
    const auto place = static_cast<std::size_t>(&find(axis) - axes_.data());
    check<ValueError>(places.empty() || places.back() < place, "DeviceMesh: ", what,
                      " must get axes in the order of ", list_axes(this->axes()), ", got ", axis,
                      " after ", axes_[places.empty() ? 0 : places.back()].name);
    places.push_back(place);
  }
  return places;
}

}  // namespace moegrad
