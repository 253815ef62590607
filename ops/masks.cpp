// SPDX-License-Identifier: Apache-2.0
#include "ops/masks.h"

#include <cmath>
#include <string_view>
#include <vector>

#include "framework/autograd/function.h"
#include "framework/tensor/dispatch_any.h"
#include "framework/tensor/fill.h"
#include "ops/broadcast.h"
#include "ops/broadcast_rows.h"
#include "ops/checks.h"
#include "ops/copies.h"
#include "ops/dims.h"
#include "ops/kernels/masks.h"

namespace moegrad::ops {
namespace {

using kernels::CompareOp;

void check_mask(std::string_view op, std::string_view name, const Tensor& mask) {
  check<DtypeError>(mask.dtype() == Dtype::kBool, op, ": ", name, " must be bool, got ",
                    mask.dtype());
}

void check_comparable(std::string_view op, const Tensor& a) {
  check<DtypeError>(is_floating(a.dtype()) || a.dtype() == Dtype::kInt64, op,
                    ": needs float32, float64 or int64, got ", a.dtype(), cast_hint(a.dtype()));
}

// The result is bool and has no gradient, so nothing is put on the tape.
Tensor compare(std::string_view op, CompareOp compare_op, const Tensor& a, const Tensor& b) {
  check_operands(op, a, b);
  const auto shape = broadcast_shapes(op, a.shape(), b.shape());
  check_comparable(op, a);
  check<DtypeError>(a.dtype() == b.dtype(), op, ": dtypes must agree, got ", a.dtype(), " and ",
                    b.dtype(), cast_hint(a.dtype(), b.dtype()));
  const Tensor left = contiguous(a.detach()), right = contiguous(b.detach());
  Tensor y = Tensor::empty(shape, Dtype::kBool);
  const BroadcastRows<2> rows({&left, &right}, shape);
  const auto run = [&]<class T>() {
    const auto *p = left.data<T>().data(), *q = right.data<T>().data();
    auto* const to = y.mutable_data<bool>().data();
    rows.for_each_run([&](std::int64_t begin, std::int64_t n, const auto& offsets) {
      kernels::compare(compare_op, p + offsets[0], rows.step(0), q + offsets[1], rows.step(1),
                       to + begin, n);
    });
  };
  if (a.dtype() == Dtype::kInt64) {
    run.template operator()<std::int64_t>();
  } else {
    dispatch_floating(a.dtype(), run);
  }
  return y;
}

// How integers compare with a number that is none. They are less than it or equal to it exactly if
// they are less than the integer below it or equal to that.
Tensor compare_with_fraction(std::string_view op, CompareOp compare_op, const Tensor& a, double b) {
  const auto all = [&](bool value) { return Tensor::full(a.shape(), value, Dtype::kBool); };
  if (compare_op == CompareOp::kEqual || std::isnan(b)) {
    return all(compare_op == CompareOp::kNotEqual);
  }
  if (compare_op == CompareOp::kNotEqual) return all(true);
  const bool asks_less = compare_op == CompareOp::kLess || compare_op == CompareOp::kLessEqual;
  if (b >= 0x1p63) return all(asks_less);
  if (b < -0x1p63) return all(!asks_less);
  return compare(op, asks_less ? CompareOp::kLessEqual : CompareOp::kGreater, a,
                 scalar(std::floor(b), Dtype::kInt64));
}

Tensor compare(std::string_view op, CompareOp compare_op, const Tensor& a, double b) {
  check_operands(op, a);
  check_comparable(op, a);
  const bool is_int64 = -0x1p63 <= b && b < 0x1p63 && b == std::floor(b);
  if (a.dtype() == Dtype::kInt64 && !is_int64) return compare_with_fraction(op, compare_op, a, b);
  return compare(op, compare_op, a, scalar(b, a.dtype()));
}

// y = a where the condition is true, else b. With g = dL/dy: dL/da = g where it is true, else 0;
// dL/db = g where it is false, else 0; each summed over the repeated dimensions.
class Where final : public Function {
 public:
  std::string_view name() const override { return "where"; }
  bool takes_wide_gradients() const override { return true; }

