// SPDX-License-Identifier: Apache-2.0
#pragma once

// Modules that tests of several files share, and names of tensors.

#include <string>
#include <vector>

#include "nn/module.h"
#include "nn/rms_norm.h"
#include "ops/elementwise.h"

namespace moegrad::test {

/// Registers what it is told to.
class Holder final : public nn::Callable<Holder> {
 public:
  using Module::register_buffer;
  using Module::register_module;
  using Module::register_parameter;
  using Module::replace_module;
  Tensor forward(const Tensor& x) { return x; }
};

class Tanh final : public nn::Callable<Tanh> {
 public:
  Tensor forward(const Tensor& x) { return ops::tanh(x); }
};

class Doubled final : public nn::Callable<Doubled> {
 public:
  Tensor forward(const Tensor& x) { return x * 2.0; }
};

/// Two modules, one inside the other: "norm" has a weight [4] of float64.
class Normed final : public nn::Callable<Normed> {
 public:
  Normed() { register_module("norm", norm); }
  /// Call stacks name it.
  [[gnu::noinline]] Tensor forward(const Tensor& x) { return norm(x); }

  nn::RMSNorm norm{{.dim = 4, .dtype = Dtype::kFloat64}};
};

inline std::vector<std::string> names_of(const NamedTensors& tensors) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors) names.push_back(name);
  return names;
}
/// The names of its parameters.
inline std::vector<std::string> names_of(const nn::Module& module) {
  return names_of(module.named_parameters());
}

}  // namespace moegrad::test
