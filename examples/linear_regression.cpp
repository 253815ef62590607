// SPDX-License-Identifier: Apache-2.0
// Fits a line to four points by gradient descent: tensors, ops, backward, an optimizer.
//
//     build/release/examples/linear_regression
//
// Expected: "dloss/dweight = -17" and "y = 2 x + 1".
#include <iostream>

#include "moegrad.h"
using namespace moegrad;

int main() {
  const Tensor x = Tensor::from(std::vector<double>{0, 1, 2, 3}, {4, 1});
  const Tensor target = Tensor::from(std::vector<double>{1, 3, 5, 7}, {4, 1});
  Tensor weight = Tensor::zeros({1, 1}, Dtype::kFloat64).set_requires_grad(true);  // [out, in]
  Tensor bias = Tensor::zeros({1}, Dtype::kFloat64).set_requires_grad(true);
  optim::SGD optimizer({{"weight", weight}, {"bias", bias}}, {.lr = 0.1});
  for (int step = 0; step < 500; ++step) {
    const Tensor y = ops::linear(x, weight) + bias;          // [4, 1]
    const Tensor loss = ops::mean(ops::square(y - target));  // []
    optimizer.zero_grad();
    loss.backward();
    if (step == 0) std::cout << "dloss/dweight = " << weight.grad().item() << '\n';
    optimizer.step();
  }
  std::cout << "y = " << weight.item() << " x + " << bias.item() << '\n';
}