  Tensor forward(const Tensor& condition, const Tensor& a, const Tensor& b, const Shape& shape) {
    a_shape_ = a.shape();
    b_shape_ = b.shape();
    condition_ = condition;
    return choose(condition, a, b, shape);
  }

  TensorList backward(const TensorList& grads, InputMask needs) override {
    const Tensor grad = widened(contiguous(grads[0])), condition = condition_.unpack();
    const Tensor zero = Tensor::zeros({}, grad.dtype());
    Tensor grad_a, grad_b;
    if (needs[1]) grad_a = sum_to_shape(choose(condition, grad, zero, grad.shape()), a_shape_);
    if (needs[2]) grad_b = sum_to_shape(choose(condition, zero, grad, grad.shape()), b_shape_);
    return {Tensor(), grad_a, grad_b};
  }

 private:
  static Tensor choose(const Tensor& condition, const Tensor& a, const Tensor& b,
                       const Shape& shape) {
    Tensor y = Tensor::empty(shape, a.dtype());
    const BroadcastRows<3> rows({&condition, &a, &b}, shape);
    dispatch_any(a.dtype(), [&]<class T>() {
      if constexpr (!is_quantized(dtype_of<T>)) {
        const auto* const c = condition.data<bool>().data();
        const auto *p = a.data<T>().data(), *q = b.data<T>().data();
        auto* const to = y.mutable_data<T>().data();
        rows.for_each_run([&](std::int64_t begin, std::int64_t n, const auto& offsets) {
          kernels::where(c + offsets[0], rows.step(0), p + offsets[1], rows.step(1), q + offsets[2],
                         rows.step(2), to + begin, n);
        });
      }
    });
    return y;
  }

