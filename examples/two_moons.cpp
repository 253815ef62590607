// SPDX-License-Identifier: Apache-2.0
// Tells two half moons apart: layers, dropout, a classifier, its accuracy on other points.
//
//     build/release/examples/two_moons
//
// Expected: a loss that falls from 1.0 to below 0.1, and an accuracy above 0.95, within a second.
#include <iostream>
#include <numbers>

#include "moegrad.h"
using namespace moegrad;

struct Points {
  Tensor x;       // [2 N, 2]
  Tensor labels;  // int64 [2 N]: which moon
};

// N points of each moon, with some noise.
Points moons(std::int64_t n, std::uint64_t seed) {
  const Tensor angle = Tensor::uniform({n, 1}, {seed, "angles"}) * std::numbers::pi;
  const Tensor upper = ops::cat({ops::cos(angle), ops::sin(angle)}, 1);
  const Tensor lower = ops::cat({1 - ops::cos(angle), 0.5 - ops::sin(angle)}, 1);
  const Tensor noise = Tensor::randn({2 * n, 2}, {seed, "noise"}) * 0.1;
  return {ops::cat({upper, lower}, 0) + noise,
          ops::cat({Tensor::zeros({n}, Dtype::kInt64), Tensor::ones({n}, Dtype::kInt64)}, 0)};
}

int run() {
  nn::Sequential model;
  model.emplace_back<nn::Linear>({.in_features = 2, .out_features = 32, .bias = true});
  model.emplace_back<nn::LayerNorm>({.dim = 32});
  model.emplace_back<nn::GELU>();
  model.emplace_back<nn::Dropout>({.p = 0.1});
  model.emplace_back<nn::Linear>({.in_features = 32, .out_features = 2, .bias = true});
  nn::init_weights(model, /*seed=*/1, /*std=*/0.3);

  const auto [x, labels] = moons(/*n=*/100, /*seed=*/1);
  optim::AdamW optimizer(model.named_parameters(), {.lr = 1e-2});
  for (std::int64_t step = 0; step < 200; ++step) {
    const DropoutIdsGuard dropout({.seed = 1, .step = step});
    const Tensor loss = ops::cross_entropy(model(x), labels);
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    if (step % 50 == 0 || step == 199) {
      std::cout << "step " << step << " loss " << loss.item() << '\n';
    }
  }

  model.eval();  // no dropout
  const NoGradGuard no_grad;
  const auto [unseen, answers] = moons(/*n=*/100, /*seed=*/2);
  const Tensor correct = ops::eq(ops::argmax(model(unseen), 1), answers);  // bool [200]
  std::cout << "accuracy " << ops::mean(ops::cast(correct, Dtype::kFloat32)).item() << '\n';
  return 0;
}

int main() { return run_program_once("two_moons", run); }
