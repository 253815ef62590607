// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <functional>
#include <memory>
#include <utility>

#include "framework/runtime/error.h"
#include "framework/tensor/tensor.h"

namespace moegrad::nn {

class Module;

/// Whether a module M can be called with the arguments of AnyModule<Result(Arguments...)>.
template <class M, class Result, class... Arguments>
concept Forwards = std::derived_from<M, Module> && requires(M& module, Arguments&&... arguments) {
  { module.forward(std::forward<Arguments>(arguments)...) } -> std::convertible_to<Result>;
};

/// What an AnyModule of any signature has: its module, or none.
class ModuleHolder {
 public:
  bool empty() const { return module_ == nullptr; }
  Module& module() const {
    check_not_empty();
    return *module_;
  }
  /// The module, which lives as long as the result does, if it is an M; otherwise null.
  template <class M>
  std::shared_ptr<M> get() const {
    return std::dynamic_pointer_cast<M>(module_);
  }

 protected:
  ModuleHolder() = default;
  ModuleHolder(const ModuleHolder&) = default;
  ModuleHolder(ModuleHolder&&) = default;
  ModuleHolder& operator=(const ModuleHolder&) = default;
  ModuleHolder& operator=(ModuleHolder&&) = default;
  virtual ~ModuleHolder() = default;

  void check_not_empty() const {
    check<ValueError>(!empty(), "AnyModule: must have a module, got an empty one");
  }

  std::shared_ptr<Module> module_;
};

template <class Signature>
class AnyModule;

/// A module of any type that is called with `Arguments` and returns a Result, such as
///
///     AnyModule<Tensor(const Tensor&)> layer = std::make_shared<Linear>(config);
///     const Tensor y = layer(x);
///
/// Calling it calls the module, with its hooks and extensions. It is not a module itself: names,
/// state dicts and hooks do not see it. Copies share the module.
template <class Result, class... Arguments>
class AnyModule<Result(Arguments...)> final : public ModuleHolder {
 public:
  AnyModule() = default;
  /// ValueError for null.
  template <Forwards<Result, Arguments...> M>
  AnyModule(std::shared_ptr<M> module)  // NOLINT(google-explicit-constructor)
      : call_([to = module.get()](Arguments... arguments) -> Result {
          return (*to)(std::forward<Arguments>(arguments)...);
        }) {
    check<ValueError>(module != nullptr, "AnyModule: must be given a module, got null");
    module_ = std::move(module);
  }
  template <Forwards<Result, Arguments...> M>
  AnyModule(std::unique_ptr<M> module)  // NOLINT(google-explicit-constructor)
      : AnyModule(std::shared_ptr<M>(std::move(module))) {}

  Result operator()(Arguments... arguments) const {
    check_not_empty();
    return call_(std::forward<Arguments>(arguments)...);
  }

 private:
  std::function<Result(Arguments...)> call_;
};

/// A module from one tensor to one tensor.
using TensorModule = AnyModule<Tensor(const Tensor&)>;

}  // namespace moegrad::nn
