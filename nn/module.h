// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "framework/autograd/hook_list.h"
#include "framework/autograd/scope.h"
#include "framework/profile/span.h"
#include "framework/runtime/error.h"
#include "framework/runtime/life_token.h"
#include "framework/tensor/named_tensor.h"
#include "nn/extended_call.h"
#include "nn/initial_values.h"
#include "nn/module_extension.h"
#include "nn/parameter_layout.h"
#include "nn/signature.h"
#include "nn/tensor_arguments.h"

namespace moegrad::nn {

class Module;

/// Where a module keeps a parameter. fully_shard changes what `*tensor` is: a shard, or the
/// gathered whole parameter while the module computes with it.
struct ParameterSlot {
  std::string name;  // full name
  Tensor* tensor = nullptr;
  ParameterLayout layout;
  /// The parameter itself, if `*tensor` may be a copy of it; otherwise undefined or null. All
  /// copies of a slot share it.
  std::shared_ptr<Tensor> kept = nullptr;
  InitialValues initial = {};
  /// Whether it was registered under a MetaGuard, so that its constructor gave it no values.
  bool made_on_meta = false;

  /// The tensor that optimizers, checkpoints and initialisation use, whatever is gathered now.
  Tensor& parameter() const { return kept != nullptr && kept->defined() ? *kept : *tensor; }
};

/// Base of layers and models, as torch.nn.Module. Children are members held by value. They are
/// registered by reference, so that full names, state dicts and fully_shard find them.
///
/// Derive from Callable<Derived>, which adds operator(). Calling a module runs its hooks around
/// forward(); forward() alone runs no hooks.
///
/// Note [What is registered]
/// C++ has no __setattr__ that sees members: only what a constructor registers belongs to the
/// module. The module computes with a layer or Tensor that is a member but not registered, but
/// nothing else uses it. named_parameters() and therefore optimizers never see it, so it is not
/// trained. State dicts leave it out. init_weights, zero_grad, train() and fully_shard skip it.
/// Compare named_parameters().size() with what you expect. A Tensor that is assigned to a
/// registered member replaces the parameter as it is: without requires_grad it is not trained.
///
/// A module points to what it was given. So children and parameters must stay at the address where
/// they were registered as long as the module is used. Make them members, or elements of a
/// container that does not move its elements (std::deque, or a std::vector of unique_ptr), or
/// reserve() first. If one is gone, because it was destroyed or its vector has grown, asking the
/// module for its parameters or modules is an Error with its name.
class Module {
 public:
  Module() = default;
  virtual ~Module() = default;
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  /// Parameters of this module and its children in order of registration. A tied parameter appears
  /// once, under its first name. Under fully_shard they are this rank's shards, never gathered
  /// copies.
  NamedTensors named_parameters() const;
  /// All slots of parameters, including the further slots of tied ones.
  std::vector<ParameterSlot> parameter_slots() const;
  /// The places of named_parameters(): without those tied to an earlier one.
  std::vector<ParameterSlot> distinct_parameters() const;
  /// This module (as "") and all below it, in pre-order.
  std::vector<std::pair<std::string, Module*>> named_modules();

  /// Name -> tensor (detached; shares storage), as torch's state_dict(). Calls restore_parameters()
  /// first: under fully_shard it is this rank's shards.
  NamedTensors state_dict() const;
  /// Copies the values into the tensors of state_dict(). Nothing is copied if it throws: Error
  /// unless names agree, ShapeError unless shapes agree, ValueError for a shard of another part of
  /// its parameter than this rank's.
  void load_state_dict(const NamedTensors& state);

  /// Puts back the parameters that this module and those below keep, where others stand in for
  /// them.
  void restore_parameters() const;
  /// Gives bytes, undefined ones, to the parameters that were made under a MetaGuard and have none
  /// yet; those of extensions come first. Others stay as they are.
  void to_empty();

