// SPDX-License-Identifier: Apache-2.0
#include "framework/autograd/anomaly.h"

#include <cmath>
#include <optional>
#include <sstream>
#include <string_view>

#include "framework/autograd/function.h"
#include "framework/runtime/call_stack.h"
#include "framework/tensor/dispatch_any.h"
#include "framework/tensor/fill.h"

namespace moegrad {
namespace {

struct Anomaly {
  std::size_t tensor = 0;
  Shape shape;
  std::int64_t element = 0;  // of the row-major order; of the blocks if FRACTAL_NZ
  double value = 0.0;
};

template <class T>
std::optional<std::int64_t> first_not_finite(std::span<const T> values) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!std::isfinite(static_cast<double>(values[i]))) return static_cast<std::int64_t>(i);
  }
  return std::nullopt;
}

std::optional<Anomaly> find_anomaly(const TensorList& tensors) {
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const auto& tensor = tensors[t];
    if (!tensor.defined() || !holds_reals(tensor.dtype())) continue;
    std::optional<Anomaly> found;
    const auto look = [&]<class T>() {
      const Tensor whole = tensor.layout() == Layout::kNZ ? tensor : clone(tensor.detach());
      const auto values = tensor.layout() == Layout::kNZ ? whole.nz_data<T>() : whole.data<T>();
      if (const auto i = first_not_finite(values)) {
        found = Anomaly{t, tensor.shape(), *i,
                        static_cast<double>(values[static_cast<std::size_t>(*i)])};
      }
    };
    dispatch_reals(tensor.dtype(), look);
    if (found) return found;
  }
  return std::nullopt;
}

// "nan" whatever its sign.
std::string_view word_for(double value) {
  if (std::isnan(value)) return "nan";
  return value > 0 ? "inf" : "-inf";
}

[[noreturn]] void report(const Function& function, std::string_view direction,
                         std::string_view verb, const Anomaly& anomaly, std::string_view which) {
  std::ostringstream message;
  message << "anomaly: " << direction << function.name() << ' ' << verb << ' '
          << word_for(anomaly.value) << " in " << which << anomaly.tensor << ' ' << anomaly.shape
          << " at element " << anomaly.element;
  AnomalyError error(message.str());
  if (function.scope()) error.add_module(function.scope()->path());
  std::ostringstream calls;
  if (const auto* const stack = function.call_stack()) {
    calls << "; called from";
    for (const auto& line :
         stack->describe({"framework/autograd/function.h", "framework/autograd/function.cpp",
                          "framework/runtime/call_stack.cpp", "nn/extended_call.h", "nn/module.h",
                          "nn/module.cpp", "nn/module_extension.cpp", "nn/tensor_arguments.h"})) {
      calls << "\n  " << line;
    }
  } else {
    calls << "; where forward was called is unknown: anomaly detection was off then";
  }
  error.append(calls.str());
  throw error;
}

}  // namespace

namespace detail {

void check_forward_is_finite(const Function& function, const TensorList& inputs,
                             const TensorList& outputs) {
  const auto made = find_anomaly(outputs);
  if (!made) return;
  if (const auto got = find_anomaly(inputs)) report(function, "", "got", *got, "input ");
  report(function, "", "made", *made, "output ");
}

void check_backward_is_finite(const Function& function, const TensorList& grads,
                              const TensorList& input_grads) {
  const auto made = find_anomaly(input_grads);
  if (!made) return;
  if (const auto got = find_anomaly(grads)) {
    report(function, "backward of ", "got", *got, "the gradient of output ");
  }
  report(function, "backward of ", "made", *made, "the gradient of input ");
}

}  // namespace detail

}  // namespace moegrad
