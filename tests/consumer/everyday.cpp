// SPDX-License-Identifier: Apache-2.0
// What a newcomer does: prints and indexes tensors, trains a perceptron with LayerNorm and Dropout,
// checks the gradient of an op of his own.
#include <iostream>

#include "moegrad.h"
#include "moegrad_testing.h"
using namespace moegrad;

// y = x^3:  dL/dx = 3 x^2 dL/dy
class Cube final : public Function {
 public:
  std::string_view name() const override { return "cube"; }
  Tensor forward(const Tensor& x) {
    x_ = x;
    return ops::pow(x, 3);
  }
  TensorList backward(const TensorList& grads, InputMask /*needs*/) override {
    return {3 * ops::square(x_.unpack()) * grads[0]};
  }

 private:
  SavedTensor x_{*this};
};

class Net final : public nn::Callable<Net> {
 public:
  Net() {
    register_module("norm", norm_);
    register_module("mlp", mlp_);
    register_module("dropout", dropout_);
    register_module("output", output_);
  }
  Tensor forward(const Tensor& x) { return output_(dropout_(x + mlp_(norm_(x)))); }

 private:
  nn::LayerNorm norm_{{.dim = 4}};
  nn::MLP mlp_{{.hidden_size = 4,
                .intermediate_size = 16,
                .activation = ops::gelu,
                .gated = false,
                .bias = true}};
  nn::Dropout dropout_{{.p = 0.1}};
  nn::Linear output_{{.in_features = 4, .out_features = 1, .bias = true}};
};

int main() {
  const Tensor x = Tensor::of({{1, 2}, {3, 4.5}});
  std::cout << x << '\n' << x[1] << '\n' << x.slice(1, -1)[0].item<float>() << '\n';

  Net net;
  nn::init_weights(net, /*seed=*/1, /*std=*/0.3);
  optim::AdamW optimizer(net.named_parameters(), {.lr = 1e-2});
  const Tensor points = Tensor::randn({64, 4}, {/*seed=*/1, "points"});
  const Tensor targets = ops::sum(ops::square(points), 1, /*keepdim=*/true);
  const auto loss = [&] { return ops::mse_loss(net(points), targets); };
  net.eval();
  const double before = loss().item();
  net.train();
  for (std::int64_t step = 0; step < 200; ++step) {
    const DropoutIdsGuard dropout({.seed = 1, .step = step});
    optimizer.zero_grad();
    loss().backward();
    optimizer.step();
  }
  net.eval();
  std::cout << (loss().item() < before / 4 ? "the loss falls" : "the loss does not fall") << '\n';

  const Tensor input = Tensor::randn({3}, {/*seed=*/1, "input"}, Dtype::kFloat64);
  const auto result = gradcheck([](const TensorList& in) { return TensorList{apply<Cube>(in[0])}; },
                                {Tensor(input).set_requires_grad(true)});
  std::cout << (result ? "the gradient of cube agrees" : result.message) << '\n';
}
