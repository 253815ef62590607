// SPDX-License-Identifier: Apache-2.0
// A module of your own: layers with parameters, a model made of them, training on data.
//
//     build/release/examples/own_module
//
// Expected: the two layers with the shapes of their four parameters, a loss that falls from 0.2 to
// below 0.001, and four values of the sine with errors below 0.1.
#include <cmath>
#include <iostream>
#include <numbers>

#include "moegrad.h"

using namespace moegrad;

// y = x W^T + b.      x: [N, in]   W: [out, in]   b: [out]   y: [N, out]
class Affine final : public nn::Callable<Affine> {
 public:
  Affine(std::int64_t in, std::int64_t out)
      : weight_(Tensor::zeros({out, in})), bias_(Tensor::zeros({out})) {
    register_parameter("weight", weight_, nn::InitialValues::normal());
    register_parameter("bias", bias_, nn::InitialValues::zeros());
  }

  Tensor forward(const Tensor& x) { return ops::linear(x, weight_) + bias_; }

 private:
  Tensor weight_;
  Tensor bias_;
};

// A perceptron with one hidden layer.      x: [N, 1]   y: [N, 1]
class Perceptron final : public nn::Callable<Perceptron> {
 public:
  explicit Perceptron(std::int64_t hidden_size) : hidden_(1, hidden_size), output_(hidden_size, 1) {
    register_module("hidden", hidden_);
    register_module("output", output_);
  }

  Tensor forward(const Tensor& x) { return output_(ops::tanh(hidden_(x))); }

 private:
  Affine hidden_;
  Affine output_;
};

int run() {
  Perceptron model(/*hidden_size=*/32);
  nn::init_weights(model, /*seed=*/1, /*std=*/0.5);
  std::cout << model << '\n';

  constexpr std::int64_t kSteps = 2000;
  optim::AdamW optimizer(model.named_parameters(), {.lr = 1e-2, .weight_decay = 0});
  for (std::int64_t step = 0; step < kSteps; ++step) {
    // The step decides the points, so every run sees the same ones.
    const Tensor x = Tensor::uniform({64, 1}, {/*seed=*/1, "points " + std::to_string(step)}) *
                         (2 * std::numbers::pi) -
                     std::numbers::pi;
    const Tensor loss = ops::mse_loss(model(x), ops::sin(x));
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    if (step % 400 == 0 || step == kSteps - 1) {
      std::cout << "step " << step << " loss " << loss.item() << '\n';
    }
  }

  const NoGradGuard no_grad;
  for (const float x : {-1.5F, 0.0F, 0.5F, 3.0F}) {
    const Tensor y = model(Tensor::full({1, 1}, x));
    std::cout << "sin " << x << " = " << y.item() << ", exactly " << std::sin(x) << '\n';
  }
  return 0;
}

int main() { return run_program_once("own_module", run); }
