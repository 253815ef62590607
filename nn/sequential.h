// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "nn/any_module.h"
#include "nn/module.h"

namespace moegrad::nn {

/// Modules from one tensor to one tensor, one after the other, named "0", "1", and so on:
///
///     Sequential net;
///     net.emplace_back<Linear>({.in_features = 8, .out_features = 16, .bias = true});
///     net.emplace_back<RMSNorm>({.dim = 16});
///     const Tensor y = net(x);
///
/// It owns its modules, which stay at their addresses. replace() takes other ones in their places.
/// Add modules before fully_shard.
///
/// Reference: PyTorch, torch.nn.Sequential
class Sequential final : public Callable<Sequential> {
 public:
  Sequential() = default;
  /// Takes pointers to modules, such as std::make_unique<Linear>(config). ValueError for null.
  template <std::convertible_to<TensorModule>... Modules>
  explicit Sequential(Modules... modules) {
    (push_back(std::move(modules)), ...);
  }

  /// Appends a module. ValueError if it is empty, or in this tree of modules already.
  void push_back(TensorModule module);
  /// Makes an M, from the arguments or from its configuration in braces, and appends it.
  template <class M, class... Arguments>
  M& emplace_back(Arguments&&... arguments) {
    return append(std::make_shared<M>(std::forward<Arguments>(arguments)...));
  }
  template <class M, class Config = typename M::Config>
  M& emplace_back(Config config) {
    return append(std::make_shared<M>(std::move(config)));
  }

  std::int64_t size() const { return std::ssize(modules_); }
  /// Module i. ValueError unless i is in [0, size()).
  Module& operator[](std::int64_t i) const;

  /// ValueError if there is no module.
  Tensor forward(const Tensor& x);

 private:
  template <class M>
  M& append(std::shared_ptr<M> module) {
    auto& appended = *module;
    push_back(std::move(module));
    return appended;
  }

  std::vector<std::unique_ptr<TensorModule>> modules_;
};

}  // namespace moegrad::nn
