// SPDX-License-Identifier: Apache-2.0
// Fits a line to four points by gradient descent: tensors, ops, backward, an optimizer.
//
//     build/release/examples/linear_regression
//
// Expected: "dloss/dweight = -17", then a weight of 2 and a bias of 1.
#include <iostream>

#include "moegrad.h"
using namespace moegrad;

int main() {
  const Tensor x = Tensor::of({{0}, {1}, {2}, {3}});
  const Tensor target = Tensor::of({{1}, {3}, {5}, {7}});
  Tensor weight = Tensor::zeros({1, 1}).set_requires_grad(true);  // [out, in]
  Tensor bias = Tensor::zeros({1}).set_requires_grad(true);
  optim::SGD optimizer({{"weight", weight}, {"bias", bias}}, {.lr = 0.1});
  for (int step = 0; step < 500; ++step) {
    const Tensor y = ops::linear(x, weight) + bias;  // [4, 1]
    const Tensor loss = ops::mse_loss(y, target);    // []
    optimizer.zero_grad();
    loss.backward();
    if (step == 0) std::cout << "dloss/dweight = " << weight.grad().item() << '\n';
    optimizer.step();
  }
  std::cout << weight << '\n' << bias << '\n';
}
