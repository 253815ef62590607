// SPDX-License-Identifier: Apache-2.0
#include "train/memory_plan.h"

#include <algorithm>
#include <initializer_list>
#include <map>
#include <set>
#include <span>
#include <sstream>
#include <string_view>
#include <vector>

#include "framework/autograd/checkpoint_policy.h"
#include "framework/runtime/program.h"
#include "nn/path_matches.h"
#include "nn/recompute.h"

namespace moegrad::training {
namespace {

constexpr std::int64_t kLeastOffloaded = 4096;  // bytes
// Experts are busy that have more rows than their rank has sent, by this factor.
constexpr double kBusy = 1.25;

bool is_any_of(std::string_view op, std::initializer_list<std::string_view> ops) {
  return std::ranges::find(ops, op) != ops.end();
}

// The result of an op in a layer, as far as a set depends on it. The path begins at the layer.
struct Kind {
  std::string_view op, path;
  std::size_t output = 0;
};
// Each that some set has.
constexpr Kind kKinds[] = {{"add", ""},
                           {"rms_norm", "input_layernorm"},
                           {"linear", "self_attn.v_proj"},
                           {"rms_norm_rope", "self_attn.q_norm"},
                           {"attention", "self_attn"},
                           {"add_rms_norm", "post_attention_layernorm", 0},
                           {"add_rms_norm", "post_attention_layernorm", 1},
                           {"permute_rows", "mlp.dispatcher"},
                           {"npu_gmm", "mlp.experts"},
                           {"swiglu", "mlp.experts"},
                           {"linear", "mlp.up_proj"}};

// Nothing saves the norms of queries and keys, which go on to rope. The sum,
// add_rms_norm's first result, is its own input of the next layer.
bool is_norm(const Kind& of) {
  return of.op == "add_rms_norm" ? of.output == 1 : of.op == "rms_norm";
}
bool is_before_qkv(const Kind& of) { return is_norm(of) && of.path == "input_layernorm"; }
bool is_rotated(const Kind& of) { return is_any_of(of.op, {"rms_norm_rope", "rope"}); }
bool is_activation(const Kind& of) { return is_any_of(of.op, {"swiglu", "silu"}); }
bool is_experts_activation(const Kind& of) { return of.op == "swiglu"; }
bool is_permuted(const Kind& of) { return of.op == "permute_rows"; }
bool is_experts_product(const Kind& of) { return is_any_of(of.op, {"npu_gmm", "grouped_matmul"}); }
bool is_attention(const Kind& of) { return of.op == "attention"; }
bool is_light(const Kind& of) {
  return is_norm(of) || is_rotated(of) || is_activation(of) || is_permuted(of);
}
bool is_medium(const Kind& of) {
  return is_light(of) || is_experts_product(of) ||
         (of.op == "linear" && of.path.starts_with("mlp"));
}
bool is_layers_result(const Kind& of) { return of.path.empty() && of.op == "add"; }
bool is_before_mlp_norm(const Kind& of) { return of.op == "add_rms_norm" && of.output == 0; }
bool is_before_attention(const Kind& of) {
  return is_rotated(of) || (of.op == "linear" && of.path == "self_attn.v_proj");
}

struct Set {
  std::string_view name;
  bool (*picks)(const Kind&);
};
constexpr Set kMadeAgain[] = {{"light", is_light},         {"medium", is_medium},
                              {"full", is_medium},         {"layernorm", is_norm},
                              {"core_attn", is_attention}, {"moe_act", is_experts_activation}};
constexpr Set kOffloaded[] = {{"attn_norm", is_layers_result},    {"qkv_linear", is_before_qkv},
                              {"core_attn", is_before_attention}, {"attn_proj", is_attention},
                              {"mlp_norm", is_before_mlp_norm},   {"expert_fc1", is_permuted},
                              {"moe_act", is_experts_product}};
constexpr std::string_view kWholes[] = {"full", "mlp", "moe", "shared_experts"};

// Which modules are a whole of the item, with "mlp" a dense one.
bool is_whole(std::string_view item, std::string_view path, bool is_mixture) {
  if (path == "mlp") return item == "full" || item == (is_mixture ? "moe" : "mlp");
  return item == "shared_experts" && is_any_of(path, {"mlp.shared_expert", "mlp.shared_experts"});
}

bool is_mixture(const nn::Module& layer) {
  return std::ranges::any_of(layer.named_modules(),
                             [](const auto& named) { return named.first == "mlp.experts"; });
}

std::vector<std::string> items_of(const std::string& option, const std::string& list) {
  if (list == "none") return {};
  std::vector<std::string> items;
  std::istringstream text(list + ',');
  for (std::string item; std::getline(text, item, ',');) items.push_back(item);
  check<UsageError>(std::ranges::find(items, "") == items.end(), option,
                    ": must be items with commas between them, got '", list, "'");
  check<UsageError>(std::ranges::find(items, "none") == items.end(), option,
                    ": must be none alone, or other items, got '", list, "'");
  return items;
}

// The paths of modules that an item names.
std::set<std::string> named_paths(const models::CausalLM& model, const std::string& option,
                                  const std::string& item, std::string_view others) {
  std::set<std::string> paths;
  for (const auto& [path, module] : model.named_modules()) {
    if (!path.empty() && nn::path_matches(item, path)) paths.insert(path);
  }
  check<UsageError>(!paths.empty(), option, ": '", item, "' must be one of ", others,
                    ", or the path of a module, such as model.layers.0.mlp or "
                    "model.layers.*.mlp, in which * is any name between dots");
  return paths;
}

bool is_at_or_below(std::string_view path, std::string_view module) {
  return path.starts_with(module) && (path.size() == module.size() || path[module.size()] == '.');
}

// What the lists say of the results of a layer.
struct Policy {
  std::vector<const Set*> again, offloaded;
  std::set<std::string> offloaded_paths;
  bool offloads_rest = false;
  bool adapts = false;
  std::int64_t experts_per_token = 0;

