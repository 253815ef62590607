// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "framework/autograd/scope.h"
#include "framework/runtime/error.h"
#include "framework/runtime/life_token.h"
#include "framework/runtime/span.h"
#include "framework/tensor/hook_list.h"
#include "framework/tensor/named_tensor.h"
#include "nn/any_module.h"
#include "nn/extended_call.h"
#include "nn/module_extension.h"
#include "nn/signature.h"
#include "nn/slots.h"
#include "nn/tensor_arguments.h"

namespace moegrad::nn {

/// What load_state_dict() has passed over, as in torch.
struct IncompatibleKeys {
  std::vector<std::string> missing_keys;     // names of the module that the state does not have
  std::vector<std::string> unexpected_keys;  // names of the state that the module does not have
};

/// What a tree of modules warns of, once (Module::warn_once).
enum class WarningOf : std::uint8_t {
  kSameMasksAgain = 1,
  kSameMasksOnAllRanks = 2,
  kRouterWithoutGradient = 4,
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
/// A Tensor that a module needs but does not train, such as a running mean or a mask, is a buffer:
/// register_buffer. Optimizers do not see it. State dicts, checkpoints, to_empty() and to() treat
/// it like a parameter. fully_shard leaves it whole, so what changes it must do so alike on all
/// ranks. Write new values into it with copy_(buffer, values), which the tape does not record. A
/// buffer that is assigned to is another Tensor, so a state_dict() that was taken before has the
/// old values; a CheckpointSaver that is given such a one warns.
///
/// A module points to what it was given. So children, parameters and buffers must stay at the
/// address where they were registered as long as the module is used. Make them members, or elements
/// of a container that does not move its elements (std::deque, or a std::vector of unique_ptr), or
/// reserve() first. If one is gone, because it was destroyed or its vector has grown, asking the
/// module for its parameters or modules is an Error with its name.
class Module {
 public:
  Module() { life_.watch(); }  // makes the token, which calls in several threads then only read
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
  /// Buffers of this module and its children in order of registration, those that are not
  /// persistent included. A Tensor that is registered several times appears once, under its first
  /// name. One that is undefined by now is left out.
  NamedTensors named_buffers() const;
  /// The places of named_buffers().
  std::vector<BufferSlot> buffer_slots() const;
  /// This module (as "") and all below it, in pre-order.
  std::vector<std::pair<std::string, Module*>> named_modules();
  std::vector<std::pair<std::string, const Module*>> named_modules() const;

  /// Name -> tensor (detached; shares storage): all parameters, then the persistent buffers. A tied
  /// tensor appears once, under its first name, where torch lists each name. Calls
  /// restore_parameters() first: under fully_shard parameters are this rank's shards.
  NamedTensors state_dict() const;
  /// Copies the values into the tensors of state_dict(). If `strict` is false, names that only one
  /// side has are passed over and returned.
  ///
  /// Nothing is copied if it throws. Error unless names agree, ShapeError if only shapes do not:
  /// one error lists all such names. ValueError for a shard of another part of its parameter than
  /// this rank's (a tensor without ShardSpec is whole), DtypeError for a tensor of another dtype,
  /// unless both hold reals, LayoutError for a tensor of this module that has been replaced by one
  /// that is not contiguous.
  IncompatibleKeys load_state_dict(const NamedTensors& state, bool strict = true);

  /// Puts back the parameters that this module and those below keep, where others stand in for
  /// them.
  void restore_parameters() const;
  /// Gives bytes, undefined ones, to the parameters and buffers that were made under a MetaGuard
  /// and have none yet; those of extensions come first. Others stay as they are.
  void to_empty();
  /// Converts all parameters with their gradients, and all buffers of reals, to `dtype` in place.
  /// Each stays the Tensor that it was: all handles see the new values, except those that detach()
  /// made before, as state_dict() does. The step of an optimizer that was made before is a
  /// DtypeError. So is a backward whose forward has run before, if it does not find out earlier
  /// that a tensor that it saved was modified.
  ///
  /// DtypeError unless `dtype` is float32 or float64. Error, and nothing is changed, if fully_shard
  /// has sharded a parameter, or if a buffer is a result on the tape.
  void to(Dtype dtype);

