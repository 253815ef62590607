// SPDX-License-Identifier: Apache-2.0
#include "nn/module.h"

#include <algorithm>

#include "framework/tensor/fill.h"

namespace moegrad::nn {
namespace {

std::string join(const std::string& prefix, const std::string& name) {
  return prefix.empty() ? name : prefix + "." + name;
}

}  // namespace

void Module::register_parameter(std::string name, Tensor& slot, ParameterLayout layout) {
  slot.set_requires_grad(true);
  slot.storage().retag(MemoryTag::kParameters);
  parameters_.push_back({std::move(name), &slot, std::move(layout), std::make_shared<Tensor>()});
  name_storages();
}

void Module::register_module(std::string name, Module& child) {
  child.name_ = name;
  children_.emplace_back(std::move(name), &child);
  name_storages();
}

void Module::name_storages() const {
  for (const auto& [name, parameter] : named_parameters()) parameter.storage().set_name(name);
}

void Module::collect_slots(const std::string& prefix, std::vector<ParameterSlot>& slots) const {
  for (const auto& own : parameters_) {
    slots.push_back({join(prefix, own.name), own.tensor, own.layout, own.kept});
  }
  for (const auto& [name, child] : children_) child->collect_slots(join(prefix, name), slots);
}

std::vector<ParameterSlot> Module::parameter_slots() const {
  std::vector<ParameterSlot> slots;
  collect_slots("", slots);
  return slots;
}

NamedTensors Module::named_parameters() const {
  NamedTensors parameters;
  for (const auto& slot : parameter_slots()) {
    const bool tied = std::ranges::any_of(
        parameters, [&](const NamedTensor& seen) { return seen.tensor.is(slot.parameter()); });
    if (!tied) parameters.push_back({slot.name, slot.parameter()});
  }
  return parameters;
}

void Module::collect_modules(const std::string& prefix,
                             std::vector<std::pair<std::string, Module*>>& modules) {
  modules.emplace_back(prefix, this);
  for (const auto& [name, child] : children_) child->collect_modules(join(prefix, name), modules);
}

std::vector<std::pair<std::string, Module*>> Module::named_modules() {
  std::vector<std::pair<std::string, Module*>> modules;
  collect_modules("", modules);
  return modules;
}

std::vector<ModuleExtension*> Module::extensions() const {
  std::vector<ModuleExtension*> found;
  if (extension_) found.push_back(extension_.get());
  for (const auto& [name, child] : children_) {
    const auto below = child->extensions();
    found.insert(found.end(), below.begin(), below.end());
  }
  return found;
}

NamedTensors Module::state_dict() const {
  reshard();
  NamedTensors state = named_parameters();
  for (auto& [name, tensor] : state) tensor = tensor.detach();
  return state;
}

void Module::load_state_dict(const NamedTensors& state) {
  auto own = state_dict();
  for (const auto& given : state) {
    check(std::ranges::find(own, given.name, &NamedTensor::name) != own.end(),
          "load_state_dict: unexpected key '", given.name, "'");
  }
  for (auto& [name, tensor] : own) {
    const auto found = std::ranges::find(state, name, &NamedTensor::name);
    check(found != state.end(), "load_state_dict: missing key '", name, "'");
    check<ShapeError>(found->tensor.shape() == tensor.shape(), "load_state_dict: '", name,
                      "' must be ", tensor.shape(), ", got ", found->tensor.shape());
  }
  for (auto& [name, tensor] : own) {
    copy_(tensor, std::ranges::find(state, name, &NamedTensor::name)->tensor);
  }
}

void Module::reshard() const {
  for (auto* extension : extensions()) extension->reshard();
}

void Module::to_empty() {
  for (auto* extension : extensions()) extension->to_empty();
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
  for (const auto& slot : parameter_slots()) {
    slot.tensor->set_grad(Tensor());
    slot.parameter().set_grad(Tensor());
  }
  for (auto* extension : extensions()) extension->zero_grad();
}

void Module::attach(std::shared_ptr<ModuleExtension> extension) {
  check(extension_ == nullptr, "attach: module '", name_, "' already has an extension");
  extension_ = std::move(extension);
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
  std::function<void()> on_enter, on_exit;
  if (!backward_pre_hooks_.empty()) on_enter = [this] { run(backward_pre_hooks_); };
  if (!backward_hooks_.empty()) on_exit = [this] { run(backward_hooks_); };
  return ScopeGuard(join(outer ? outer->path : "", name_), std::move(on_enter), std::move(on_exit));
}

TensorVisitor Module::input_cast() const {
  return [extension = extension_.get()](Tensor& tensor) {
    if (tensor.defined()) tensor = extension->cast_input(tensor);
  };
}

TensorVisitor Module::output_cast() const {
  return [extension = extension_.get()](Tensor& tensor) {
    if (tensor.defined()) tensor = extension->cast_output(tensor);
  };
}

void Module::run(const Hooks& hooks) {
  if (hooks.empty()) return;
  for (const auto& hook : hooks.snapshot()) hook(*this);
}

}  // namespace moegrad::nn
