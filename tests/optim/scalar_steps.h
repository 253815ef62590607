// SPDX-License-Identifier: Apache-2.0
#pragma once

// An optimizer against formulas of one element.

#include <functional>
#include <vector>

#include "tests/testing.h"

namespace moegrad::test {

/// Fifty steps of `Optimizer` on one parameter, and of `step(t, p, g)` on each of its elements,
/// t = 1, 2, ...; make_step() makes one for each element, with a state of its own.
template <class Optimizer>
void expect_scalar_steps(
    const typename Optimizer::Config& config,
    const std::function<std::function<void(int t, double& p, double g)>()>& make_step) {
  const Tensor parameter = randn({5, 3}, 2), start = clone(parameter);
  std::vector<double> expected(start.data<double>().begin(), start.data<double>().end());
  std::vector<std::function<void(int, double&, double)>> steps;
  for (std::size_t i = 0; i < expected.size(); ++i) steps.push_back(make_step());
  Optimizer optimizer({{"p", parameter}}, config);
  for (int t = 1; t <= 50; ++t) {
    const Tensor grad = randn({5, 3}, 50 + static_cast<std::uint64_t>(t));
    parameter.set_grad(grad);
    optimizer.step();
    for (std::size_t i = 0; i < expected.size(); ++i) {
      steps[i](t, expected[i], grad.data<double>()[i]);
    }
  }
  EXPECT_TRUE(all_close(parameter, Tensor::from(expected, parameter.shape()), 1e-13, 1e-14));
}

}  // namespace moegrad::test