  bool recomputes() const { return adapts || !again.empty(); }
  bool offloads() const { return offloads_rest || !offloaded.empty() || !offloaded_paths.empty(); }
  /// Also what layers keep that run again as wholes.
  bool offloads_layers() const {
    return offloads_rest || any(offloaded, {.op = "add", .path = ""});
  }
  static bool any(const std::vector<const Set*>& sets, const Kind& kind) {
    return std::ranges::any_of(sets, [&](const Set* set) { return set->picks(kind); });
  }
  /// The policy of a layer at `path`. What runs again as a whole offloads nothing then.
  CheckpointPolicyFunction of_layer(const std::string& path, bool offloads) const {
    return [policy = *this, path, offloads,
            sent = std::make_shared<std::int64_t>(0)](const OpResult& result) {
      const auto within = result.path.substr(std::min(result.path.size(), path.size() + 1));
      const Kind kind{result.op, within, result.output};
      if (kind.op == "linear" && kind.path == "mlp.gate") {
        *sent = policy.experts_per_token * result.tensor.dim(0);
      }
      const bool is_of_busy_experts =
          policy.adapts && (is_experts_product(kind) || is_experts_activation(kind)) &&
          static_cast<double>(result.tensor.dim(0)) > kBusy * static_cast<double>(*sent);
      if (is_of_busy_experts || any(policy.again, kind)) return CheckpointPolicy::kPreferRecompute;
      const bool named =
          any(policy.offloaded, kind) ||
          std::ranges::any_of(policy.offloaded_paths, [&](const std::string& module) {
            return is_at_or_below(result.path, module);
          });
      const bool goes = named || (policy.offloads_rest && is_large(result));
      return offloads && goes ? CheckpointPolicy::kPreferCpuOffload : CheckpointPolicy::kMustSave;
    };
  }
  static bool is_large(const OpResult& result) {
    return result.tensor.numel() * size_of(result.tensor.dtype()) >= kLeastOffloaded;
  }
};

constexpr std::string_view kAgainNames =
    "none, light, medium, full, adaptive, layernorm, core_attn, moe_act, mlp, moe, shared_experts";
constexpr std::string_view kOffloadNames =
    "none, activations, attn_norm, qkv_linear, core_attn, attn_proj, mlp_norm, expert_fc1, "
    "moe_act";

const Set* find_set(std::string_view name, std::span<const Set> sets) {
  const auto found = std::ranges::find(sets, name, &Set::name);
  return found == sets.end() ? nullptr : &*found;
}

using Modules = std::map<std::string, nn::Module*>;  // by path

// Modules that run again as wholes.
Modules read_again(models::CausalLM& model, const MemoryPlan& plan, const Modules& layers,
                   Policy& policy) {
  std::set<std::string> paths;
  for (const auto& item : items_of("--recompute", plan.recompute)) {
    const auto* const set = find_set(item, kMadeAgain);
    if (set != nullptr) policy.again.push_back(set);
    const bool is_of_wholes = std::ranges::find(kWholes, item) != std::end(kWholes);
    std::set<std::string> named;
    for (const auto& [layer_path, layer] : layers) {
      for (const auto& [path, module] : layer->named_modules()) {
        if (is_whole(item, path, is_mixture(*layer))) named.insert(layer_path + '.' + path);
      }
    }
    policy.adapts = policy.adapts || item == "adaptive";
    check<UsageError>(item != "adaptive" ||
                          std::ranges::any_of(
                              layers, [](const auto& layer) { return is_mixture(*layer.second); }),
                      "--recompute: adaptive needs experts, which this model does not have");
    if (set == nullptr && !is_of_wholes && item != "adaptive") {
      named = named_paths(model, "--recompute", item, kAgainNames);
    }
    check<UsageError>(!is_of_wholes || !named.empty(), "--recompute: ", item,
                      " names no module of this model: mlp is for dense MLPs, moe for mixtures, "
                      "shared_experts for what all tokens of a mixture go through");
    paths.merge(named);
  }
  Modules wholes;
  for (const auto& [path, module] : model.named_modules()) {
    if (paths.contains(path)) wholes[path] = module;
  }
  for (std::int64_t i = 0; i < plan.recompute_layers; ++i) {
    const auto* const layer = &model.layers().at(static_cast<std::size_t>(i));
    wholes.insert(*std::ranges::find(layers, layer, &Modules::value_type::second));
  }
  return wholes;
}

void read_offloaded(const models::CausalLM& model, const MemoryPlan& plan, const Modules& layers,
                    const Modules& wholes, Policy& policy) {
  for (const auto& item : items_of("--offload", plan.offload)) {
    if (const auto* const set = find_set(item, kOffloaded)) {
      policy.offloaded.push_back(set);
    } else if (item == "activations") {
      policy.offloads_rest = true;
    } else {
      policy.offloaded_paths.merge(named_paths(model, "--offload", item, kOffloadNames));
    }
  }
  for (const auto& path : policy.offloaded_paths) {
    check<UsageError>(std::ranges::any_of(layers,
                                          [&](const auto& layer) {
                                            return is_at_or_below(path, layer.first) ||
                                                   is_at_or_below(layer.first, path);
                                          }),
                      "--offload: a path must be that of a module in a layer, got ", path);
    for (const auto& [whole, module] : wholes) {
      check<UsageError>(
          !is_at_or_below(path, whole), "--offload: ", path, " is part of ", whole,
          ", which --recompute runs again as a whole and which keeps its input alone");
    }
  }
}

// That each set takes something that layers keep. What runs again as a whole keeps its input alone.
void check_effect(std::string_view option, const std::vector<const Set*>& sets,
                  const Modules& layers, const Modules& wholes) {
  const auto is_kept = [&](const std::string& module) {
    return std::ranges::none_of(
        wholes, [&](const auto& whole) { return is_at_or_below(module, whole.first); });
  };
  for (const auto* set : sets) {
    const auto takes = [&](const Kind& kind) {
      return set->picks(kind) && std::ranges::any_of(layers, [&](const auto& layer) {
               if (kind.path.empty()) return true;
               const auto has = [&](const auto& named) { return named.first == kind.path; };
               return std::ranges::any_of(layer.second->named_modules(), has) &&
                      is_kept(layer.first + '.' + std::string(kind.path));
             });
    };
    check<UsageError>(std::ranges::any_of(kKinds, takes), option, ": ", set->name,
                      " takes nothing of this model: no layer has such a module, or all of them "
                      "run again as wholes");
  }
}

// That no list takes what another one takes.
void check_sets(const Policy& policy) {
  for (const auto* again : policy.again) {
    for (const auto* offloaded : policy.offloaded) {
      for (const auto& kind : kKinds) {
        check<UsageError>(!again->picks(kind) || !offloaded->picks(kind), "--recompute ",
                          again->name, " and --offload ", offloaded->name,
                          ": both take the result of ", kind.op, " in ", kind.path);
      }
    }
  }
}

}  // namespace

void set_memory_plan(models::CausalLM& model, const MemoryPlan& plan,
                     std::shared_ptr<SwapSpace> swap) {
  Modules layers;
  for (const auto& [path, module] : model.named_modules()) {
    for (auto& layer : model.layers()) {
      if (module == &layer) layers[path] = module;
    }
  }
  Policy policy;
  policy.experts_per_token = model.config().num_experts_per_tok;
  const Modules wholes = read_again(model, plan, layers, policy);
  read_offloaded(model, plan, layers, wholes, policy);
  check_effect("--recompute", policy.again, layers, {});
  check_effect("--offload", policy.offloaded, layers, wholes);
  check_sets(policy);
  if (policy.offloads() && swap == nullptr) swap = SwapSpace::make({.window = plan.offload_window});

  for (const auto& [path, layer] : layers) {
    const bool is_whole = wholes.contains(path);
    if (policy.offloads() && !is_whole) {
      nn::checkpoint_with(*layer, policy.of_layer(path, true), swap);
    } else if (policy.recomputes()) {
      nn::checkpoint_with(*layer, policy.of_layer(path, false));
    }
    for (const auto& [whole, module] : wholes) {
      const bool runs_below = policy.recomputes() && is_at_or_below(whole, path);
      if (runs_below && whole != path) {
        nn::checkpoint_with(*module, policy.of_layer(path, false));  // where it runs again
      }
    }
  }
  for (const auto& [path, module] : wholes) nn::recompute(*module);
  if (policy.offloads_layers()) {
    nn::checkpoint_with(
        model,
        [](const OpResult& result) {
          return result.op == "checkpoint" && Policy::is_large(result)
                     ? CheckpointPolicy::kPreferCpuOffload
                     : CheckpointPolicy::kMustSave;
        },
        swap);
  }
}

}  // namespace moegrad::training
