// SPDX-License-Identifier: Apache-2.0
#include "parallel/tensor/parallelize_module.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "framework/distributed/compare_checksums.h"
#include "framework/distributed/shard_spec.h"
#include "framework/runtime/crc32c.h"
#include "framework/runtime/error.h"
#include "framework/tensor/meta.h"
#include "nn/embedding.h"
#include "nn/linear.h"
#include "parallel/parts.h"
#include "parallel/tensor/partial_parameters.h"
#include "parallel/tensor/planned_modules.h"
#include "parallel/tensor/redistribute.h"

namespace moegrad::parallel {
namespace {

constexpr std::string_view kOp = "parallelize_module";

// --- what becomes of parameters

/// What replaces a parameter, or what all ranks have alike.
struct Placed {
  std::string name;
  Tensor whole;
  ShardSpec spec;
  Tensor part = {};
  std::vector<Tensor*> slots = {};
};

class Division {
 public:
  Division(nn::Module& root, const DeviceMesh& mesh)
      : root_(root), mesh_(mesh), axis_(mesh.axes().front().name), group_(mesh.group()) {}

  /// Looks at everything and makes the parts, but changes nothing. Collective.
  void plan(const ParallelPlan& plan) {
    check_same_plan(plan);
    const auto planned = matched_modules(root_, plan);
    for (const auto& each : planned) {
      if (is_of_weights(*each.style)) {
        for (const auto& slot : each.module->parameter_slots()) check_undivided(each, slot);
      }
      std::visit([&](const auto& style) { add(each, style); }, *each.style);
    }
    for (const auto& slot : root_.parameter_slots()) {
      const auto placed = find(slot.parameter());
      if (placed != placed_.end()) {
        check<ValueError>(!is_cut(*placed) ||
                              std::ranges::find(placed->slots, slot.tensor) != placed->slots.end(),
                          kOp, ": '", slot.name, "' is tied to '", placed->name,
                          "', which is cut, so it must be in the plan, too");
      } else if (!is_divided_here(slot.parameter())) {
        place(slot, replicated(spec_of(slot.parameter()), group_));
      }
    }
    check_same_values();
    for (auto& each : placed_) {
      if (is_cut(each)) each.part = part_of(each.whole, each.spec);
    }
  }

  void carry_out() {
    for (const auto& each : placed_) {
      if (!each.part.defined()) {
        each.whole.set_shard_spec(std::make_shared<const ShardSpec>(each.spec));
        continue;
      }
      for (auto* slot : each.slots) *slot = each.part;
      mark_replaced(each.whole, each.part);
    }
    for (const auto& change : changes_) change();
  }

 private:
  std::vector<Placed>::iterator find(const Tensor& whole) {
    return std::ranges::find_if(placed_, [&](const Placed& each) { return each.whole.is(whole); });
  }

  static ShardSpec spec_of(const Tensor& parameter) {
    const auto& spec = parameter.shard_spec();
    return spec != nullptr ? *spec : whole_spec(parameter.shape());
  }

  // Whether the ranks have it between them already, as those of expert parallelism may.
  bool is_divided_here(const Tensor& parameter) const {
    for (const auto& placement : spec_of(parameter).placements) {
      if (placement.group == nullptr) continue;
      std::vector<int> common;
      std::ranges::set_intersection(placement.group->ranks(), group_->ranks(),
                                    std::back_inserter(common));
      if (common.size() > 1) return true;
    }
    return false;
  }

  bool is_cut(const Placed& each) const { return each.spec.box.shape != each.whole.shape(); }

  void place(const nn::ParameterSlot& slot, ShardSpec spec, const std::string& path = {}) {
    const auto& whole = slot.parameter();
    const auto name = path.empty() ? slot.name : path + "." + slot.name;
    const auto& before = whole.shard_spec();
    check(before == nullptr || !(before->gathered_for_use || has_mark(whole, kReplaced)), kOp,
          ": '", name, "' must not be sharded or replaced yet, got ",
          before == nullptr ? "" : part_text(*before),
          "; call parallelize_module once, and before fully_shard");
    const auto found = find(whole);
    if (found == placed_.end()) {
      placed_.push_back(
          {.name = name, .whole = whole, .spec = std::move(spec), .slots = {slot.tensor}});
      if (is_cut(placed_.back())) check_no_hooks(kOp, name, whole);
      return;
    }
    check<ValueError>(
        found->spec.box == spec.box && found->spec.placements.size() == spec.placements.size(), kOp,
        ": '", name, "' is tied to '", found->name, "', so both must be cut alike, got ",
        part_text(spec), " and ", part_text(found->spec));
    found->slots.push_back(slot.tensor);
  }

