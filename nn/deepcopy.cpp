// SPDX-License-Identifier: Apache-2.0
#include "nn/deepcopy.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <typeinfo>
#include <unordered_map>
#include <utility>
#include <vector>

#include "framework/distributed/shard_spec.h"
#include "framework/runtime/error.h"
#include "framework/runtime/grad_mode.h"
#include "framework/tensor/fill.h"

namespace moegrad::nn {
namespace {

// A tensor in its place. `first`: the position of the first place that holds the same tensor.
struct Place {
  std::string name;
  Tensor tensor;
  std::size_t first;
};

// Places of parameters, then of buffers.
std::vector<Place> places_of(const Module& module, std::string_view which) {
  module.restore_parameters();
  std::vector<Place> places;
  std::unordered_map<const TensorImpl*, std::size_t> seen;
  const auto add = [&](const std::string& name, const Tensor& tensor) {
    const auto& spec = tensor.shard_spec();
    check(spec == nullptr, "deepcopy: '", name, "' of the ", which, " must be of one rank, got ",
          spec == nullptr ? "" : part_text(*spec),
          " on several; copy the module before parallelize_module, expert_parallel or fully_shard "
          "divides it");
    check(!tensor.is_meta(), "deepcopy: '", name, "' of the ", which,
          " must have bytes, got a tensor on the meta device; call to_empty()");
    const auto first = seen.try_emplace(tensor.impl().get(), places.size()).first->second;
    places.push_back({.name = name, .tensor = tensor, .first = first});
  };
  for (const auto& slot : module.parameter_slots()) add(slot.name, slot.parameter());
  for (const auto& slot : module.buffer_slots()) add(slot.name, *slot.tensor);
  return places;
}

using Modules = std::vector<std::pair<std::string, const Module*>>;

void check_same_modules(const Modules& copies, const Modules& originals) {
  const auto is_same = [](const auto& a, const auto& b) {
    return a.first == b.first && typeid(*a.second) == typeid(*b.second);
  };
  const auto [copy, original] = std::ranges::mismatch(copies, originals, is_same);
  if (copy == copies.end() && original == originals.end()) return;
  const auto& path = original != originals.end() ? original->first : copy->first;
  throw ValueError("deepcopy: the copy must consist of the same modules, got another at " +
                   (path.empty() ? "the root" : "'" + path + "'"));
}

// A module that was made of the original's tensor, as nn::Linear(weight), holds that tensor.
void check_own_tensors(const std::vector<Place>& copies, const std::vector<Place>& originals) {
  for (const auto& copy : copies) {
    const auto same = std::ranges::find_if(originals, [&](const Place& original) {
      return &original.tensor.storage() == &copy.tensor.storage();
    });
    check<ValueError>(same == originals.end(), "deepcopy: '", copy.name,
                      "' of the copy must have elements of its own, got those of '",
                      same == originals.end() ? "" : same->name, "' of the original");
  }
}

void check_same_tensors(const std::vector<Place>& copies, const std::vector<Place>& originals) {
  for (std::size_t i = 0; i < std::max(copies.size(), originals.size()); ++i) {
    const auto& name = (i < originals.size() ? originals : copies)[i].name;
    check<ValueError>(i < copies.size() && i < originals.size() && copies[i].name == name,
                      "deepcopy: the copy must have the same tensors, got another at '", name, "'");
    check<ShapeError>(copies[i].tensor.shape() == originals[i].tensor.shape(), "deepcopy: '", name,
                      "' of the copy must be ", originals[i].tensor.shape(), ", got ",
                      copies[i].tensor.shape());
    check<ValueError>(copies[i].first == originals[i].first, "deepcopy: '", name,
                      "' must be tied to the same tensor in the copy, got ", "'",
                      copies[copies[i].first].name, "' and '", copies[originals[i].first].name,
                      "'");
  }
}

}  // namespace

void deepcopy_into(Module& copy, const Module& module) {
  const auto& original = module;
  const auto modules = original.named_modules();
  const auto copied_modules = std::as_const(copy).named_modules();
  check_same_modules(copied_modules, modules);
  const auto from = places_of(module, "original");
  auto to = places_of(copy, "copy");
  check_same_tensors(to, from);
  check_own_tensors(to, from);
  const auto differs = [&](std::size_t i) {
    return to[i].tensor.dtype() != from[i].tensor.dtype();
  };
  for (std::size_t i = 0; i < to.size(); ++i) {
    if (differs(i) && is_floating(from[i].tensor.dtype())) copy.to(from[i].tensor.dtype());
  }
  const NoGradGuard no_grad;
  for (std::size_t i = 0; i < to.size(); ++i) {
    check<DtypeError>(!differs(i), "deepcopy: '", to[i].name, "' of the copy must be ",
                      from[i].tensor.dtype(), ", got ", to[i].tensor.dtype());
    if (to[i].first != i) continue;
    copy_(to[i].tensor, from[i].tensor);
    to[i].tensor.set_requires_grad(from[i].tensor.requires_grad());
  }
  copy.zero_grad();
  const auto own = copy.named_modules();
  for (std::size_t i = 0; i < own.size(); ++i) {
    own[i].second->train(modules[i].second->is_training());
    own[i].second->compute_in(modules[i].second->compute_dtype());
  }
}

}  // namespace moegrad::nn
