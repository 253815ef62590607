// SPDX-License-Identifier: Apache-2.0
// An op of your own, y = tanh(s x W), written with Eigen and checked with finite differences.
//
//     build/release/examples/own_function > tape.dot && dot -Tsvg tape.dot > tape.svg
//
// Expected: "gradients agree" on standard error, the tape as DOT on standard output.
#include <iostream>

#include "framework/tensor/as_eigen.h"
#include "moegrad.h"
#include "moegrad_diagnostics.h"
#include "moegrad_testing.h"

using namespace moegrad;

// With G = s dL/dy * (1 - y^2), elementwise:  dL/dx = G W^T,  dL/dW = x^T G
class TanhLinear final : public Function {
 public:
  explicit TanhLinear(double scale) : scale_(scale) {}

  std::string_view name() const override { return "tanh_linear"; }

  Tensor forward(const Tensor& x, const Tensor& weight) {  // [M, K], [K, N]
    Tensor y = Tensor::empty({x.dim(0), weight.dim(1)}, x.dtype());
    as_eigen<double>(y) = (scale_ * as_eigen<double>(x) * as_eigen<double>(weight)).array().tanh();
    x_ = x;
    weight_ = weight;
    y_ = y;
    return y;
  }

  TensorList backward(const TensorList& grads, InputMask /*needs*/) override {
    const Tensor x = x_.unpack();
    const Tensor weight = weight_.unpack();
    const Tensor y = y_.unpack();
    const Tensor grad_y = ops::contiguous(grads[0]);
    const EigenMatrix<double> g =
        scale_ * as_eigen<double>(grad_y).array() * (1 - as_eigen<double>(y).array().square());
    Tensor grad_x = empty_like(x);
    Tensor grad_weight = empty_like(weight);
    as_eigen<double>(grad_x) = g * as_eigen<double>(weight).transpose();
    as_eigen<double>(grad_weight) = as_eigen<double>(x).transpose() * g;
    return {grad_x, grad_weight};
  }

 private:
  double scale_;
  SavedTensor x_{*this};
  SavedTensor weight_{*this};
  SavedTensor y_{*this};
};

Tensor tanh_linear(const Tensor& x, const Tensor& weight, double scale) {
  return apply<TanhLinear>(made_with(scale), x, weight);
}

int main() {
  return run_program_once("own_function", [] {
    Tensor x = Tensor::from(std::vector<double>{.1, -.2, .3, .4, .5, -.6}, {2, 3});
    Tensor weight = Tensor::from(std::vector<double>{.7, -.8, .9}, {3, 1});
    x.set_requires_grad(true);
    weight.set_requires_grad(true);
    const auto f = [](const TensorList& in) -> TensorList {
      return {tanh_linear(in[0], in[1], 0.5)};
    };
    gradcheck(f, {x, weight}).or_throw();
    std::cerr << "gradients agree\n";
    write_dot(tanh_linear(x, weight, 0.5), std::cout);
    return 0;
  });
}