  /// Puts another module in the place of the one at `path`, such as an adapter in the place of the
  /// projection that it has as a child:
  ///
  ///     const std::string path = "model.layers.0.self_attn.q_proj";
  ///     const auto q_proj = model.part<Tensor(const Tensor&)>(path);
  ///     model.replace(path, nn::TensorModule(std::make_shared<Adapter>(q_proj)));
  ///
  /// The names below `path` are then those of the new module. Replace parts before fully_shard and
  /// before the optimizer is made, and not between forward and backward. ValueError, and nothing is
  /// changed, if there is no module at `path`, if it has not been registered as replaceable, if
  /// forward has another signature, and as register_module(). Error if a parameter of the old
  /// module has been sharded.
  template <class Signature>
  void replace(std::string_view path, AnyModule<Signature> module) {
    const auto [parent, child] = child_at("replace", path);
    auto& place = place_of<Signature>("replace", path, *child);
    const auto replaced = child->replaced;
    parent->replace_module(child->name, module.module());
    place = std::move(module);
    if (replaced) replaced();
  }
  /// The module at `path`, which lives as long as the result does. Empty if its own signature is
  /// another than that of its replacements. ValueError as replace().
  template <class Signature>
  AnyModule<Signature> part(std::string_view path) {
    return place_of<Signature>("part", path, *child_at("part", path).second);
  }

  /// Sets is_training() of this module and all below, as torch's train() and eval(). It is true at
  /// first. Dropout and attention with dropout drop, and Jitter varies its input, in training
  /// alone; the other layers of this library compute the same in both. Your own layer may ask
  /// is_training() in its forward. This does not affect the tape; NoGradGuard turns the tape off.
  void train(bool mode = true);
  void eval() { train(false); }
  bool is_training() const { return training_; }
  /// Sets compute_dtype() of this module and all below: bfloat16, or none, as at first. In bfloat16
  /// layers read float32 weights, which an optimizer keeps and updates, rounded:
  ///
  ///     Linear, GroupedExperts      products of rounded inputs and weights, results rounded
  ///     RMSNorm                     float32 inside, results rounded
  ///     Attention, MLP, SwiGLU      what these give them
  ///     Router, embeddings, losses  float32; Router widens its input
  ///
  /// A sum of a float32 and a bfloat16 tensor is float32, so the residual stream is. Your own layer
  /// may ask compute_dtype() in its forward. DtypeError for another dtype, and for parameters of
  /// float64. Gradients of weights are float32 and never rounded (Note [bfloat16 on the tape]).
  void compute_in(std::optional<Dtype> dtype);
  std::optional<Dtype> compute_dtype() const { return compute_dtype_; }
  /// Whether the module itself can be called. Of a ModuleList only the elements can.
  virtual bool is_callable() const { return true; }
  /// The number of calls of this module that have not returned or thrown yet, nested ones included.
  int calls_under_way() const { return calls_under_way_; }
  /// Clears the gradients of all parameters, including those that extensions keep.
  void zero_grad();

  /// Adds an extension, outside those that the module has. ValueError for null, and for a module
  /// that is never called.
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
  /// The same for hooks that also see tensors: those in the arguments of the call and, after it,
  /// those in its result, undefined ones left out (Note [Tensors in arguments and results]). They
  /// run before, and after, those that see none.
  ///
  ///     Tensor activation;
  ///     layer.register_forward_hook([&](auto&, const TensorList&, const TensorList& outputs) {
  ///       activation = outputs[0].detach();  // without detach() it holds the tape
  ///     });
  ///
  /// The tensors are handles, so a hook cannot put others in their place: a ModuleExtension can.
  HookHandle register_forward_pre_hook(std::function<void(Module&, const TensorList& inputs)> hook);
  HookHandle register_forward_hook(
      std::function<void(Module&, const TensorList& inputs, const TensorList& outputs)> hook);
  /// Logs a warning unless something in this module's tree has warned of the same before.
  void warn_once(WarningOf what, std::string_view text) const;

  /// The hooks are called when a backward enters this module's part of the tape, and when it has
  /// left it (Note [Pre- and post-backward entries]).
  HookHandle register_backward_pre_hook(std::function<void(Module&)> hook);
  HookHandle register_backward_hook(std::function<void(Module&)> hook);

