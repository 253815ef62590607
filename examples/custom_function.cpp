// SPDX-License-Identifier: Apache-2.0
// An op of one's own, y = tanh(x W), written with Eigen and checked by finite differences.
//
//     build/release/examples/custom_function tape.dot && dot -Tsvg tape.dot > tape.svg
//
// Expected: "gradients agree", in less than a second.
#include <iostream>

#include "examples/output_file.h"
#include "examples/program.h"
#include "examples/program_options.h"
#include "framework/autograd/function.h"
#include "framework/autograd/gradcheck.h"
#include "framework/autograd/graph.h"
#include "framework/tensor/as_eigen.h"
#include "framework/tensor/fill.h"

using namespace moegrad;

// With G = dL/dy * (1 - y^2), elementwise:  dL/dx = G W^T,  dL/dW = x^T G
class TanhLinear final : public Function {
 public:
  std::string_view name() const override { return "tanh_linear"; }
  Tensor forward(const Tensor& x, const Tensor& weight) {  // [M, K], [K, N]
    Tensor y = Tensor::empty({x.dim(0), weight.dim(1)}, x.dtype());
    as_eigen<double>(y) = (as_eigen<double>(x) * as_eigen<double>(weight)).array().tanh();
    x_ = x, weight_ = weight, y_ = y;
    return y;
  }
  TensorList backward(const TensorList& grads, InputMask /*needs*/) override {
    const Tensor x = x_.unpack(), weight = weight_.unpack(), y = y_.unpack();
    Tensor grad_x = empty_like(x), grad_weight = empty_like(weight);
    const EigenMatrix<double> g =
        as_eigen<double>(grads[0]).array() * (1 - as_eigen<double>(y).array().square());
    as_eigen<double>(grad_x) = g * as_eigen<double>(weight).transpose();
    as_eigen<double>(grad_weight) = as_eigen<double>(x).transpose() * g;
    return {grad_x, grad_weight};
  }

 private:
  SavedTensor x_{*this}, weight_{*this}, y_{*this};
};

int run(int argc, char** argv) {
  const std::string path = argc > 1 ? argv[1] : "";
  const std::string usage =
      "usage: custom_function [--help] [DOT_FILE]\n\n"
      "Checks the gradients of tanh(x W); writes its tape to DOT_FILE, by default to stdout.\n";
  if (argc == 2 && path == "--help") return std::cout << usage ? 0 : 1;
  if (argc > 2 || path.starts_with('-')) return std::cerr << usage ? 2 : 1;
  if (!path.empty()) examples::check_paths({{"DOT_FILE", path, examples::PathKind::kOutput}});
  const auto f = [](const TensorList& in) -> TensorList {
    return {Function::apply(std::make_shared<TanhLinear>(), in[0], in[1])};
  };
  TensorList inputs = {Tensor::from(std::vector<double>{.1, -.2, .3, .4, .5, -.6}, {2, 3}),
                       Tensor::from(std::vector<double>{.7, -.8, .9}, {3, 1})};
  for (auto& input : inputs) input.set_requires_grad(true);
  const auto result = gradcheck(f, inputs);
  std::cerr << (result ? "gradients agree" : result.message) << '\n';
  if (path.empty()) {
    write_dot(f(inputs)[0], std::cout);
  } else {
    examples::OutputFile file(path);
    write_dot(f(inputs)[0], file);
    file.finish();
  }
  return result ? 0 : 1;
}

int main(int argc, char** argv) {
  return examples::run_program("custom_function", [&] { return run(argc, argv); });
}
