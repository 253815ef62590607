// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/parallel_dims.h"

#include <array>
#include <sstream>
#include <utility>

#include "framework/runtime/error.h"

namespace moegrad {
namespace {

// Every size with its name, in the order in which ranks are numbered, and ep.
std::array<MeshAxis, 6> axes_of(const ParallelDims& dims) {
  return {{{"pp", dims.pp},
           {"dp_replicate", dims.dp_replicate},
           {"dp_shard", dims.dp_shard},
           {"cp", dims.cp},
           {"tp", dims.tp},
           {"ep", dims.ep}}};
}

std::string all_axes(const ParallelDims& dims) {
  std::ostringstream text;
  for (const auto& [name, size] : axes_of(dims)) {
    if (name != "ep") text << (text.tellp() > 0 ? ", " : "") << name << ' ' << size;
  }
  return text.str();
}

}  // namespace

std::string to_string(const ParallelDims& dims) {
  std::ostringstream text;
  for (const auto& [name, size] : axes_of(dims)) {
    if (size != 1) text << (text.tellp() > 0 ? ", " : "") << name << ' ' << size;
  }
  return text.tellp() > 0 ? text.str() : "one rank";
}

ParallelDims resolved(ParallelDims dims, int world_size) {
  const bool rest = dims.dp_shard == -1;
  if (rest) dims.dp_shard = 1;
  std::int64_t product = 1;
  for (const auto& [name, size] : axes_of(dims)) {
    check<ValueError>(size >= 1, "ParallelDims: ", name, " must be at least 1",
                      name == "dp_shard" ? ", or -1 for all ranks that are left" : "", ", got ",
                      size);
    if (name == "ep") continue;
    check<ValueError>(product <= world_size, "ParallelDims: ", all_axes(dims), " must make ",
                      world_size, " ranks, got more");
    product *= size;
  }
  if (rest) {
    check<ValueError>(world_size % product == 0, "ParallelDims: ", all_axes(dims),
                      " must divide the ", world_size, " ranks, so that dp_shard takes the rest");
    dims.dp_shard = static_cast<int>(world_size / product);
    product = world_size;
  }
  check<ValueError>(product == world_size, "ParallelDims: ", all_axes(dims), " must make ",
                    world_size, " ranks, got ", product);
  check<ValueError>(dims.tp == 1 || dims.ep == 1 || dims.ep == dims.tp,
                    "ParallelDims: ep must be 1 or tp, ", dims.tp, ", got ", dims.ep);
  if (dims.tp > 1) return dims;
  const int sharded = dims.dp_shard * dims.cp;
  check<ValueError>(sharded % dims.ep == 0, "ParallelDims: ep must divide dp_shard x cp, ",
                    dims.dp_shard, " x ", dims.cp, ", got ", dims.ep);
  check<ValueError>(dims.ep == 1 || dims.ep % dims.cp == 0,
                    "ParallelDims: ep must be a multiple of cp, ", dims.cp, ", got ", dims.ep);
  return dims;
}

std::map<std::string, std::string> ParallelMeshes::axes_of_groups() const {
  std::map<std::string, std::string> axes;
  const auto add = [&](const DeviceMesh& mesh, const std::string& axis) {
    if (mesh.size(axis) == 1) return;
    auto& joined = axes[mesh.group(axis)->name()];
    joined += (joined.empty() ? "" : "+") + axis;
  };
  for (const auto& axis : world.axes()) add(world, axis.name);
  add(expert, "ep");
  return axes;
}

ParallelMeshes make_meshes(std::shared_ptr<ProcessGroup> group, const ParallelDims& dims) {
  check<ValueError>(group != nullptr,
                    "ParallelDims: needs a process group, got null; run this in the body of "
                    "launch(world_size, body)");
  const auto sizes = resolved(dims, group->size());
  const auto axes = axes_of(sizes);
  const auto world_group = group;
  DeviceMesh world(std::move(group), {axes.begin(), axes.end() - 1});
  auto dense = world.flatten({"dp_replicate"}, "replicate").flatten({"dp_shard", "cp"}, "shard");
  auto expert =
      sizes.tp > 1 && sizes.ep > 1
          ? dense.flatten({"tp"}, "ep")
          : dense.unflatten("shard", {{"shard", dense.size("shard") / sizes.ep}, {"ep", sizes.ep}});
  auto stage =
      sizes.pp == 1
          ? world_group
          : world.flatten({"dp_replicate", "dp_shard", "cp", "tp"}, "stage").group("stage");
  return {.world = std::move(world),
          .dense = std::move(dense),
          .expert = std::move(expert),
          .stage = std::move(stage)};
}

}  // namespace moegrad
