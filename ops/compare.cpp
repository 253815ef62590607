// SPDX-License-Identifier: Apache-2.0
#include "ops/compare.h"

#include <algorithm>
#include <cmath>

#include "framework/tensor/dispatch_any.h"
#include "framework/tensor/fill.h"
#include "ops/broadcast.h"
#include "ops/checks.h"
#include "ops/copies.h"
#include "ops/views.h"

namespace moegrad::ops {

bool equal(const Tensor& a, const Tensor& b) {
  check_operands("equal", a, b);
  check<DtypeError>(a.dtype() == b.dtype(), "equal: dtypes must agree, got ", a.dtype(), " and ",
                    b.dtype());
  if (!(a.shape() == b.shape())) return false;
  const Tensor left = contiguous(a.detach()), right = contiguous(b.detach());
  bool same = false;
  dispatch_any(a.dtype(),
               [&]<class T>() { same = std::ranges::equal(left.data<T>(), right.data<T>()); });
  return same;
}

bool allclose(const Tensor& a, const Tensor& b, double rtol, double atol, bool equal_nan) {
  check_operands("allclose", a, b);
  const auto shape = broadcast_shapes("allclose", a.shape(), b.shape());
  check<DtypeError>(holds_reals(a.dtype()), "allclose: needs float32, float64 or bfloat16, got ",
                    a.dtype());
  check<DtypeError>(a.dtype() == b.dtype(), "allclose: dtypes must agree, got ", a.dtype(), " and ",
                    b.dtype());
  check<ValueError>(rtol >= 0 && atol >= 0, "allclose: rtol and atol must not be negative, got ",
                    rtol, " and ", atol);
  const auto as_doubles = [&shape](const Tensor& x) {
    return to_dtype(expand(x.detach(), shape), Dtype::kFloat64);
  };
  const Tensor left = as_doubles(a), right = as_doubles(b);
  return std::ranges::equal(left.data<double>(), right.data<double>(), [=](double x, double y) {
    if (std::isnan(x) && std::isnan(y)) return equal_nan;
    const double off = std::abs(x - y);
    return x == y || (std::isfinite(off) && off <= atol + rtol * std::abs(y));
  });
}

}  // namespace moegrad::ops