 protected:
  /// Make `slot` a parameter, which requires a gradient, or a buffer, or `child` a child of this
  /// module. All must stay at their addresses (Note [What is registered]). `initial` is what
  /// init_weights writes into the parameter or, if anything is declared, into the buffer. The
  /// storages also get their names, which errors and graphs show. State dicts leave out a buffer
  /// that is not `persistent`.
  ///
  /// Full names, such as "model.layers.0.mlp", must be unique. Error for an undefined tensor,
  /// DtypeError for a parameter that is not float32 or float64, LayoutError for one that is not
  /// contiguous. ValueError for
  ///
  /// - a name that is empty or has an empty part between dots;
  /// - a name that a child, parameter or buffer of this module already has, or that is within one
  ///   ("a.b" beside "a");
  /// - a buffer that requires a gradient, or that has `initial` values and is not of reals;
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
  void register_buffer(std::string name, Tensor& slot, bool persistent = true,
                       InitialValues initial = {});
  void register_module(std::string name, Module& child);
  /// The same for a member that replace() may replace. ValueError if it is empty.
  template <class Signature>
  void register_module(std::string name, AnyModule<Signature>& child) {
    register_module(std::move(name), child.module(), child);
  }
  /// The same for a child with another signature than its replacements. replace() assigns one to
  /// `place`, a member that is empty so far, and calls `replaced`.
  template <class Signature>
  void register_module(std::string name, Module& child, AnyModule<Signature>& place,
                       std::function<void()> replaced = {}) {
    register_module(std::move(name), child);
    children_.back().place = &place;
    children_.back().replaced = std::move(replaced);
  }
  /// Puts `child` in the place of the child of this name, which leaves the tree, but may be within
  /// `child`. ValueError if there is no such child, and as register_module(), Error if the child
  /// has been sharded; then nothing has changed.
  void replace_module(std::string_view name, Module& child);
  /// Called when to() has converted the parameters and buffers of this module and of all below.
  virtual void converted_to(Dtype /*dtype*/) {}

  /// Runs body(arguments...) inside the extensions, and the hooks around these.
  template <class Body, class... Arguments>
  auto call(const Body& body, Arguments&&... arguments) {
    using Result = std::decay_t<std::invoke_result_t<const Body&, Arguments...>>;
    const std::function<Result(Arguments && ...)> function = body;
    return run_call<Result, Arguments...>(function, std::forward<Arguments>(arguments)...);
  }

 private:
  using Hooks = HookList<void(Module&)>;
  using InputHooks = HookList<void(Module&, const TensorList&)>;
  using OutputHooks = HookList<void(Module&, const TensorList&, const TensorList&)>;

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

  // One for all modules with the same types of arguments and result, so that the compiler makes it
  // once.
  template <class Result, class... Arguments>
  Result run_call(const std::function<Result(Arguments&&...)>& body, Arguments&&... arguments) {
    const ScopeGuard scope = open_scope();
    const SpanGuard phase(SpanKind::kPhase, Lane::kCompute, "forward");
    const SpanGuard span(SpanKind::kModule, Lane::kCompute, "forward ",
                         ScopeGuard::current()->display_path());
    const CallGuard call_guard(calls_under_way_);
    try {
      const TensorList inputs = shown_inputs(arguments...);
      run(forward_pre_hooks_);
      auto result = [&] {
        if (extensions_.empty()) return body(std::forward<Arguments>(arguments)...);
        detail::BodyCall<Result, Arguments...> call(body, existence_check(),
                                                    std::forward<Arguments>(arguments)...);
        return call.take(run_inside(extensions_, call, call.inputs()));
      }();
      run(forward_hooks_);
      show_outputs(inputs, result);
      return result;
    } catch (Error& error) {
      error.add_module(ScopeGuard::current()->path());
      throw;
    }
  }

