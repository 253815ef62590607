// SPDX-License-Identifier: Apache-2.0
#include "parallel/expert/expert_parallel.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "framework/distributed/compare_checksums.h"
#include "framework/distributed/shard_spec.h"
#include "framework/runtime/crc32c.h"
#include "framework/runtime/error.h"
#include "nn/moe.h"
#include "parallel/expert/all_to_all_dispatcher.h"
#include "parallel/parts.h"

namespace moegrad::parallel {
namespace {

/// A mixture layer, and the parameters of its experts.
struct Mixture {
  nn::MoE* layer = nullptr;
  std::string path;
  std::vector<nn::ParameterSlot> experts;
  std::int64_t num_experts = 0;
};

std::string shown(const std::string& path) { return path.empty() ? "the module" : path; }

void check_slot(const nn::ParameterSlot& slot, const std::string& name) {
  const auto& tensor = slot.parameter();
  check<ValueError>(slot.layout.stacked.ndim() > 0,
                    "expert_parallel: the experts' parameters must be stacked, "
                    "so that they can be divided by experts, got '",
                    name, "' ", tensor.shape());
  const auto& spec = tensor.shard_spec();
  check(spec == nullptr, "expert_parallel: '", name, "' must be whole, got ",
        spec == nullptr ? "" : part_text(*spec),
        "; call expert_parallel once, and before fully_shard");
  check_no_hooks("expert_parallel", name, tensor);
}

std::vector<Mixture> mixtures_below(nn::Module& module, int ranks) {
  std::vector<Mixture> mixtures;
  for (const auto& [path, below] : module.named_modules()) {
    auto* const layer = dynamic_cast<nn::MoE*>(below);
    if (layer == nullptr) continue;
    Mixture mixture;
    mixture.layer = layer;
    mixture.path = path;
    constexpr std::string_view kExperts = "experts.";
    for (const auto& slot : layer->parameter_slots()) {
      if (!slot.name.starts_with(kExperts)) continue;
      check_slot(slot, path.empty() ? slot.name : path + "." + slot.name);
      mixture.num_experts = slot.layout.stacked[0];
      mixture.experts.push_back(slot);
    }
    check<ValueError>(!mixture.experts.empty(), "expert_parallel: the experts of ", shown(path),
                      " must have parameters to divide, got none");
    check<ValueError>(mixture.num_experts % ranks == 0, "expert_parallel: the ", ranks,
                      " ranks of axis 'ep' must divide the experts of ", shown(path), ", got ",
                      mixture.num_experts);
    mixtures.push_back(std::move(mixture));
  }
  check<ValueError>(!mixtures.empty(),
                    "expert_parallel: the module must have a mixture layer, got none");
  return mixtures;
}

// Each rank keeps other experts, so afterwards nobody would notice that they began differently.
// Experts on the meta device have no values yet, and perhaps no ranks that run.
void check_same_experts(const std::vector<Mixture>& mixtures, ProcessGroup& group) {
  std::vector<std::string> names;
  std::vector<std::int64_t> checksums;
  bool any = false;
  for (const auto& mixture : mixtures) {
    for (const auto& slot : mixture.experts) {
      const auto& whole = slot.parameter();
      names.push_back(mixture.path.empty() ? slot.name : mixture.path + "." + slot.name);
      checksums.push_back(whole.is_meta() ? kNoChecksum : std::int64_t{crc32c(whole.bytes())});
      any = any || !whole.is_meta();
    }
  }
  if (any) compare_checksums("expert_parallel", group, names, checksums);
}

// In two levels where that has been faster (docs/expert_parallelism.md).
RowExchange exchange_over(const DeviceMesh& mesh) {
  constexpr int kFewestOfAHost = 4, kFewestRanks = 16;
  const auto& group = mesh.group("ep");
  const auto by_host = mesh.unflatten_by_host("ep");
  if (!by_host || by_host->size("ep_local") < kFewestOfAHost || group->size() < kFewestRanks) {
    return RowExchange(group);
  }
  return {group, by_host->group("ep_local"), by_host->group("ep_host")};
}

}  // namespace

int expert_parallel(nn::Module& module, const DeviceMesh& mesh, bool one_micro_batch) {
  std::string axes;
  bool is_innermost = true;
  for (const auto& axis : mesh.axes()) {
    axes += (axes.empty() ? "'" : ", '") + axis.name + "'";
    if (axis.name == "ep") is_innermost = true;
    if (axis.name == "shard" || axis.name == "replicate") is_innermost = false;
  }
  check<ValueError>(mesh.has("ep"), "expert_parallel: the mesh must have an axis 'ep', got ", axes);
  check<ValueError>(is_innermost,
                    "expert_parallel: axis 'ep' must come after 'replicate' and 'shard', so that "
                    "the ranks of an expert group are neighbours, got ",
                    axes);
  const auto& group = mesh.group("ep");
  module.restore_parameters();
  const auto mixtures = mixtures_below(module, group->size());
  if (group->size() == 1) return static_cast<int>(mixtures.size());
  check_same_experts(mixtures, *group);
  // All parts are made before anything changes.
  std::vector<std::pair<Tensor, Tensor>> parts;  // of each whole, which may be tied
  const auto part_made_of = [&](const Tensor& whole) {
    return std::ranges::find_if(parts, [&](const auto& each) { return each.first.is(whole); });
  };
  const auto exchange = exchange_over(mesh);
  std::vector<std::shared_ptr<nn::TokenDispatcher>> dispatchers;
  for (const auto& mixture : mixtures) {
    dispatchers.push_back(
        std::make_shared<AllToAllDispatcher>(exchange, mixture.num_experts, one_micro_batch));
    for (const auto& slot : mixture.experts) {
      const Tensor whole = slot.parameter();
      if (part_made_of(whole) == parts.end()) {
        parts.emplace_back(whole, part_of(whole, divided(whole_spec(whole.shape()), group, 0)));
      }
    }
  }
  for (std::size_t i = 0; i < mixtures.size(); ++i) {
    mixtures[i].layer->set_dispatcher(std::move(dispatchers[i]));
    for (const auto& slot : mixtures[i].experts) {
      *slot.tensor = part_made_of(slot.parameter())->second;
    }
  }
  for (const auto& [whole, part] : parts) mark_replaced(whole, part);
  return static_cast<int>(mixtures.size());
}

}  // namespace moegrad::parallel