  Shape a_shape_, b_shape_;
  SavedTensor condition_{*this};
};

Tensor logical(std::string_view op, const Tensor& a, const Tensor& b, const Tensor& if_true,
               const Tensor& if_false) {
  check_mask(op, "input 0", a);
  check_mask(op, "input 1", b);
  broadcast_shapes(op, a.shape(), b.shape());
  return where(a, if_true, if_false);
}

// With `neutral` false whether any element is true, with true whether all are.
Tensor fold(std::string_view op, const Tensor& a, const Extents& extents, const Shape& shape,
            bool neutral) {
  check_mask(op, "input 0", a);
  const Tensor mask = contiguous(a);
  Tensor y = Tensor::full(shape, neutral ? 1 : 0, Dtype::kBool);
  const auto [outer, n, inner] = extents;
  const auto* from = mask.data<bool>().data();
  auto* to = y.mutable_data<bool>().data();
  for (std::int64_t o = 0; o < outer; ++o, to += inner) {
    for (std::int64_t i = 0; i < n; ++i, from += inner) {
      for (std::int64_t j = 0; j < inner; ++j) {
        if (from[j] != neutral) to[j] = !neutral;
      }
    }
  }
  return y;
}

Tensor fold(std::string_view op, const Tensor& a, bool neutral) {
  check_operands(op, a);
  return fold(op, a, {.n = a.numel()}, {}, neutral);
}

Tensor fold(std::string_view op, const Tensor& a, std::int64_t dim, bool keepdim, bool neutral) {
  check_operands(op, a);
  dim = wrap_dim(op, dim, a.ndim());
  return fold(op, a, extents_at(a.shape(), dim), reduced_shape(a.shape(), dim, keepdim), neutral);
}

Tensor constant(bool value) { return Tensor::full({}, value ? 1 : 0, Dtype::kBool); }

}  // namespace

Tensor eq(const Tensor& a, const Tensor& b) { return compare("eq", CompareOp::kEqual, a, b); }
Tensor ne(const Tensor& a, const Tensor& b) { return compare("ne", CompareOp::kNotEqual, a, b); }
Tensor lt(const Tensor& a, const Tensor& b) { return compare("lt", CompareOp::kLess, a, b); }
Tensor le(const Tensor& a, const Tensor& b) { return compare("le", CompareOp::kLessEqual, a, b); }
Tensor gt(const Tensor& a, const Tensor& b) { return compare("gt", CompareOp::kGreater, a, b); }
Tensor ge(const Tensor& a, const Tensor& b) {
  return compare("ge", CompareOp::kGreaterEqual, a, b);
}

Tensor eq(const Tensor& a, double b) { return compare("eq", CompareOp::kEqual, a, b); }
Tensor ne(const Tensor& a, double b) { return compare("ne", CompareOp::kNotEqual, a, b); }
Tensor lt(const Tensor& a, double b) { return compare("lt", CompareOp::kLess, a, b); }
Tensor le(const Tensor& a, double b) { return compare("le", CompareOp::kLessEqual, a, b); }
Tensor gt(const Tensor& a, double b) { return compare("gt", CompareOp::kGreater, a, b); }
Tensor ge(const Tensor& a, double b) { return compare("ge", CompareOp::kGreaterEqual, a, b); }

Tensor isnan(const Tensor& a) { return compare("isnan", CompareOp::kNotEqual, a, a); }

Tensor any(const Tensor& a) { return fold("any", a, false); }
Tensor all(const Tensor& a) { return fold("all", a, true); }
Tensor any(const Tensor& a, std::int64_t dim, bool keepdim) {
  return fold("any", a, dim, keepdim, false);
}
Tensor all(const Tensor& a, std::int64_t dim, bool keepdim) {
  return fold("all", a, dim, keepdim, true);
}

Tensor logical_and(const Tensor& a, const Tensor& b) {
  check_operands("logical_and", a, b);
  return logical("logical_and", a, b, b, constant(false));
}

Tensor logical_or(const Tensor& a, const Tensor& b) {
  check_operands("logical_or", a, b);
  return logical("logical_or", a, b, constant(true), b);
}

Tensor logical_not(const Tensor& a) {
  check_operands("logical_not", a);
  check_mask("logical_not", "input 0", a);
  return where(a, constant(false), constant(true));
}

Tensor nonzero(const Tensor& a) {
  check_operands("nonzero", a);
  check<LayoutError>(a.layout() == Layout::kND,
                     "nonzero: input 0 must be row-major ND, got FRACTAL_NZ; convert it with "
                     "nz_to_nd");
  const Tensor mask = to_dtype(a.detach(), Dtype::kBool);  // contiguous
  const auto elements = mask.data<bool>();
  const auto strides = row_major_strides(a.shape());
  std::vector<std::int64_t> positions;
  std::int64_t found = 0;
  for (std::size_t i = 0; i < elements.size(); ++i) {
    if (!elements[i]) continue;
    ++found;
    auto rest = static_cast<std::int64_t>(i);
    for (const auto stride : strides) {
      positions.push_back(rest / stride);
      rest %= stride;
    }
  }
  return Tensor::from(positions, {found, a.ndim()});
}

Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b) {
  check_operands("where", condition, a, b);
  const auto shape =
      broadcast_shapes("where", condition.shape(), broadcast_shapes("where", a.shape(), b.shape()));
  check_mask("where", "condition", condition);
  check_same_dtype("where", "a", a, "b", b);
  return apply<Where>(contiguous(condition), contiguous(a), contiguous(b), shape);
}

Tensor where(const Tensor& condition, const Tensor& a, double b) {
  check_operands("where", condition, a);
  check_element("where", b, a.dtype());
  return where(condition, a, scalar(b, a.dtype()));
}

Tensor where(const Tensor& condition, double a, const Tensor& b) {
  check_operands("where", condition, b);
  check_element("where", a, b.dtype());
  return where(condition, scalar(a, b.dtype()), b);
}

Tensor masked_fill(const Tensor& a, const Tensor& mask, double value) {
  check_operands("masked_fill", a, mask);
  broadcast_shapes("masked_fill", a.shape(), mask.shape());
  check_mask("masked_fill", "mask", mask);
  check_element("masked_fill", value, a.dtype());
  return where(mask, scalar(value, a.dtype()), a);
}

}  // namespace moegrad::ops
