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
#include "nn/tensor_arguments.h"

namespace moegrad::nn {

class Module;

/// Where a module keeps a parameter. fully_shard swaps what `*tensor` is: a shard, or the gathered
/// whole for as long as the module computes with it.
struct ParameterSlot {
  std::string name;  // full name
  Tensor* tensor = nullptr;
  ParameterLayout layout;
  /// The parameter itself where `*tensor` may be a copy of it; undefined, or null, otherwise. All
  /// copies of a slot share it.
  std::shared_ptr<Tensor> kept = nullptr;

  /// What optimizers, checkpoints and initialisation work on, whatever is gathered just now.
  Tensor& parameter() const { return kept != nullptr && kept->defined() ? *kept : *tensor; }
};

/// What a wrapper such as fully_shard attaches to a module; it lives as long as the module.
class ModuleExtension {
 public:
  virtual ~ModuleExtension() = default;
  /// Puts back the parameters that the module keeps, where others stand in for them meanwhile, as
  /// gathered ones do. Loading and saving call it first.
  virtual void reshard() {}
  /// Gives bytes, undefined ones, to those parameters that the module keeps and that have none yet.
  virtual void to_empty() {}
  /// Clears the gradients it keeps for parameters that do not stand in the slots just now.
  virtual void zero_grad() {}
  /// What the module sees instead of a tensor in its arguments, and what the caller gets instead of
  /// one in the result (Note [Tensors in arguments and results]); never given an undefined one.
  virtual Tensor cast_input(const Tensor& input) { return input; }
  virtual Tensor cast_output(const Tensor& output) { return output; }
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
  /// under its first name. Under fully_shard they are this rank's shards, never gathered copies.
  NamedTensors named_parameters() const;
  /// All places where parameters stand, tied ones included.
  std::vector<ParameterSlot> parameter_slots() const;
  /// This module (as "") and all below it, in pre-order.
  std::vector<std::pair<std::string, Module*>> named_modules();

  /// Name -> tensor (detached; shares storage), as torch's state_dict(). Reshards what is below
  /// first: under fully_shard it is this rank's shards.
  NamedTensors state_dict() const;
  /// Copies the values into what state_dict() holds; Error unless names agree, ShapeError unless
  /// shapes do, and nothing has been copied then.
  void load_state_dict(const NamedTensors& state);

  /// Puts back the parameters that this module and those below keep, where others stand in for
  /// them.
  void reshard() const;
  /// Gives bytes, undefined ones, to the parameters that were made under a MetaGuard and have none
  /// yet; those of extensions come first. Others stay as they are.
  void to_empty();

  void train(bool mode = true);
  void eval() { train(false); }
  bool is_training() const { return training_; }
  /// Calls of this module that have not returned or thrown yet, nested ones included.
  int calls_under_way() const { return calls_under_way_; }
  /// Of all parameters, those that extensions keep included.
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

  /// body(arguments...) with the hooks around it and, inside them, the extension's casts: only the
  /// pre hooks make an extension ready.
  template <class Body, class... Arguments>
  auto call(const Body& body, Arguments&&... arguments) {
    const ScopeGuard scope = open_scope();
    const SpanGuard phase(SpanKind::kPhase, Lane::kCompute, "forward");
    const SpanGuard span(SpanKind::kModule, Lane::kCompute, "forward ",
                         ScopeGuard::current()->display_path());
    const CallGuard call_guard(calls_under_way_);
    run(forward_pre_hooks_);
    auto result = [&] {
      if (!extension_) return body(std::forward<Arguments>(arguments)...);
      return call_with_visited(input_cast(), body, std::forward<Arguments>(arguments)...);
    }();
    run(forward_hooks_);
    if (extension_) visit_tensors(output_cast(), result);
    return result;
  }

 private:
  using Hooks = HookList<void(Module&)>;

  class CallGuard {
   public:
    explicit CallGuard(int& calls) : calls_(calls) { ++calls_; }
    ~CallGuard() { --calls_; }
    CallGuard(const CallGuard&) = delete;
    CallGuard& operator=(const CallGuard&) = delete;

   private:
    int& calls_;
  };

  ScopeGuard open_scope();
  TensorVisitor input_cast() const;
  TensorVisitor output_cast() const;
  void run(const Hooks& hooks);
  void name_storages() const;
  void collect_slots(const std::string& prefix, std::vector<ParameterSlot>& slots) const;
  /// Own one and those below, in pre-order.
  std::vector<ModuleExtension*> extensions() const;
  void collect_modules(const std::string& prefix,
                       std::vector<std::pair<std::string, Module*>>& modules);

  std::string name_;  // within its parent
  bool training_ = true;
  int calls_under_way_ = 0;
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
    const auto forward = [this](Arguments&&... passed) {
      return static_cast<Derived&>(*this).forward(std::forward<Arguments>(passed)...);
    };
    return Module::call(forward, std::forward<Arguments>(arguments)...);
  }

  /// Runs another method as forward is run, with the same hooks and casts:
  ///
  ///     model.call_method(&Model::encode, x)
  ///
  /// `method` is a member function, called with all its arguments, or a callable that takes the
  /// module first. PyTorch's register_fsdp_forward_method.
  template <class Method, class... Arguments>
  auto call_method(const Method& method, Arguments&&... arguments) {
    const auto body = [&](Arguments&&... passed) {
      return std::invoke(method, static_cast<Derived&>(*this), std::forward<Arguments>(passed)...);
    };
    return Module::call(body, std::forward<Arguments>(arguments)...);
  }
};

}  // namespace moegrad::nn
