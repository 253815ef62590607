// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "nn/module.h"
#include "ops/elementwise.h"

namespace moegrad::nn {

// Activations as modules, for Sequential. Elsewhere call the op itself.

class ReLU final : public Callable<ReLU> {
 public:
  Tensor forward(const Tensor& x) { return ops::relu(x); }
};

class SiLU final : public Callable<SiLU> {
 public:
  Tensor forward(const Tensor& x) { return ops::silu(x); }
};

class Tanh final : public Callable<Tanh> {
 public:
  Tensor forward(const Tensor& x) { return ops::tanh(x); }
};

/// ops::gelu, or ops::gelu_tanh.
class GELU final : public Callable<GELU> {
 public:
  enum class Approximate : std::uint8_t { kNone, kTanh };

  explicit GELU(Approximate approximate = Approximate::kNone) : approximate_(approximate) {}

  Tensor forward(const Tensor& x) {
    return approximate_ == Approximate::kTanh ? ops::gelu_tanh(x) : ops::gelu(x);
  }

 private:
  Approximate approximate_;
};

}  // namespace moegrad::nn