  /// Sets is_training() of this module and all below, as torch's train() and eval(). It is true at
  /// first. No layer of this library computes differently in training and in evaluation, so for
  /// them it changes nothing. Your own layer may ask is_training() in its forward, for example to
  /// drop activations. This does not affect the tape; NoGradGuard turns the tape off.
  void train(bool mode = true);
  void eval() { train(false); }
  bool is_training() const { return training_; }
  /// The number of calls of this module that have not returned or thrown yet, nested ones included.
  int calls_under_way() const { return calls_under_way_; }
  /// Clears the gradients of all parameters, including those that extensions keep.
  void zero_grad();

  /// Adds an extension, outside those that the module has. ValueError for null.
  void attach(std::shared_ptr<ModuleExtension> extension);
  const ModuleExtensions& extensions() const { return extensions_; }
  /// The first extension of this kind; null if the module has none.
  template <class Extension>
  Extension* extension() const {
    for (const auto& each : extensions_) {
      if (auto* found = dynamic_cast<Extension*>(each.get())) return found;
    }
    return nullptr;
  }

  /// The hooks are called before and after forward().
  HookHandle register_forward_pre_hook(std::function<void(Module&)> hook);
  HookHandle register_forward_hook(std::function<void(Module&)> hook);
  /// The hooks are called when a backward enters this module's part of the tape, and when it has
  /// left it (Note [Pre- and post-backward entries]).
  HookHandle register_backward_pre_hook(std::function<void(Module&)> hook);
  HookHandle register_backward_hook(std::function<void(Module&)> hook);

 protected:
  /// Make `slot` a parameter, which requires a gradient, or `child` a child of this module. Both
  /// must stay at their addresses (Note [What is registered]). `initial` is what init_weights
  /// writes into the parameter. The storages also get their names, which errors and graphs show.
  ///
  /// Full names, such as "model.layers.0.mlp", must be unique. Error for an undefined tensor.
  /// ValueError for
  ///
  /// - a name that is empty or has an empty part between dots;
  /// - a name that a child or parameter of this module already has, or that is within one ("a.b"
  ///   beside "a");
  /// - a module that already belongs to the same tree of modules, under any name, or that contains
  ///   this one.
  ///
  /// A member may be called any number of times. A weight that several layers share is one Tensor
  /// in the slots of all of them.
  void register_parameter(std::string name, Tensor& slot, ParameterLayout layout = {},
                          InitialValues initial = {});
  void register_parameter(std::string name, Tensor& slot, InitialValues initial) {
    register_parameter(std::move(name), slot, ParameterLayout{}, initial);
  }
  void register_module(std::string name, Module& child);
  /// Puts `child` in the place of the child of this name, which leaves the tree, but may be within
  /// `child`. ValueError if there is no such child, and as register_module(); then nothing has
  /// changed.
  void replace_module(std::string_view name, Module& child);

