// SPDX-License-Identifier: Apache-2.0
#include "ops/views.h"

#include <algorithm>
#include <memory>
#include <string_view>

#include "framework/autograd/function.h"
#include "framework/autograd/slice.h"
#include "ops/broadcast.h"
#include "ops/checks.h"
#include "ops/copies.h"
#include "ops/dims.h"

namespace moegrad::ops {
namespace {

// The storage of contiguous or NZ `x` under another shape.
Tensor with_shape(const Tensor& x, const Shape& shape) {
  if (x.layout() == Layout::kNZ) return Tensor::nz_view(x, shape);
  return Tensor::as_strided(x, shape, row_major_strides(shape), x.offset());
}

// The same elements in the same order with other sizes and strides, so
//     dL/da = dL/dy seen in the shape of a.
class View final : public Function {
 public:
  std::string_view name() const override { return "view"; }
  bool takes_wide_gradients() const override { return true; }
  bool reads_nz(std::size_t /*i*/) const override { return true; }

  Tensor forward(const Tensor& a, const Shape& shape, const Shape& strides) {
    shape_ = a.shape();
    if (a.layout() == Layout::kNZ) return Tensor::nz_view(a, shape);
    return Tensor::as_strided(a, shape, strides, a.offset());
  }

  TensorList backward(const TensorList& grads, InputMask /*needs*/) override {
    return {with_shape(contiguous(grads[0]), shape_)};
  }

 private:
  Shape shape_;
};

// dL/da = dL/dy with the dimensions put back.
class Permute final : public Function {
 public:
  explicit Permute(std::vector<std::int64_t> dims) : dims_(std::move(dims)) {}

  std::string_view name() const override { return "permute"; }
  bool takes_wide_gradients() const override { return true; }

  Tensor forward(const Tensor& a) {
    Shape shape = a.shape(), strides = a.strides();
    for (std::int64_t i = 0; i < a.ndim(); ++i) {
      const auto from = dims_[static_cast<std::size_t>(i)];
      shape[i] = a.shape()[from];
      strides[i] = a.strides()[from];
    }
    return Tensor::as_strided(a, shape, strides, a.offset());
  }

  TensorList backward(const TensorList& grads, InputMask /*needs*/) override {
    std::vector<std::int64_t> inverse(dims_.size());
    for (std::size_t i = 0; i < dims_.size(); ++i) {
      inverse[static_cast<std::size_t>(dims_[i])] = static_cast<std::int64_t>(i);
    }
    return {contiguous(permute(grads[0], inverse))};
  }

 private:
  std::vector<std::int64_t> dims_;
};

// dL/da = dL/dy summed over the repetitions.
class Expand final : public Function {
 public:
  std::string_view name() const override { return "expand"; }
  bool takes_wide_gradients() const override { return true; }

  Tensor forward(const Tensor& a, const Shape& shape) {
    shape_ = a.shape();
    return Tensor::as_strided(a, shape, broadcast_strides(a, shape), a.offset());
  }

  TensorList backward(const TensorList& grads, InputMask /*needs*/) override {
    return {sum_to_shape(widened(contiguous(grads[0])), shape_)};
  }

