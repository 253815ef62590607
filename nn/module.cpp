// SPDX-License-Identifier: Apache-2.0
#include "nn/module.h"

#include <algorithm>

#include "framework/distributed/shard_spec.h"
#include "framework/runtime/log.h"
#include "framework/tensor/fill.h"

namespace moegrad::nn {
namespace {

std::string join(const std::string& prefix, const std::string& name) {
  return prefix.empty() ? name : prefix + "." + name;
}

}  // namespace

void Module::register_parameter(std::string name, Tensor& slot, ParameterLayout layout,
                                InitialValues initial) {
  check_name("register_parameter", name);
  check<UndefinedTensorError>(slot.defined(), "register_parameter: '", name, "' of ", described(),
                              " must be a defined tensor; make it before registering it");
  slot.set_requires_grad(true);
  slot.storage().retag(MemoryTag::kParameters);
  std::erase_if(parameters_, [&](const auto& own) { return own.slot.name == name; });
  parameters_.push_back({.slot = {.name = std::move(name),
                                  .tensor = &slot,
                                  .layout = std::move(layout),
                                  .kept = std::make_shared<Tensor>(),
                                  .initial = initial,
                                  .made_on_meta = slot.is_meta()},
                         .alive = slot.watch_handle()});
  name_storages();
}

void Module::register_module(std::string name, Module& child) {
  check_name("register_module", name);
  check_new_in_tree(name, child);
  std::erase_if(children_, [&](const auto& own) { return own.name == name; });
  children_.push_back(adopt(std::move(name), child));
  name_storages();
}

void Module::replace_module(std::string_view name, Module& child) {
  const auto place = std::ranges::find(children_, name, &Child::name);
  check<ValueError>(place != children_.end(), "replace_module: ", described(), " has no child '",
                    name, "'");
  auto* const before = place->alive.expired() ? nullptr : place->module;
  if (before == &child) return;
  check_new_in_tree(place->name, child, before);
  if (before != nullptr && before->parent_ == this) {  // and not shown by another tree since
    before->parent_ = nullptr;
    before->name_.clear();
  }
  *place = adopt(place->name, child);
  root().name_storages();
}

Module::Child Module::adopt(std::string name, Module& child) {
  child.name_ = name;
  child.parent_ = this;
  child.parent_alive_ = life_.watch();
  return {.name = std::move(name), .module = &child, .alive = child.life_.watch()};
}

void Module::check_name(std::string_view what, const std::string& name) const {
  const bool has_empty_part = name.empty() || name.front() == '.' || name.back() == '.' ||
                              name.find("..") != std::string::npos;
  check<ValueError>(!has_empty_part, what, ": a name in ", described(),
                    " must have no empty part, got '", name, "'");
  const auto refuse_clash = [&](const auto& own, const std::string& taken, std::string_view kind) {
    if (own.alive.expired()) return;  // its name is free
    const bool same = name == taken;
    check<ValueError>(!same, what, ": '", name, "' is the name of a ", kind, " of ", described(),
                      " already; each child and parameter needs a name of its own");
    const bool within = name.starts_with(taken + '.') || taken.starts_with(name + '.');
    check<ValueError>(!within, what, ": '", name, "' and the ", kind, " '", taken, "' of ",
                      described(), " must not lie within each other: full names could coincide");
  };
  for (const auto& own : parameters_) refuse_clash(own, own.slot.name, "parameter");
  for (const auto& child : children_) refuse_clash(child, child.name, "child");
}

void Module::check_new_in_tree(const std::string& name, Module& child,
                               const Module* leaving) const {
  check<ValueError>(!child.find(*this), "register_module: '", name, "' of ", described(),
                    " must not be or contain the module that registers it");
  std::vector<std::pair<std::string, Module*>> modules;
  child.collect_modules(name, modules);
  const auto& tree = root();
  for (const auto& [path, module] : modules) {
    if (leaving != nullptr && leaving->find(*module)) continue;
    const auto found = tree.find(*module);
    check<ValueError>(!found, "register_module: '", path, "' of ", described(),
                      " is registered as '", found.value_or(""),
                      "' already; register a module once and call it as often as you like");
  }
}

std::string Module::described() const {
  return name_.empty() ? "the module" : "module '" + name_ + "'";
}

const Module& Module::root() const {
  const auto* module = this;
  while (module->parent_ != nullptr && !module->parent_alive_.expired()) module = module->parent_;
  return *module;
}

std::optional<std::string> Module::find(const Module& module) const {
  if (&module == this) return "";
  for (const auto& child : children_) {
    if (child.alive.expired()) continue;
    if (const auto below = child.module->find(module)) {
      return below->empty() ? child.name : join(child.name, *below);
    }
  }
  return std::nullopt;
}

Module& Module::checked(const Child& child) const {
  check(!child.alive.expired(), described(), ": child '", child.name,
        "' no longer exists: it must live as long as the module that registered it");
  return *child.module;
}

void Module::name_storages() const {
  for (const auto& [name, parameter] : named_parameters()) parameter.storage().set_name(name);
}

void Module::collect_slots(const std::string& prefix, std::vector<ParameterSlot>& slots) const {
  for (const auto& own : parameters_) {
    check(!own.alive.expired(), described(), ": parameter '", own.slot.name,
          "' is no longer where it was registered: its tensor must stay there as long as the "
          "module lives, and a vector that grows moves its elements");
    slots.push_back(own.slot);
    slots.back().name = join(prefix, own.slot.name);
  }
  for (const auto& child : children_) {
    checked(child).collect_slots(join(prefix, child.name), slots);
  }
}

std::vector<ParameterSlot> Module::parameter_slots() const {
  std::vector<ParameterSlot> slots;
  collect_slots("", slots);
  return slots;
}

std::vector<ParameterSlot> Module::distinct_parameters() const {
  std::vector<ParameterSlot> distinct;
  for (auto& slot : parameter_slots()) {
    const bool tied = std::ranges::any_of(
        distinct, [&](const ParameterSlot& seen) { return seen.parameter().is(slot.parameter()); });
    if (!tied) distinct.push_back(std::move(slot));
  }
  return distinct;
}

NamedTensors Module::named_parameters() const {
  NamedTensors parameters;
  for (const auto& slot : distinct_parameters()) {
    parameters.push_back({slot.name, slot.parameter()});
  }
  return parameters;
}

void Module::collect_modules(const std::string& prefix,
                             std::vector<std::pair<std::string, Module*>>& modules) {
  modules.emplace_back(prefix, this);
  for (const auto& child : children_) {
    checked(child).collect_modules(join(prefix, child.name), modules);
  }
}

std::vector<std::pair<std::string, Module*>> Module::named_modules() {
  std::vector<std::pair<std::string, Module*>> modules;
  collect_modules("", modules);
  return modules;
}

ModuleExtensions Module::all_extensions() const {
  ModuleExtensions found = extensions_;
  for (const auto& child : children_) {
    const auto below = checked(child).all_extensions();
    found.insert(found.end(), below.begin(), below.end());
  }
  return found;
}

NamedTensors Module::state_dict() const {
  restore_parameters();
  NamedTensors state = named_parameters();
  for (auto& [name, tensor] : state) tensor = tensor.detach();
  return state;
}

void Module::load_state_dict(const NamedTensors& state) {
  auto own = state_dict();
  for (const auto& given : state) {
    check(std::ranges::find(own, given.name, &NamedTensor::name) != own.end(),
          "load_state_dict: unexpected key '", given.name, "'");
    check(std::ranges::count(state, given.name, &NamedTensor::name) == 1, "load_state_dict: key '",
          given.name, "' is given twice");
  }
  for (auto& [name, tensor] : own) {
    const auto found = std::ranges::find(state, name, &NamedTensor::name);
    check(found != state.end(), "load_state_dict: missing key '", name, "'");
    check<ShapeError>(found->tensor.shape() == tensor.shape(), "load_state_dict: '", name,
                      "' must be ", tensor.shape(), ", got ", found->tensor.shape());
    check_same_part("load_state_dict", name, found->tensor.shard_spec(), tensor.shard_spec());
  }
  for (auto& [name, tensor] : own) {
    copy_(tensor, std::ranges::find(state, name, &NamedTensor::name)->tensor);
  }
}

void Module::restore_parameters() const {
  for (const auto& extension : all_extensions()) extension->restore_parameters();
}

void Module::to_empty() {
  for (const auto& extension : all_extensions()) extension->to_empty();
  for (const auto& slot : parameter_slots()) {
    if (!slot.tensor->is_meta()) continue;
    slot.tensor->storage().retag(MemoryTag::kParameters);
    slot.tensor->storage().refill();
  }
}

void Module::train(bool mode) {
  for (const auto& [name, module] : named_modules()) module->training_ = mode;
}

void Module::zero_grad() {
  for (const auto& slot : parameter_slots()) slot.tensor->set_grad(Tensor());
  for (const auto& extension : all_extensions()) extension->zero_grad();
}

void Module::attach(std::shared_ptr<ModuleExtension> extension) {
  check<ValueError>(extension != nullptr, "attach: ", described(),
                    " must be given an extension, got null");
  extensions_.push_back(std::move(extension));
}

HookHandle Module::register_forward_pre_hook(std::function<void(Module&)> hook) {
  return forward_pre_hooks_.add(std::move(hook));
}
HookHandle Module::register_forward_hook(std::function<void(Module&)> hook) {
  return forward_hooks_.add(std::move(hook));
}
HookHandle Module::register_backward_pre_hook(std::function<void(Module&)> hook) {
  return backward_pre_hooks_.add(std::move(hook));
}
HookHandle Module::register_backward_hook(std::function<void(Module&)> hook) {
  return backward_hooks_.add(std::move(hook));
}

ScopeGuard Module::open_scope() {
  const auto& outer = ScopeGuard::current();
  std::string path = join(outer ? outer->path : "", name_);
  if (log_enabled(LogLevel::kDebug)) {
    log(LogLevel::kDebug, "forward " + (path.empty() ? std::string("(root)") : path));
  }
  std::function<void()> on_enter, on_exit;
  const auto run_if_alive = [&](const Hooks& hooks) {
    return [this, &hooks, path, alive = life_.watch()] {
      check(!alive.expired(), "backward: ", path.empty() ? "the module" : "module '" + path + "'",
            " no longer exists, but has hooks that backward runs, as fully_shard's are; keep the "
            "model until backward has run");
      run(hooks);
    };
  };
  if (!backward_pre_hooks_.empty()) on_enter = run_if_alive(backward_pre_hooks_);
  if (!backward_hooks_.empty()) on_exit = run_if_alive(backward_hooks_);
  return ScopeGuard(std::move(path), std::move(on_enter), std::move(on_exit));
}

void Module::run(const Hooks& hooks) {
  if (hooks.empty()) return;
  for (const auto& hook : hooks.snapshot()) hook(*this);
}

}  // namespace moegrad::nn