  /// Runs body(arguments...) inside the extensions, and the hooks around these.
  template <class Body, class... Arguments>
  auto call(const Body& body, Arguments&&... arguments) {
    const ScopeGuard scope = open_scope();
    const SpanGuard phase(SpanKind::kPhase, Lane::kCompute, "forward");
    const SpanGuard span(SpanKind::kModule, Lane::kCompute, "forward ",
                         ScopeGuard::current()->display_path());
    const CallGuard call_guard(calls_under_way_);
    try {
      run(forward_pre_hooks_);
      auto result = [&] {
        if (extensions_.empty()) return body(std::forward<Arguments>(arguments)...);
        detail::BodyCall<Body, Arguments...> call(body, std::forward<Arguments>(arguments)...);
        return call.take(run_inside(extensions_, call, call.inputs()));
      }();
      run(forward_hooks_);
      return result;
    } catch (Error& error) {
      error.add_module(ScopeGuard::current()->path);
      throw;
    }
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

  struct Child;

  ScopeGuard open_scope();
  Child adopt(std::string name, Module& child);
  void run(const Hooks& hooks);
  void name_storages() const;
  /// ValueError unless `name` may be registered. `what` names the caller.
  void check_name(std::string_view what, const std::string& name) const;
  /// ValueError if `child`, or a module below it, is in this tree of modules already, unless it is
  /// part of `leaving`, which may be null.
  void check_new_in_tree(const std::string& name, Module& child,
                         const Module* leaving = nullptr) const;
  /// "module 'mlp'", for messages.
  std::string described() const;
  /// The topmost module above this one; this module if none has registered it.
  const Module& root() const;
  /// The name of `module` within this module, if it is this module or below it.
  std::optional<std::string> find(const Module& module) const;
  void collect_slots(const std::string& prefix, std::vector<ParameterSlot>& slots) const;
  /// The extensions of this module and of all below, in pre-order.
  ModuleExtensions all_extensions() const;
  void collect_modules(const std::string& prefix,
                       std::vector<std::pair<std::string, Module*>>& modules);

  std::string name_;  // within its parent
  bool training_ = true;
  int calls_under_way_ = 0;
  ModuleExtensions extensions_;
  struct OwnParameter {
    ParameterSlot slot;  // with its local name
    std::weak_ptr<const void> alive;
  };
  struct Child {
    std::string name;
    Module* module;
    std::weak_ptr<const void> alive;
  };
  /// Error unless it still exists.
  Module& checked(const Child& child) const;

  std::vector<OwnParameter> parameters_;
  std::vector<Child> children_;
  const Module* parent_ = nullptr;  // the last one that registered this module
  std::weak_ptr<const void> parent_alive_;
  LifeToken life_;
  Hooks forward_pre_hooks_, forward_hooks_, backward_pre_hooks_, backward_hooks_;
};

/// Makes `module(x)` run hooks and forward(x), with forward's own signature: arguments are
/// converted to forward's parameters. Up to four arguments may be in braces, if forward is neither
/// overloaded nor a template.
template <class Derived>
class Callable : public Module {
 public:
  template <class... Arguments>
  auto operator()(Arguments&&... arguments) {
    return call_forward(std::forward<Arguments>(arguments)...);
  }
  // Arguments in braces, model(x, {0, n}) or model(x, {.targets = y}), have no type of their own.
  // The default template arguments give them the type of forward's parameter.
  template <class M = Derived, class A = detail::Parameter<M, 0>>
  auto operator()(A&& a) {
    return call_forward(std::forward<A>(a));
  }
  template <class M = Derived, class A = detail::Parameter<M, 0>, class B = detail::Parameter<M, 1>>
  auto operator()(A&& a, B&& b) {
    return call_forward(std::forward<A>(a), std::forward<B>(b));
  }
  template <class M = Derived, class A = detail::Parameter<M, 0>, class B = detail::Parameter<M, 1>,
            class C = detail::Parameter<M, 2>>
  auto operator()(A&& a, B&& b, C&& c) {
    return call_forward(std::forward<A>(a), std::forward<B>(b), std::forward<C>(c));
  }
  template <class M = Derived, class A = detail::Parameter<M, 0>, class B = detail::Parameter<M, 1>,
            class C = detail::Parameter<M, 2>, class D = detail::Parameter<M, 3>>
  auto operator()(A&& a, B&& b, C&& c, D&& d) {
    return call_forward(std::forward<A>(a), std::forward<B>(b), std::forward<C>(c),
                        std::forward<D>(d));
  }

  /// Runs another method like forward, with the same hooks and extensions:
  ///
  ///     model.call_method(&Model::encode, x)
  ///
  /// `method` is a member function, called with all its arguments, or a callable that takes the
  /// module first. It replaces PyTorch's register_fsdp_forward_method.
  template <class Method, class... Arguments>
  auto call_method(const Method& method, Arguments&&... arguments) {
    const auto body = [this, method](Arguments&&... passed) {
      return std::invoke(method, static_cast<Derived&>(*this), std::forward<Arguments>(passed)...);
    };
    return Module::call(body, std::forward<Arguments>(arguments)...);
  }

 private:
  template <class... Arguments>
  auto call_forward(Arguments&&... arguments) {
    const auto forward = [this](Arguments&&... passed) {
      return static_cast<Derived&>(*this).forward(std::forward<Arguments>(passed)...);
    };
    return Module::call(forward, std::forward<Arguments>(arguments)...);
  }
};

}  // namespace moegrad::nn
