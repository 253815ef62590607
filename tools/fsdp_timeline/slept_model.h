// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include "framework/autograd/function.h"
#include "framework/tensor/fill.h"
#include "nn/module.h"

namespace moegrad::tools {

/// Takes time but no core: forward sleeps for `time`, backward for twice as long. y = x, and the
/// weight's gradient is zero.
class Sleep final : public Function {
 public:
  explicit Sleep(std::chrono::nanoseconds time) : time_(time) {}
  std::string_view name() const override { return "sleep"; }
  Tensor forward(const Tensor& x, const Tensor& weight) {
    std::this_thread::sleep_for(time_);
    shape_ = weight.shape();
    return clone(x);
  }
  TensorList backward(const TensorList& grads, InputMask /*needs*/) override {
    std::this_thread::sleep_for(2 * time_);
    return {grads[0], Tensor::zeros(shape_)};
  }

 private:
  std::chrono::nanoseconds time_;
  Shape shape_;
};

class SleepLayer final : public nn::Callable<SleepLayer> {
 public:
  SleepLayer(std::int64_t numel, std::chrono::nanoseconds time)
      : time_(time), weight_(Tensor::zeros({numel})) {
    register_parameter("weight", weight_);
  }
  Tensor forward(const Tensor& x) { return apply<Sleep>(made_with(time_), x, weight_); }

 private:
  std::chrono::nanoseconds time_;
  Tensor weight_;
};

/// Equal layers, then a head with half of a layer's weight and time. The root holds the head.
class SleepModel final : public nn::Callable<SleepModel> {
 public:
  SleepModel(std::int64_t layers, std::int64_t numel, std::chrono::nanoseconds time)
      : head_(numel / 2, time / 2) {
    for (std::int64_t i = 0; i < layers; ++i) {
      register_module("layers." + std::to_string(i), layers_.emplace_back(numel, time));
    }
    register_module("head", head_);
  }
  Tensor forward(Tensor x) {
    for (auto& layer : layers_) x = layer(x);
    return head_(x);
  }
  std::deque<SleepLayer>& layers() { return layers_; }

 private:
  std::deque<SleepLayer> layers_;
  SleepLayer head_;
};

}  // namespace moegrad::tools