  ScopeGuard open_scope();
  /// For what runs in backward: Error if this module, whose scope is open now, is gone by then.
  std::function<void()> existence_check();
  Child adopt(std::string name, Module& child);
  void run(const Hooks& hooks);
  /// Runs the pre hooks that see tensors. What it returns is empty if no hook is going to see it.
  template <class... Arguments>
  TensorList shown_inputs(const Arguments&... arguments) {
    if (input_hooks_.empty() && output_hooks_.empty()) return {};
    TensorList inputs = detail::tensors_in(arguments...);
    for (const auto& hook : input_hooks_.snapshot()) hook(*this, inputs);
    return inputs;
  }
  template <class Result>
  void show_outputs(const TensorList& inputs, const Result& result) {
    if (output_hooks_.empty()) return;
    const TensorList outputs = detail::tensors_in(result);
    for (const auto& hook : output_hooks_.snapshot()) hook(*this, inputs, outputs);
  }
  /// Gives all storages of the tree below their names.
  void name_storages() const;
  /// The same for those of `added`, which this module has just registered.
  template <class Slot>
  void name_storages_of(const std::vector<Slot>& added) const;
  /// Error if another rank of the same launch trains this module. Called at the outermost call.
  void check_own_rank();
  bool has_trainable_parameter() const;
  /// ValueError unless `name` may be registered. `what` names the caller.
  void check_name(std::string_view what, const std::string& name) const;
  /// Whether this module is `other` or below it.
  bool is_within(const Module& other) const;
  /// ValueError if `child`, or a module below it, is in this tree of modules already, unless it is
  /// part of `leaving`, which may be null.
  void check_new_in_tree(const std::string& name, Module& child,
                         const Module* leaving = nullptr) const;
  /// "module 'mlp'", for messages.
  std::string described() const;
  /// The topmost module above this one, which is this one if none has registered it.
  const Module& root() const;
  /// The path from `root`, as named_modules() has it; null if this module is not within `root`. The
  /// string is made once, and again if that of the parent is another: then a module above has been
  /// registered elsewhere. The ranks of a launch may ask a module that they share.
  std::shared_ptr<const std::string> path_within(const Module& root) const;
  /// The tree in which this module is called, the caller's if it is part of that, and its path from
  /// the root.
  std::pair<ModuleTree, std::shared_ptr<const std::string>> tree_of_call() const;
  void collect_slots(const std::string& prefix, std::vector<ParameterSlot>& slots) const;
  void collect_buffers(const std::string& prefix, std::vector<BufferSlot>& slots) const;
  /// Error unless what was registered at an address is still there.
  void check_alive(const std::weak_ptr<const void>& alive, std::string_view kind,
                   const std::string& name) const;
  /// The child at `path` within this module, and the module that has registered it.
  std::pair<Module*, Child*> child_at(std::string_view what, std::string_view path);
  void check_not_sharded(const Module& child, std::string_view name) const;
  template <class Signature>
  static AnyModule<Signature>& place_of(std::string_view what, std::string_view path,
                                        const Child& child);
  /// The extensions of this module and of all below, in pre-order.
  ModuleExtensions all_extensions() const;
  void collect_modules(const std::string& prefix,
                       std::vector<std::pair<std::string, Module*>>& modules);

  friend class ModulePrinter;

  bool training_ = true;
  std::optional<Dtype> compute_dtype_;
  int calls_under_way_ = 0;
  ModuleExtensions extensions_;
  struct OwnParameter {
    ParameterSlot slot;  // with its local name
    std::weak_ptr<const void> alive;
  };
  struct OwnBuffer {
    BufferSlot slot;  // with its local name
    std::weak_ptr<const void> alive;
  };
  struct Child {
    std::string name;
    Module* module;
    std::weak_ptr<const void> alive;
    ModuleHolder* place = nullptr;  // if it may be replaced: an AnyModule
    std::function<void()> replaced = {};
  };
  struct Parent {
    const Module* module;
    std::weak_ptr<const void> alive;
    std::string name;  // of this module within it
    // What path_within() has made: this module's path, and the parent's, which it begins with.
    mutable std::shared_ptr<const std::string> path = {}, parents_path = {};
  };
  /// Error unless it still exists.
  Module& checked(const Child& child) const;
  /// The last module that registered this one and lives; null if there is none.
  const Parent* last_parent() const;

  std::vector<OwnParameter> parameters_;
  std::vector<OwnBuffer> buffers_;
  std::vector<Child> children_;
  std::vector<Parent> parents_;  // those that have registered this module, the last one last
  mutable std::mutex path_mutex_;
  LifeToken life_;
  Hooks forward_pre_hooks_, forward_hooks_, backward_pre_hooks_, backward_hooks_;
  InputHooks input_hooks_;
  OutputHooks output_hooks_;
  std::mutex trainer_mutex_;
  std::weak_ptr<const void> training_launch_;    // the last one in which a rank called it to train
  int training_rank_ = 0;                        // the first rank that did
  mutable std::atomic<unsigned> warned_of_ = 0;  // of a tree's root: WarningOf, as bits
};

/// Prints the class of the module and of those below, with the shapes of parameters and buffers,
/// and the number of parameters, tied ones counted once:
///
///     Perceptron(
///       (hidden): Linear(weight [32, 1], bias [32])
///       (output): Linear(weight [1, 32], bias [1])
///     )
///     97 parameters
///
/// What is not as usual is said: another dtype than float32, a parameter that is frozen or tied to
/// another, a buffer. Shapes are those of whole parameters, also under fully_shard. Children that
/// follow each other and are alike take one line: (layers.0-3): 4 x Block(
std::ostream& operator<<(std::ostream& out, const Module& module);

template <class Signature>
AnyModule<Signature>& Module::place_of(std::string_view what, std::string_view path,
                                       const Child& child) {
  check<ValueError>(child.place != nullptr, what, ": '", path,
                    "' must be registered as replaceable, got a fixed member of its module");
  auto* const place = dynamic_cast<AnyModule<Signature>*>(child.place);
  check<ValueError>(place != nullptr, what, ": '", path,
                    "' must be given the signature that it was registered with, got another");
  return *place;
}

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
