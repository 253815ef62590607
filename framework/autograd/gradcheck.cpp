// SPDX-License-Identifier: Apache-2.0
#include "framework/autograd/gradcheck.h"

#include <cmath>
#include <sstream>
#include <vector>

#include "framework/autograd/engine.h"
#include "framework/autograd/grad_mode.h"
#include "framework/runtime/random.h"
#include "framework/tensor/fill.h"

namespace moegrad {
namespace {

TensorList floating_outputs(const TensorList& outputs) {
  TensorList kept;
  for (const auto& output : outputs) {
    if (is_floating(output.dtype())) kept.push_back(output);
  }
  return kept;
}

// Elements in [0.5, 1.5) with random sign: no output is weighed with almost nothing.
TensorList random_cotangents(const TensorList& outputs, std::uint64_t seed) {
  const Random random(seed, "gradcheck cotangent");
  TensorList cotangents;
  std::uint64_t index = 0;
  for (const auto& output : outputs) {
    Tensor cotangent = empty_like(output);
    for (auto& value : cotangent.mutable_data<double>()) {
      const double u = random.uniform(index++);
      value = u < 0.5 ? u + 0.5 : -u;
    }
    cotangents.push_back(cotangent);
  }
  return cotangents;
}

double weighed_sum(const TensorList& outputs, const TensorList& cotangents) {
  double sum = 0;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const Tensor output = clone(outputs[i]);
    const auto values = output.data<double>();
    const auto weights = cotangents[i].data<double>();
    for (std::size_t j = 0; j < values.size(); ++j) sum += values[j] * weights[j];
  }
  return sum;
}

std::string position(std::int64_t flat, const Shape& shape) {
  Shape index = shape;
  for (std::int64_t i = shape.ndim() - 1; i >= 0; --i) {
    index[i] = flat % shape[i];
    flat /= shape[i];
  }
  std::ostringstream text;
  text << index;
  return text.str();
}

}  // namespace

GradcheckResult gradcheck(const std::function<TensorList(const TensorList&)>& f,
                          const TensorList& inputs, const GradcheckOptions& options) {
  bool any = false;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const auto& input = inputs[i];
    if (!input.defined() || !input.requires_grad()) continue;
    any = true;
    check(input.is_leaf() && input.is_contiguous(), "gradcheck: input ", i,
          " must be a contiguous leaf");
    check<DtypeError>(input.dtype() == Dtype::kFloat64, "gradcheck: input ", i,
                      " must be float64, got ", input.dtype());
    input.set_grad(Tensor());
  }
  check(any, "gradcheck: no input requires a gradient");

  const auto outputs = floating_outputs(f(inputs));
  const auto cotangents = random_cotangents(outputs, options.seed);
  TensorList roots, grads;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].requires_grad()) continue;
    roots.push_back(outputs[i]);
    grads.push_back(cotangents[i]);
  }
  run_backward(roots, grads, /*retain_graph=*/false);

  const NoGradGuard no_grad;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined() || !inputs[i].requires_grad()) continue;
    const Tensor analytic =
        inputs[i].grad().defined() ? clone(inputs[i].grad()) : zeros_like(inputs[i]);
    inputs[i].set_grad(Tensor());
    Tensor input = inputs[i];
    for (std::int64_t j = 0; j < input.numel(); ++j) {
      auto& element = input.mutable_data<double>()[static_cast<std::size_t>(j)];
      const double value = element;
      element = value + options.eps;
      const double above = weighed_sum(floating_outputs(f(inputs)), cotangents);
      element = value - options.eps;
      const double below = weighed_sum(floating_outputs(f(inputs)), cotangents);
      element = value;
      const double numeric = (above - below) / (2 * options.eps);
      const double got = analytic.data<double>()[static_cast<std::size_t>(j)];
      if (!(std::abs(got - numeric) <= options.atol + options.rtol * std::abs(numeric))) {
        std::ostringstream message;
        message << "gradcheck: gradient of input " << i << " at " << position(j, input.shape())
                << " is " << got << " by backward and " << numeric << " by central differences";
        return {false, message.str()};
      }
    }
  }
  return {};
}

}  // namespace moegrad