 private:
  Shape shape_;
};

// `shape` with its -1, if any, replaced by the size that the elements of `a` leave for it.
Shape resolve(std::string_view op, const Tensor& a, const Shape& shape) {
  Shape resolved = shape;
  std::int64_t open = -1, known = 1;
  bool wraps = false;
  for (std::int64_t i = 0; i < shape.ndim(); ++i) {
    check<ShapeError>(shape[i] >= 0 || (shape[i] == -1 && open < 0), op,
                      ": sizes must not be negative but for one -1, got ", shape);
    if (shape[i] == -1) {
      open = i;
    } else {
      wraps = __builtin_mul_overflow(known, shape[i], &known) || wraps;
    }
  }
  const bool fits = !wraps && (open < 0 ? known == a.numel() : known > 0 && a.numel() % known == 0);
  check<ShapeError>(fits, op, ": shape ", shape, " cannot hold the ", a.numel(), " elements of ",
                    a.shape());
  if (open >= 0) resolved[open] = a.numel() / known;
  return resolved;
}

Tensor apply_view(const Tensor& a, const Shape& shape, const Shape& strides) {
  return apply<View>(a, shape, strides);
}

}  // namespace

Tensor view(const Tensor& a, const Shape& shape) {
  check_operands_of_any_dtype("view", a);
  const auto resolved = resolve("view", a, shape);
  if (a.layout() == Layout::kNZ) {
    const auto& blocks = a.nz_blocks();
    const Shape stacked{blocks.batch, blocks.k, blocks.n};
    const Shape flat{blocks.batch * blocks.k, blocks.n};
    check<ShapeError>(resolved == stacked || resolved == flat, "view: these FRACTAL_NZ blocks are ",
                      stacked, " or ", flat, ", got ", shape);
  } else {
    check<LayoutError>(a.is_contiguous(), "view: needs a contiguous tensor, got shape ", a.shape(),
                       " with strides ", a.strides(), "; use reshape");
  }
  return apply_view(a, resolved, row_major_strides(resolved));
}

Tensor reshape(const Tensor& a, const Shape& shape) {
  check_operands_of_any_dtype("reshape", a);
  const auto resolved = resolve("reshape", a, shape);
  if (resolved == a.shape()) return a;
  return view(contiguous(a), resolved);
}

Tensor transpose(const Tensor& a, std::int64_t dim0, std::int64_t dim1) {
  check_operands_of_any_dtype("transpose", a);
  dim0 = wrap_dim("transpose", dim0, a.ndim());
  dim1 = wrap_dim("transpose", dim1, a.ndim());
  std::vector<std::int64_t> dims(static_cast<std::size_t>(a.ndim()));
  for (std::size_t i = 0; i < dims.size(); ++i) dims[i] = static_cast<std::int64_t>(i);
  std::swap(dims[static_cast<std::size_t>(dim0)], dims[static_cast<std::size_t>(dim1)]);
  return permute(a, dims);
}

Tensor permute(const Tensor& a, const std::vector<std::int64_t>& dims) {
  check_operands_of_any_dtype("permute", a);
  check<ShapeError>(std::ssize(dims) == a.ndim(), "permute: ", a.shape(), " needs ", a.ndim(),
                    " dimensions, got ", dims.size());
  std::vector<std::int64_t> wrapped;
  for (const auto dim : dims) {
    wrapped.push_back(wrap_dim("permute", dim, a.ndim()));
    check<ShapeError>(std::ranges::count(wrapped, wrapped.back()) == 1, "permute: dimension ",
                      wrapped.back(), " is named twice");
  }
  return apply<Permute>(made_with(std::move(wrapped)), a);
}

Tensor narrow(const Tensor& a, std::int64_t dim, std::int64_t start, std::int64_t length) {
  check_operands_of_any_dtype("narrow", a);
  dim = wrap_dim("narrow", dim, a.ndim());
  const auto size = a.dim(dim);
  const auto begin = start < 0 ? start + size : start;
  const bool inside = 0 <= begin && begin <= size && 0 <= length && length <= size - begin;
  check<ShapeError>(inside, "narrow: start and length must stay inside dimension ", dim, " of ",
                    a.shape(), ", got ", start, " and ", length);
  return apply_slice("narrow", a, {.dim = dim, .begin = begin, .length = length});
}

Tensor select(const Tensor& a, std::int64_t dim, std::int64_t i) {
  check_operands_of_any_dtype("select", a);
  dim = wrap_dim("select", dim, a.ndim());
  const auto size = a.dim(dim);
  check<ShapeError>(-size <= i && i < size, "select: position must be in [", -size, ", ", size,
                    ") for dimension ", dim, " of ", a.shape(), ", got ", i);
  return apply_slice("select", a, {.dim = dim, .begin = i < 0 ? i + size : i, .removes_dim = true});
}

Tensor flatten(const Tensor& a, std::int64_t start_dim, std::int64_t end_dim) {
  check_operands_of_any_dtype("flatten", a);
  const auto ndim = std::max<std::int64_t>(a.ndim(), 1);
  start_dim = wrap_dim("flatten", start_dim, ndim);
  end_dim = wrap_dim("flatten", end_dim, ndim);
  check<ShapeError>(start_dim <= end_dim, "flatten: start_dim must not be after end_dim, got ",
                    start_dim, " and ", end_dim);
  Shape shape;
  for (std::int64_t i = 0; i < a.ndim(); ++i) {
    if (start_dim < i && i <= end_dim) {
      shape[-1] *= a.dim(i);
    } else {
      shape.push_back(a.dim(i));
    }
  }
  return reshape(a, a.ndim() == 0 ? Shape{1} : shape);
}

Tensor unsqueeze(const Tensor& a, std::int64_t dim) {
  check_operands_of_any_dtype("unsqueeze", a);
  dim = wrap_dim("unsqueeze", dim, a.ndim() + 1);
  Shape shape, strides;
  for (std::int64_t i = 0; i <= a.ndim(); ++i) {
    if (i == dim) {
      shape.push_back(1);
      strides.push_back(1);
    }
    if (i == a.ndim()) break;
    shape.push_back(a.dim(i));
    strides.push_back(a.strides()[i]);
  }
  return apply_view(a, shape, strides);
}

Tensor squeeze(const Tensor& a, std::int64_t dim) {
  check_operands_of_any_dtype("squeeze", a);
  dim = wrap_dim("squeeze", dim, a.ndim());
  check<ShapeError>(a.dim(dim) == 1, "squeeze: dimension ", dim, " of ", a.shape(),
                    " must be of size 1");
  Shape shape, strides;
  for (std::int64_t i = 0; i < a.ndim(); ++i) {
    if (i == dim) continue;
    shape.push_back(a.dim(i));
    strides.push_back(a.strides()[i]);
  }
  return apply_view(a, shape, strides);
}

Tensor expand(const Tensor& a, const Shape& shape) {
  check_operands_of_any_dtype("expand", a);
  Shape sizes = shape;
  const auto added = sizes.ndim() - a.ndim();
  for (std::int64_t i = std::max<std::int64_t>(added, 0); i < sizes.ndim(); ++i) {
    if (sizes[i] == -1) sizes[i] = a.dim(i - added);
  }
  check<ShapeError>(can_expand(a.shape(), sizes), "expand: ", a.shape(), " does not expand to ",
                    shape);
  return apply<Expand>(a, sizes);
}

}  // namespace moegrad::ops
