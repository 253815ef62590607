// SPDX-License-Identifier: Apache-2.0
#include "fsdp/fully_shard.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <unordered_set>
#include <utility>

#include "framework/distributed/shard_spec.h"
#include "framework/runtime/error.h"
#include "framework/tensor/tensor_impl.h"

namespace moegrad::fsdp {
namespace {

bool is_linear(const nn::ParameterSlot& slot) {
  return slot.layout.role != nn::ParameterLayout::Role::kDense;
}

bool is_expert(const nn::ParameterSlot& slot) {
  return slot.layout.role == nn::ParameterLayout::Role::kExpertGateUp ||
         slot.layout.role == nn::ParameterLayout::Role::kExpertDown;
}

void check_dtypes(const MixedPrecisionPolicy& mixed) {
  const auto refuse = [](const char* what, Dtype dtype) {
    throw DtypeError("fully_shard: " + std::string(what) + ", got " +
                     std::string(to_string(dtype)));
  };
  if (mixed.param_dtype && !holds_reals(*mixed.param_dtype)) {
    refuse("param_dtype must be a floating dtype", *mixed.param_dtype);
  }
  if (mixed.reduce_dtype && !holds_reals(*mixed.reduce_dtype)) {
    refuse("reduce_dtype must be a floating dtype", *mixed.reduce_dtype);
  }
  if (mixed.output_dtype && !is_floating(*mixed.output_dtype)) {
    refuse("output_dtype must be float32 or float64", *mixed.output_dtype);
  }
  if (mixed.wire_dtype && !holds_reals(*mixed.wire_dtype)) {
    refuse("wire_dtype must be a floating dtype", *mixed.wire_dtype);
  }
}

GroupRanks ranks_of(const DeviceMesh& mesh, const DataParallelMeshDims& dims) {
  check<ValueError>(dims.shard || dims.replicate,
                    "fully_shard: mesh_dims must name an axis to shard or to replicate over");
  for (const auto& axis : mesh.axes()) {
    check<ValueError>(
        axis.size == 1 || axis.name == dims.shard || axis.name == dims.replicate,
        "fully_shard: mesh axis '", axis.name, "' of size ", axis.size,
        " is neither sharded nor replicated over; pass a slice of the mesh without it");
  }
  GroupRanks ranks;
  if (dims.shard) ranks.shard = mesh.group(*dims.shard);
  // A mesh without this axis has one replica, unless there is no other axis.
  if (dims.replicate && (mesh.has(*dims.replicate) || !dims.shard)) {
    ranks.replicas = mesh.group(*dims.replicate);
  }
  return ranks;
}

/// The parameters of one call that share a mesh, and the dtypes that they travel and are gathered
/// in.
struct GroupSlots {
  GroupRanks ranks;
  GatheredDtypes dtypes;
  std::vector<PlacedSlot> slots;
};

class Grouping {
 public:
  Grouping(const DeviceMesh& mesh, const Policy& policy) : mesh_(mesh), policy_(policy) {}

  /// `for_products`: products alone read it.
  void add(const nn::ParameterSlot& slot, bool for_products) {
    check_no_hooks(slot);
    check_own_bytes(slot);
    const auto placement =
        policy_.shard_placement ? policy_.shard_placement(slot) : ShardPlacement{};
    const bool on_expert_mesh = is_expert(slot) && policy_.expert_mesh && !placement.mesh;
    if (on_expert_mesh) check_all_ranks(slot, *policy_.expert_mesh);
    check<ValueError>(on_expert_mesh || placement.mesh != nullptr || !is_divided_here(slot),
                      "fully_shard: '", slot.name,
                      "' is divided over ranks of the mesh already, so Policy::expert_mesh must be "
                      "the mesh of the others (ParallelMeshes::expert_fsdp), got none");
    const auto& own = on_expert_mesh ? *policy_.expert_mesh : mesh_;
    const auto ranks =
        ranks_of(placement.mesh != nullptr ? *placement.mesh : own, policy_.mesh_dims);
    check_tied_alike(slot, ranks, placement.dim);
    check_one_dtype(slot, ranks);
    const auto dtypes =
        gathered_dtypes(policy_.mixed_precision, slot.tensor->dtype(), for_products);
    auto group = std::ranges::find_if(groups_, [&](const GroupSlots& each) {
      return each.ranks == ranks && each.dtypes == dtypes;
    });
    if (group == groups_.end()) group = groups_.insert(group, {ranks, dtypes, {}});
    group->slots.push_back({slot, placement.dim});
  }

  const std::vector<GroupSlots>& groups() const { return groups_; }

 private:
  void check_tied_alike(const nn::ParameterSlot& slot, const GroupRanks& ranks,
                        std::int64_t dim) const {
    for (const auto& group : groups_) {
      for (const auto& [other, other_dim] : group.slots) {
        if (!other.tensor->is(*slot.tensor)) continue;
        check(group.ranks == ranks && other_dim == dim, "fully_shard: parameter '", slot.name,
              "' is tied to '", other.name, "', but placed on another mesh or dimension");
      }
    }
  }

