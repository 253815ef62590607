// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "framework/autograd/hook_list.h"
#include "framework/autograd/scope.h"
#include "framework/runtime/span.h"
#include "framework/tensor/named_tensor.h"
#include "nn/parameter_layout.h"

namespace moegrad::nn {

class Module;

/// Where a module keeps a parameter. fully_shard swaps what stands in `*tensor`.
struct ParameterSlot {
  std::string name;  // full name
  Tensor* tensor = nullptr;
  ParameterLayout layout;
};

/// What a wrapper such as fully_shard attaches to a module; it lives as long as the module.
class ModuleExtension {
 public:
  virtual ~ModuleExtension() = default;
  /// Puts back the parameters that the module keeps, where others stand in for them meanwhile, as
  /// gathered ones do. Loading and saving call it first.
  virtual void reshard() {}
};

/// Base of layers and models, as torch.nn.Module: children are members held by value, registered
/// by reference, so that full names, state dicts and fully_shard find them.
///
/// Derive from Callable<Derived>, which adds operator(): calling a module runs its hooks around
/// forward(); forward() alone runs none.
class Module {
 public:
  Module() = default;
  virtual ~Module() = default;
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  /// Parameters of this module and its children in order of registration; a tied parameter once,
  /// under its first name.
  NamedTensors named_parameters() const;
  /// All places where parameters stand, tied ones included.
  std::vector<ParameterSlot> parameter_slots() const;
  /// This module (as "") and all below it, in pre-order.
  std::vector<std::pair<std::string, Module*>> named_modules();

  /// Name -> tensor (detached; shares storage), as torch's state_dict().
  NamedTensors state_dict() const;
  /// Copies the values in; Error unless names agree, ShapeError unless shapes do.
  void load_state_dict(const NamedTensors& state);

  void train(bool mode = true);
  void eval() { train(false); }
  bool is_training() const { return training_; }
  void zero_grad();

  /// At most one; Error if the module already has one.
  void attach(std::shared_ptr<ModuleExtension> extension);
  ModuleExtension* extension() const { return extension_.get(); }

  /// Called before and after forward().
  HookHandle register_forward_pre_hook(std::function<void(Module&)> hook);
  HookHandle register_forward_hook(std::function<void(Module&)> hook);
  /// Called when a backward enters this module's part of the tape, and when it has left it
  /// (Note [Pre- and post-backward entries]).
  HookHandle register_backward_pre_hook(std::function<void(Module&)> hook);
  HookHandle register_backward_hook(std::function<void(Module&)> hook);

 protected:
  /// Both also tell the storages the names they have from here, for errors and graphs to show.
  void register_parameter(std::string name, Tensor& slot, ParameterLayout layout = {});
  void register_module(std::string name, Module& child);

  template <class Derived, class... Arguments>
  static auto call(Derived& module, Arguments&&... arguments) {
    Module& base = module;  // a derived class may use the same names
    const ScopeGuard scope = base.open_scope();
    const SpanGuard phase(SpanKind::kPhase, Lane::kCompute, "forward");
    const SpanGuard span(SpanKind::kModule, Lane::kCompute, "forward ",
                         ScopeGuard::current()->display_path());
    base.run(base.forward_pre_hooks_);
    auto result = module.forward(std::forward<Arguments>(arguments)...);
    base.run(base.forward_hooks_);
    return result;
  }

 private:
  using Hooks = HookList<void(Module&)>;

  ScopeGuard open_scope();
  void run(const Hooks& hooks);
  void name_storages() const;
  void collect_slots(const std::string& prefix, std::vector<ParameterSlot>& slots) const;
  void collect_modules(const std::string& prefix,
                       std::vector<std::pair<std::string, Module*>>& modules);

  std::string name_;  // within its parent
  bool training_ = true;
  std::shared_ptr<ModuleExtension> extension_;
  std::vector<ParameterSlot> parameters_;  // own, with local names
  std::vector<std::pair<std::string, Module*>> children_;
  Hooks forward_pre_hooks_, forward_hooks_, backward_pre_hooks_, backward_hooks_;
};

/// Makes `module(x)` run hooks and forward(x), with forward's own signature.
template <class Derived>
class Callable : public Module {
 public:
  template <class... Arguments>
  auto operator()(Arguments&&... arguments) {
    return call(static_cast<Derived&>(*this), std::forward<Arguments>(arguments)...);
  }
};

}  // namespace moegrad::nn
