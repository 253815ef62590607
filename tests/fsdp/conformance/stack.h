// SPDX-License-Identifier: Apache-2.0
#pragma once

// A stack of layers whose root has parameters of its own, for tests of what happens when.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "framework/autograd/checkpoint.h"
#include "fsdp/fully_shard.h"
#include "nn/linear.h"
#include "ops/elementwise.h"
#include "ops/reduce.h"
#include "tests/fsdp/conformance/models.h"
#include "tests/testing.h"

namespace moegrad::test {

inline constexpr auto kRecomputes = {Recompute::kNone, Recompute::kInsideHooks,
                                     Recompute::kAroundHooks};

/// y = x + relu(x U^T) V^T       x: [T, D]   U: [hidden, D]   V: [D, hidden]
class Layer final : public nn::Callable<Layer> {
 public:
  Layer(std::int64_t dim, std::int64_t hidden, Recompute recompute, Dtype dtype)
      : inside_(recompute == Recompute::kInsideHooks),
        up_({.in_features = dim, .out_features = hidden, .dtype = dtype}),
        down_({.in_features = hidden, .out_features = dim, .dtype = dtype}) {
    register_module("up", up_);
    register_module("down", down_);
  }
  Tensor forward(const Tensor& x) {
    const auto body = [this](const TensorList& in) -> TensorList {
      return {in[0] + down_(ops::relu(up_(in[0])))};
    };
    return inside_ ? checkpoint(body, {x})[0] : body({x})[0];
  }

 private:
  bool inside_;
  nn::Linear up_, down_;
};

struct StackConfig {
  std::size_t layers = 3;
  std::int64_t dim = 6;
  std::int64_t hidden = 10;
  bool own_first = false;
  Recompute recompute = Recompute::kNone;
  Dtype dtype = Dtype::kFloat32;
};

/// The layers "layers.0", "layers.1", ..., and after or before them "own", a linear map that
/// belongs to the root.
class Stack final : public nn::Callable<Stack> {
 public:
  /// Not `filled`: for the meta device.
  explicit Stack(const StackConfig& config, bool filled = true)
      : config_(config),
        own_({.in_features = config.dim, .out_features = config.dim, .dtype = config.dtype}) {
    for (std::size_t i = 0; i < config.layers; ++i) {
      layers_.push_back(
          std::make_unique<Layer>(config.dim, config.hidden, config.recompute, config.dtype));
      register_module("layers." + std::to_string(i), *layers_.back());
    }
    register_module("own", own_);
    if (filled) init_random(*this);
  }
  Tensor forward(const Tensor& x) {
    Tensor h = config_.own_first ? own_(x) : x;
    for (auto& layer : layers_) {
      const auto body = [&](const TensorList& in) -> TensorList { return {(*layer)(in[0])}; };
      h = config_.recompute == Recompute::kAroundHooks ? checkpoint(body, {h})[0] : body({h})[0];
    }
    return config_.own_first ? h : own_(h);
  }
  std::size_t size() const { return layers_.size(); }
  Layer& layer(std::size_t i) { return *layers_[i]; }
  fsdp::State& layer_state(std::size_t i) { return *layers_[i]->extension<fsdp::State>(); }

 private:
  StackConfig config_;
  std::vector<std::unique_ptr<Layer>> layers_;
  nn::Linear own_;
};

/// One group per layer, and the rest; `policy` for all of them.
inline fsdp::State& shard(Stack& stack, const DeviceMesh& mesh, const fsdp::Policy& policy) {
  for (std::size_t i = 0; i < stack.size(); ++i) fsdp::fully_shard(stack.layer(i), mesh, policy);
  return fsdp::fully_shard(stack, mesh, policy);
}

}  // namespace moegrad::test