  void check_one_dtype(const nn::ParameterSlot& slot, const GroupRanks& ranks) const {
    for (const auto& group : groups_) {
      if (group.ranks != ranks) continue;
      const auto dtype = group.slots.front().slot.tensor->dtype();
      check<DtypeError>(slot.tensor->dtype() == dtype,
                        "fully_shard: one group needs one dtype, got ", dtype, " and ",
                        slot.tensor->dtype(), " of '", slot.name, "'");
    }
  }

  // The experts of ranks that no sum reaches would train apart.
  void check_all_ranks(const nn::ParameterSlot& slot, const DeviceMesh& expert_mesh) const {
    int ranks = expert_mesh.size();
    if (const auto& spec = slot.tensor->shard_spec()) {
      for (const auto& outer : spec->placements) ranks *= outer.ranks();
    }
    check<ValueError>(ranks >= mesh_.size(),
                      "fully_shard: expert_mesh and what has divided the "
                      "experts before must reach all ",
                      mesh_.size(), " ranks of the mesh, got ", ranks, " for '", slot.name,
                      "'; call parallel::expert_parallel before fully_shard");
  }

  // Whether another kind of parallelism has divided the experts over ranks of the mesh.
  bool is_divided_here(const nn::ParameterSlot& slot) const {
    const auto& spec = slot.tensor->shard_spec();
    if (!is_expert(slot) || spec == nullptr || !policy_.mesh_dims.shard) return false;
    const auto& here = mesh_.group(*policy_.mesh_dims.shard);
    return std::ranges::any_of(spec->placements, [&](const Placement& outer) {
      if (here == nullptr || outer.group == nullptr || outer.ranks() == 1) return false;
      std::vector<int> common;
      std::ranges::set_intersection(here->ranks(), outer.group->ranks(),
                                    std::back_inserter(common));
      return common.size() > 1;
    });
  }

  // The shard that replaces the parameter would not run its hooks.
  static void check_no_hooks(const nn::ParameterSlot& slot) {
    const auto& leaf = slot.tensor->impl()->leaf;
    const bool any = leaf && !(leaf->hooks.empty() && leaf->post_accumulate_hooks.empty());
    check(!any, "fully_shard: parameter '", slot.name,
          "' must have no hooks yet, because its shard takes its place; register post-accumulate "
          "hooks on the shard");
  }

  // Two tensors that share bytes would become two parameters that no longer agree.
  void check_own_bytes(const nn::ParameterSlot& slot) const {
    const auto begin_of = [](const Tensor& tensor) { return tensor.offset(); };
    const auto end_of = [](const Tensor& tensor) { return tensor.offset() + tensor.numel(); };
    for (const auto& group : groups_) {
      for (const auto& [other, other_dim] : group.slots) {
        const Tensor &a = *other.tensor, &b = *slot.tensor;
        const bool apart = a.is(b) || &a.storage() != &b.storage() || begin_of(a) >= end_of(b) ||
                           begin_of(b) >= end_of(a);
        check(apart, "fully_shard: parameters '", other.name, "' and '", slot.name,
              "' must not share their bytes; to tie them, register the same Tensor in both places");
      }
    }
  }