  void check_undivided(const Planned& planned, const nn::ParameterSlot& slot) const {
    const auto& parameter = slot.parameter();
    check(!is_spread(spec_of(parameter)), kOp, ": '", planned.path, ".", slot.name,
          "' must not be divided over ranks yet, got ", part_text(spec_of(parameter)),
          "; call parallelize_module once for a module and all below it");
  }

  ShardSpec cut_evenly(const std::string& name, const Tensor& whole, std::int64_t dim) const {
    check<ValueError>(whole.dim(dim) % group_->size() == 0, kOp, ": the ", group_->size(),
                      " ranks of axis '", axis_, "' must divide dimension ", dim, " of '", name,
                      "', got ", whole.shape());
    return divided(spec_of(whole), group_, dim);
  }

  template <class Module>
  static Module& checked_module(const Planned& planned, std::string_view kinds) {
    auto* const module = dynamic_cast<Module*>(planned.module);
    check<ValueError>(module != nullptr, kOp, ": ", name_of(*planned.style), " is for ", kinds,
                      ", got another module at '", planned.path, "'");
    return *module;
  }

  static void check_layout(const Planned& planned, std::string_view what,
                           const TensorLayout& layout, std::vector<TensorLayout> possible) {
    check<ValueError>(std::ranges::find(possible, layout) != possible.end(), kOp, ": ", what,
                      " of ", name_of(*planned.style), " '", planned.path, "' must be one of ",
                      to_string(possible), ", got ", to_string(layout));
  }

  static void check_tiles(const Planned& planned, std::int64_t tiles) {
    check<ValueError>(tiles >= 1, kOp, ": tiles of '", planned.path, "' must be at least 1, got ",
                      tiles);
  }

  void reduce_gradients(nn::Module& module, std::shared_ptr<ProcessGroup> group,
                        std::vector<Tensor*> slots, PartialParameters::Divided divided) {
    changes_.emplace_back([&module, group = std::move(group), slots = std::move(slots), divided] {
      module.attach(std::make_shared<PartialParameters>(group, slots, divided));
    });
  }

  void add(const Planned& planned, const ColwiseParallel& style) {
    auto& layer = checked_module<nn::Linear>(planned, "a Linear");
    check_tiles(planned, style.tiles);
    check_layout(planned, "input_layouts", style.input_layouts, {Replicate(), Shard(0)});
    check_layout(planned, "output_layouts", style.output_layouts, {Shard(-1), Replicate()});
    const auto slots = layer.parameter_slots();
    const int ranks = group_->size();
    const auto blocks = style.blocks;
    const auto rows = layer.weight().dim(0);
    check<ValueError>(blocks >= 0 && (blocks == 0 || rows % blocks == 0), kOp, ": blocks of '",
                      planned.path, "' must divide its ", rows, " rows, got ", blocks);
    check<ValueError>(blocks == 0 || blocks % ranks == 0 || ranks % blocks == 0, kOp, ": the ",
                      ranks, " ranks of axis '", axis_, "' must divide the ", blocks,
                      " blocks of '", planned.path, "', or these the ranks");
    const bool copied = blocks != 0 && blocks < ranks;
    check<ValueError>(!copied || style.output_layouts == Shard(-1), kOp, ": output_layouts of '",
                      planned.path, "' must be Shard(-1) where several ranks have a block, got ",
                      to_string(style.output_layouts));
    for (const auto& slot : slots) {
      if (copied) {
        const auto parts = blocks_and_copies(blocks);
        auto spec = divided(spec_of(slot.parameter()), parts.group(axis_ + "_blocks"), 0);
        place(slot, replicated(std::move(spec), parts.group(axis_ + "_copies")), planned.path);
        reduce_gradients(layer, parts.group(axis_ + "_copies"), {slot.tensor}, std::nullopt);
      } else {
        place(slot, cut_evenly(planned.path + "." + slot.name, slot.parameter(), 0), planned.path);
      }
    }
    changes_.emplace_back([&layer, style, group = group_] {
      layer.divide({.group = group,
                    .side = nn::LinearDivision::Side::kColumns,
                    .divided_rows = style.input_layouts == Shard(0),
                    .whole_features = style.output_layouts == Replicate(),
                    .tiles = style.tiles});
    });
  }

