// SPDX-License-Identifier: Apache-2.0
// The makers of Tensor that compute their elements.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string_view>
#include <type_traits>
#include <utility>

#include "framework/runtime/random.h"
#include "framework/tensor/dispatch_any.h"
#include "framework/tensor/fill.h"
#include "framework/tensor/nested_values.h"
#include "framework/tensor/tensor.h"

namespace moegrad {
namespace {

// An ND tensor of `shape` whose element i, in row-major order, is element(i). ValueError, which
// begins with the op's name, for one that `dtype` does not hold.
template <class Element>
Tensor tensor_of(std::string_view op, const Shape& shape, Dtype dtype, const Element& element) {
  Tensor tensor = Tensor::empty(shape, dtype);
  if (tensor.is_meta()) return tensor;
  dispatch_any(dtype, [&]<class T>() {
    auto values = tensor.mutable_data<T>();
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto value = element(static_cast<std::int64_t>(i));
      if constexpr (std::is_integral_v<T> && !std::is_same_v<T, decltype(+value)>) {
        check_element(op, static_cast<double>(value), dtype);
      }
      values[i] = convert<T>(value);
    }
  });
  return tensor;
}

void check_random_dtype(std::string_view op, Dtype dtype) {
  check<DtypeError>(holds_reals(dtype), op, ": dtype must be float32, float64 or bfloat16, got ",
                    dtype);
}

}  // namespace

NestedValues::NestedValues(std::initializer_list<NestedValues> parts) {
  shape_.push_back(std::ssize(parts));
  if (parts.size() == 0) return;
  const auto& first = parts.begin()->shape_;
  for (const auto size : first) shape_.push_back(size);
  for (const auto& part : parts) {
    check<ShapeError>(part.shape_ == first,
                      "Tensor::of: the parts in a pair of braces must have one shape, got ", first,
                      " and ", part.shape_);
    values_.insert(values_.end(), part.values_.begin(), part.values_.end());
  }
}

Tensor Tensor::of(const NestedValues& nested, Dtype dtype) {
  return tensor_of("Tensor::of", nested.shape(), dtype,
                   [&](std::int64_t i) { return nested.values()[static_cast<std::size_t>(i)]; });
}

Tensor Tensor::arange_of_integers(std::int64_t start, std::int64_t end, std::int64_t step,
                                  Dtype dtype) {
  check<ValueError>(step != 0, "arange: step must not be 0");
  check<ValueError>(step > 0 ? start <= end : end <= start, "arange: from ", start, " to ", end,
                    " the step must have the other sign, got ", step);
  // Unsigned: the distance, and the step's size, may be more than the largest int64.
  const auto from = static_cast<std::uint64_t>(start), to = static_cast<std::uint64_t>(end);
  const auto distance = step > 0 ? to - from : from - to;
  const auto stride = step > 0 ? static_cast<std::uint64_t>(step)
                               : std::uint64_t{0} - static_cast<std::uint64_t>(step);
  const auto count = distance / stride + (distance % stride != 0 ? 1 : 0);
  constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  check<ShapeError>(count <= kMost, "arange: must give at most 2^63 - 1 elements, got ", count);
  return tensor_of("arange", {static_cast<std::int64_t>(count)}, dtype, [&](std::int64_t i) {
    // Unsigned: i * step may wrap where the sum does not.
    return static_cast<std::int64_t>(from + static_cast<std::uint64_t>(i) *
                                                static_cast<std::uint64_t>(step));
  });
}

Tensor Tensor::arange_of_reals(double start, double end, double step, Dtype dtype) {
  check<ValueError>(std::isfinite(start) && std::isfinite(end) && std::isfinite(step),
                    "arange: start, end and step must be finite, got ", start, ", ", end, " and ",
                    step);
  check<ValueError>(step != 0, "arange: step must not be 0");
  check<ValueError>(step > 0 ? start <= end : end <= start, "arange: from ", start, " to ", end,
                    " the step must have the other sign, got ", step);
  const auto count = std::ceil((end - start) / step);
  check<ShapeError>(count < 0x1p63, "arange: must give at most 2^63 - 1 elements, got ", count);
  return tensor_of("arange", {static_cast<std::int64_t>(count)}, dtype,
                   [&](std::int64_t i) { return start + static_cast<double>(i) * step; });
}

Tensor Tensor::linspace(double start, double end, std::int64_t steps, Dtype dtype) {
  check<ValueError>(steps >= 0, "linspace: steps must not be negative, got ", steps);
  check<ValueError>(std::isfinite(start) && std::isfinite(end),
                    "linspace: start and end must be finite, got ", start, " and ", end);
  const auto gaps = static_cast<double>(std::max<std::int64_t>(steps - 1, 1));
  const bool overflows = !std::isfinite(end - start);
  const double step = overflows ? end / gaps - start / gaps : (end - start) / gaps;
  // From either end, so that the last element is `end` and the sequence is symmetric.
  return tensor_of("linspace", {steps}, dtype, [&](std::int64_t i) {
    return i < (steps + 1) / 2 ? start + static_cast<double>(i) * step
                               : end - static_cast<double>(steps - 1 - i) * step;
  });
}

Tensor Tensor::eye(std::int64_t n, std::int64_t m, Dtype dtype) {
  return tensor_of("eye", {n, m}, dtype,
                   [&](std::int64_t i) { return i / m == i % m ? 1.0 : 0.0; });
}

Tensor Tensor::eye(std::int64_t n, Dtype dtype) { return eye(n, n, dtype); }

Tensor Tensor::randn(const Shape& shape, const Random& random, Dtype dtype) {
  check_random_dtype("randn", dtype);
  return tensor_of("randn", shape, dtype,
                   [&](std::int64_t i) { return random.normal(static_cast<std::uint64_t>(i)); });
}

Tensor Tensor::uniform(const Shape& shape, const Random& random, Dtype dtype) {
  check_random_dtype("uniform", dtype);
  // A power of two of levels that the dtype tells apart: rounding must not give 1.
  const double levels = dtype == Dtype::kFloat64   ? 0x1p53
                        : dtype == Dtype::kFloat32 ? 0x1p24
                                                   : 0x1p8;
  return tensor_of("uniform", shape, dtype, [&](std::int64_t i) {
    return std::floor(random.uniform(static_cast<std::uint64_t>(i)) * levels) / levels;
  });
}

Tensor Tensor::randperm(std::int64_t n, const Random& random) {
  check<ValueError>(n >= 0, "randperm: n must not be negative, got ", n);
  Tensor order = arange(n);
  if (order.is_meta()) return order;
  const auto values = order.mutable_data<std::int64_t>();
  for (std::int64_t i = n - 1; i > 0; --i) {  // Fisher and Yates
    const auto j = random.integer(static_cast<std::uint64_t>(i), i + 1);
    std::swap(values[static_cast<std::size_t>(i)], values[static_cast<std::size_t>(j)]);
  }
  return order;
}

}  // namespace moegrad