  const DeviceMesh& mesh_;
  const Policy& policy_;
  std::vector<GroupSlots> groups_;
};

using Slots = std::unordered_set<const Tensor*>;

// The slots in `root` that the groups of earlier calls have.
Slots slots_of_earlier_calls(nn::Module& root) {
  Slots slots;
  for (const auto& [path, module] : root.named_modules()) {
    const auto* state = module->extension<State>();
    if (state == nullptr) continue;
    for (const auto& group : state->groups()) {
      for (const auto& param : group->params())
        slots.insert(param.slots.begin(), param.slots.end());
    }
  }
  return slots;
}

// Whether the parameter belongs to an earlier call. Then that call's group has this slot; it is an
// error if the slot still holds the tensor that it had before, tied to one that was taken. A
// parameter that another kind of parallelism has divided belongs to no call yet.
bool is_taken(const nn::ParameterSlot& slot, const Slots& taken) {
  const Tensor& parameter = slot.parameter();
  const auto& spec = parameter.shard_spec();
  if (spec == nullptr || !(spec->gathered_for_use || has_mark(parameter, kReplaced))) return false;
  if (taken.contains(slot.tensor)) return true;
  throw Error(
      "fully_shard: parameter '" + slot.name +
      "' is tied to one that an earlier fully_shard call has taken; shard both in one call, by "
      "fully_shard({&a, &b}, mesh) and then the module that holds a and b (or, if that call was "
      "for a module above, call fully_shard bottom-up)");
}

void check_modules(const std::vector<nn::Module*>& modules) {
  check<ValueError>(!modules.empty(), "fully_shard: at least one module");
  check<ValueError>(std::ranges::find(modules, nullptr) == modules.end(),
                    "fully_shard: modules must not be null");
  for (const auto* module : modules) {
    check<ValueError>(module->is_callable(),
                      "fully_shard: a module must be called to gather its parameters, but a list "
                      "of modules is not; pass its elements");
  }
  for (auto module = modules.begin(); module != modules.end(); ++module) {
    check((*module)->extension<State>() == nullptr &&
              std::find(modules.begin(), module, *module) == module,
          "fully_shard: the module has been sharded before; each rank needs a model of its own");
  }
  for (auto* outer : modules) {
    for (const auto& [path, inner] : outer->named_modules()) {
      check<ValueError>(inner == outer || std::ranges::find(modules, inner) == modules.end(),
                        "fully_shard: modules of one call must not contain each other, got one "
                        "and its '",
                        path, "'");
    }
  }
}

void add_parameters_of(nn::Module& module, const Policy& policy, Grouping& grouping) {
  const auto taken = slots_of_earlier_calls(module);
  const auto slots = module.parameter_slots();
  const auto for_products = [&](const Tensor& tensor) {
    return std::ranges::all_of(slots, [&](const nn::ParameterSlot& slot) {
      return is_linear(slot) || !slot.tensor->is(tensor);
    });
  };
  for (const auto& slot : slots) {
    const bool ignored = std::ranges::any_of(
        policy.ignored_parameters, [&](const Tensor& other) { return other.is(*slot.tensor); });
    if (ignored || is_taken(slot, taken)) continue;
    if (!policy.linear_only_shard || is_linear(slot))
      grouping.add(slot, for_products(*slot.tensor));
  }
}

// Each module computes as the call that has its parameters says.
void compute_in_bfloat16(nn::Module& root, const State& state) {
  std::vector<std::pair<nn::Module*, std::optional<Dtype>>> of_earlier_calls;
  for (const auto& [path, module] : root.named_modules()) {
    const auto* const other = module->extension<State>();
    if (other != nullptr && other != &state) {
      of_earlier_calls.emplace_back(module, module->compute_dtype());
    }
  }
  root.compute_in(Dtype::kBFloat16);
  for (const auto& [module, dtype] : of_earlier_calls) module->compute_in(dtype);
}

// The policy for modules that may have been told to compute in bfloat16 before.
Policy with_compute_dtype(Policy policy, const std::vector<nn::Module*>& modules) {
  const auto computes = [](const nn::Module* module) {
    return module->compute_dtype().has_value();
  };
  if (std::ranges::none_of(modules, computes)) return policy;
  auto& param_dtype = policy.mixed_precision.param_dtype;
  check<DtypeError>(param_dtype.value_or(Dtype::kBFloat16) == Dtype::kBFloat16,
                    "fully_shard: param_dtype must be bfloat16 for a module that computes in it "
                    "(compute_in), got ",
                    param_dtype.value_or(Dtype::kBFloat16));
  param_dtype = Dtype::kBFloat16;
  return policy;
}

}  // namespace

State& fully_shard(const std::vector<nn::Module*>& modules, const DeviceMesh& mesh,
                   const Policy& given) {
  check_modules(modules);
  const Policy policy = with_compute_dtype(given, modules);
  check_dtypes(policy.mixed_precision);
  check<ValueError>(policy.forward_prefetch >= 0,
                    "fully_shard: forward_prefetch must not be negative, got ",
                    policy.forward_prefetch);
  check<ValueError>(policy.copy_out != nullptr, "fully_shard: copy_out must not be null");
  Grouping grouping(mesh, policy);
  // Parameters gathered by hand would look as if nobody had taken them.
  for (auto* module : modules) module->restore_parameters();
  for (auto* module : modules) add_parameters_of(*module, policy, grouping);
  std::vector<std::unique_ptr<ParamGroup>> groups;
  for (const auto& [ranks, dtypes, slots] : grouping.groups()) {
    const auto name = groups.empty() ? std::string() : slots.front().slot.name;
    groups.push_back(std::make_unique<ParamGroup>(slots, ranks, policy, dtypes, name));
  }
  auto state =
      std::make_shared<State>(modules, ranks_of(mesh, policy.mesh_dims), std::move(groups), policy);
  for (auto* module : modules) module->attach(state);
  // Nothing throws from here on. So the modules are either sharded or unchanged.
  state->register_hooks();
  if (policy.mixed_precision.param_dtype == Dtype::kBFloat16) {
    for (auto* module : modules) compute_in_bfloat16(*module, *state);
  }
  for (const auto& group : state->groups()) group->take_slots();
  for (const auto& ignored : policy.ignored_parameters) set_mark(ignored, kLeftWhole);
  return *state;
}

State& fully_shard(nn::Module& module, const DeviceMesh& mesh, const Policy& policy) {
  return fully_shard(std::vector<nn::Module*>{&module}, mesh, policy);
}

}  // namespace moegrad::fsdp