  void add(const Planned& planned, const RowwiseParallel& style) {
    check_layout(planned, "output_layouts", style.output_layouts, {Replicate(), Shard(0)});
    const bool divided_rows = style.output_layouts == Shard(0);
    if (auto* const embedding = dynamic_cast<nn::Embedding*>(planned.module)) {
      check_layout(planned, "input_layouts", style.input_layouts, {Replicate()});
      for (const auto& slot : embedding->parameter_slots()) {
        place(slot, cut_evenly(planned.path + "." + slot.name, slot.parameter(), 0), planned.path);
      }
      changes_.emplace_back(
          [embedding, divided_rows, group = group_] { embedding->divide(group, divided_rows); });
      return;
    }
    auto& layer = checked_module<nn::Linear>(planned, "a Linear or an Embedding");
    check_tiles(planned, style.tiles);
    check_layout(planned, "input_layouts", style.input_layouts, {Shard(-1), Replicate()});
    for (const auto& slot : layer.parameter_slots()) {
      if (slot.name == "weight") {
        place(slot, cut_evenly(planned.path + ".weight", slot.parameter(), 1), planned.path);
      } else {
        place(slot, replicated(spec_of(slot.parameter()), group_), planned.path);
        if (divided_rows) reduce_gradients(layer, group_, {slot.tensor}, 0);
      }
    }
    changes_.emplace_back([&layer, style, divided_rows, group = group_] {
      layer.divide({.group = group,
                    .side = nn::LinearDivision::Side::kRows,
                    .divided_rows = divided_rows,
                    .whole_features = style.input_layouts == Replicate(),
                    .tiles = style.tiles});
    });
  }

  void add(const Planned& planned, const SequenceParallel& style) {
    check<ValueError>(style.sequence_dim == 0 || style.sequence_dim == 1, kOp,
                      ": sequence_dim of '", planned.path, "' must be 0 or 1, got ",
                      style.sequence_dim);
    std::vector<Tensor*> slots;
    for (const auto& slot : planned.module->parameter_slots()) {
      place(slot, replicated(spec_of(slot.parameter()), group_), planned.path);
      slots.push_back(slot.tensor);
    }
    check<ValueError>(!slots.empty(), kOp,
                      ": SequenceParallel is for a module with parameters, got '", planned.path,
                      "' without");
    reduce_gradients(*planned.module, group_, std::move(slots), style.sequence_dim);
  }

  void add(const Planned& planned, const PrepareModuleInput& style) {
    prepare(planned, {style.input_layouts, style.desired_input_layouts}, {});
  }
  void add(const Planned& planned, const PrepareModuleOutput& style) {
    prepare(planned, {}, {style.output_layouts, style.desired_output_layouts});
  }
  void prepare(const Planned& planned, Redistribute::Layouts inputs,
               Redistribute::Layouts outputs) {
    check<ValueError>(planned.module->is_callable(), kOp, ": ", name_of(*planned.style),
                      " is for a module that is called, got '", planned.path, "'");
    for (const auto& layouts : {inputs, outputs}) {
      check<ValueError>(layouts.from.size() == layouts.to.size(), kOp, ": ",
                        name_of(*planned.style), " '", planned.path,
                        "' must have a desired layout for each of ", layouts.from.size(), ", got ",
                        layouts.to.size());
    }
    changes_.emplace_back([planned, group = group_, inputs, outputs] {
      planned.module->attach(std::make_shared<Redistribute>(group, planned.path, inputs, outputs));
    });
  }

  // The ranks as a grid: those with other blocks, then those with the same one.
  DeviceMesh blocks_and_copies(std::int64_t blocks) const {
    const auto size = static_cast<int>(blocks);
    return mesh_.unflatten(axis_,
                           {{axis_ + "_blocks", size}, {axis_ + "_copies", group_->size() / size}});
  }

  // Ranks of a dry run do not run.
  bool compares() const { return group_->size() > 1 && !meta_enabled(); }

  // First of all: of two plans one may be refused, and its rank not be there any more.
  void check_same_plan(const ParallelPlan& plan) const {
    if (!compares()) return;
    const auto text = to_string(plan);
    compare_checksums(kOp, *group_, {"the plan"},
                      {std::int64_t{crc32c(std::as_bytes(std::span(text)))}});
  }

  // Each rank keeps another part, so afterwards nobody would notice that they began differently.
  void check_same_values() const {
    if (!compares()) return;
    std::vector<std::string> names;
    std::vector<std::int64_t> checksums;
    for (const auto& each : placed_) {
      names.push_back(each.name);
      const bool has_values = !each.whole.is_meta() && each.whole.is_contiguous();
      checksums.push_back(has_values ? std::int64_t{crc32c(each.whole.bytes())} : kNoChecksum);
    }
    compare_checksums(kOp, *group_, names, checksums);
  }

  nn::Module& root_;
  const DeviceMesh& mesh_;
  std::string axis_;
  std::shared_ptr<ProcessGroup> group_;
  std::vector<Placed> placed_;
  std::vector<std::function<void()>> changes_;
};

}  // namespace

void parallelize_module(nn::Module& module, const DeviceMesh& mesh, const ParallelPlan& plan) {
  check_one_axis(kOp, mesh);
  module.restore_parameters();
  Division division(module, mesh);
  division.plan(plan);
  if (mesh.size() > 1) division.carry_out();
}

}  // namespace moegrad::parallel
