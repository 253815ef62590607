// SPDX-License-Identifier: Apache-2.0
#pragma once

// What every test needs: random tensors, exact messages, comparisons.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "framework/autograd/gradcheck_gtest.h"
#include "framework/runtime/random.h"
#include "framework/tensor/fill.h"
#include "framework/tensor/tensor.h"

namespace moegrad::test {

/// Whether all cases are wanted, as in `tests/run.sh --full`, and not a part of them in every run.
inline bool full_suite() {
  const char* const full = std::getenv("MOEGRAD_FULL");
  return full != nullptr && std::string_view(full) == "1";
}

/// Whether a sanitizer slows the program: of cases that are many and alike a part runs then.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

/// Standard normal leaf; the same numbers for the same seed, whatever the dtype.
inline Tensor randn(const Shape& shape, std::uint64_t seed = 1, Dtype dtype = Dtype::kFloat64,
                    bool requires_grad = false) {
  const Random random(seed, "testing randn");
  Tensor values = Tensor::empty(shape, Dtype::kFloat64);
  std::uint64_t index = 0;
  for (auto& value : values.mutable_data<double>()) value = random.normal(index++);
  Tensor tensor = to_dtype(values, dtype);
  tensor.set_requires_grad(requires_grad);
  return tensor;
}

/// A float64 leaf that requires a gradient, for gradcheck.
inline Tensor variable(const Shape& shape, std::uint64_t seed = 1) {
  return randn(shape, seed, Dtype::kFloat64, true);
}

/// The elements of an int64 tensor.
inline std::vector<std::int64_t> integers(const Tensor& tensor) {
  const auto values = tensor.data<std::int64_t>();
  return {values.begin(), values.end()};
}

/// Runs `body` and returns the message of the E it throws; fails the test if it does not.
template <class E, class Body>
std::string message_of(const Body& body) {
  try {
    body();
  } catch (const E& error) {
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another exception: " << error.what();
    return {};
  }
  ADD_FAILURE() << "no exception";
  return {};
}

/// Same shape, dtype and bits.
inline ::testing::AssertionResult bitwise_equal(const Tensor& a, const Tensor& b) {
  if (!(a.shape() == b.shape()) || a.dtype() != b.dtype()) {
    return ::testing::AssertionFailure()
           << a.shape() << ' ' << a.dtype() << " against " << b.shape() << ' ' << b.dtype();
  }
  const Tensor x = clone(a.detach()), y = clone(b.detach());
  const auto* p = x.storage().data();
  const auto* q = y.storage().data();
  const auto size = size_of(a.dtype());
  for (std::int64_t i = 0; i < a.numel() * size; ++i) {
    if (p[i] != q[i]) return ::testing::AssertionFailure() << "element " << i / size << " differs";
  }
  return ::testing::AssertionSuccess();
}

/// |a - b| <= atol + rtol * |b| for every element.
inline ::testing::AssertionResult all_close(const Tensor& a, const Tensor& b, double rtol,
                                            double atol) {
  if (!(a.shape() == b.shape())) {
    return ::testing::AssertionFailure() << a.shape() << " against " << b.shape();
  }
  const Tensor x = to_dtype(a.detach(), Dtype::kFloat64);
  const Tensor y = to_dtype(b.detach(), Dtype::kFloat64);
  const auto p = x.data<double>();
  const auto q = y.data<double>();
  for (std::size_t i = 0; i < p.size(); ++i) {
    if (!(std::abs(p[i] - q[i]) <= atol + rtol * std::abs(q[i]))) {
      return ::testing::AssertionFailure()
             << "element " << i << " is " << p[i] << ", expected " << q[i];
    }
  }
  return ::testing::AssertionSuccess();
}

}  // namespace moegrad::test
