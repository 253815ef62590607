// SPDX-License-Identifier: Apache-2.0
#include "ops/order.h"

#include <string_view>

#include "framework/autograd/function.h"
#include "ops/checks.h"
#include "ops/copies.h"
#include "ops/dims.h"
#include "ops/kernels/indexing.h"
#include "ops/kernels/order.h"
#include "ops/views.h"

namespace moegrad::ops {
namespace {

// y = the elements of a at `indices` along dim, k of them, so dL/da is dL/dy there and zero
// elsewhere. The indices, which have the shape of the result, all differ.
class Pick final : public Function {
 public:
  Pick(std::string_view name, std::int64_t dim, std::int64_t k) : name_(name), dim_(dim), k_(k) {}

  std::string_view name() const override { return name_; }

  Tensor forward(const Tensor& a, const Tensor& indices) {
    shape_ = a.shape();
    indices_ = indices;
    Tensor values = Tensor::empty(indices.shape(), a.dtype());
    kernels::gather_elements(a.bytes().data(), positions(indices), values.mutable_bytes().data(),
                             size_of(a.dtype()));
    return values;
  }

  TensorList backward(const TensorList& grads, InputMask /*needs*/) override {
    const Tensor grad = contiguous(grads[0]), indices = indices_.unpack();
    Tensor grad_a = Tensor::zeros(shape_, grad.dtype());
    dispatch_floating(grad.dtype(), [&]<class T>() {
      kernels::scatter_add_elements<T>(grad.data<T>().data(), positions(indices),
                                       grad_a.mutable_data<T>().data());
    });
    return {grad_a, Tensor()};
  }

 private:
  kernels::ElementIndex positions(const Tensor& indices) const {
    Shape kept = shape_;
    kept[dim_] = k_;
    return {.shape = kept,
            .table_strides = row_major_strides(shape_),
            .dim = dim_,
            .indices = indices.data<std::int64_t>().data()};
  }

  std::string_view name_;
  std::int64_t dim_;
  std::int64_t k_;
  Shape shape_;
  SavedTensor indices_{*this};
};

// Calls find.operator()<T>(contiguous a, extents, int64 [...] to write) and returns what it wrote.
template <class Find>
Tensor find_positions(std::string_view op, const Tensor& a, std::int64_t dim, const Shape& shape,
                      const Find& find) {
  check<DtypeError>(is_floating(a.dtype()) || a.dtype() == Dtype::kInt64, op,
                    ": needs float32, float64 or int64, got ", a.dtype(), cast_hint(a.dtype()));
  const Tensor x = contiguous(a.detach());
  Tensor indices = Tensor::empty(shape, Dtype::kInt64);
  const auto run = [&]<class T>() {
    find(x.data<T>().data(), extents_at(a.shape(), dim),
         indices.mutable_data<std::int64_t>().data());
  };
  if (a.dtype() == Dtype::kInt64) {
    run.template operator()<std::int64_t>();
  } else {
    dispatch_floating(a.dtype(), run);
  }
  return indices;
}

Tensor extremes(std::string_view op, const Tensor& a, std::int64_t dim, bool keepdim,
                bool largest) {
  check<ShapeError>(a.dim(dim) > 0, op, ": dimension ", dim, " of ", a.shape(),
                    " must not be empty");
  return find_positions(op, a, dim, reduced_shape(a.shape(), dim, keepdim),
                        [&]<class T>(const T* x, const Extents& extents, std::int64_t* indices) {
                          kernels::arg_extreme(x, largest, indices, extents.outer, extents.n,
                                               extents.inner);
                        });
}

ValuesAndIndices extreme(std::string_view op, const Tensor& a, std::int64_t dim, bool keepdim,
                         bool largest) {
  check_operands(op, a);
  dim = wrap_dim(op, dim, a.ndim());
  const Tensor indices = extremes(op, a, dim, keepdim, largest);
  return {apply<Pick>(made_with(op, dim, 1), contiguous(a), indices), indices};
}

Tensor arg_extreme(std::string_view op, const Tensor& a, std::int64_t dim, bool keepdim,
                   bool largest) {
  check_operands(op, a);
  dim = wrap_dim(op, dim, a.ndim());
  return extremes(op, a, dim, keepdim, largest);
}

// All elements in one dimension.
Tensor in_a_row(std::string_view op, const Tensor& a) {
  check_operands(op, a);
  check<ShapeError>(a.numel() > 0, op, ": needs at least one element, got ", a.shape());
  return reshape(a, {-1});
}

ValuesAndIndices first_in_order(std::string_view op, const Tensor& a, std::int64_t dim,
                                std::int64_t k, bool descending) {
  Shape shape = a.shape();
  shape[dim] = k;
  Tensor workspace = Tensor::empty(a.shape(), Dtype::kInt64);
  const Tensor indices = find_positions(
      op, a, dim, shape, [&]<class T>(const T* x, const Extents& extents, std::int64_t* found) {
        kernels::arg_sort(x, k, descending, found, workspace.mutable_data<std::int64_t>().data(),
                          extents.outer, extents.n, extents.inner);
      });
  return {apply<Pick>(made_with(op, dim, k), contiguous(a), indices), indices};
}

}  // namespace

ValuesAndIndices max(const Tensor& a, std::int64_t dim, bool keepdim) {
  return extreme("max", a, dim, keepdim, /*largest=*/true);
}

ValuesAndIndices min(const Tensor& a, std::int64_t dim, bool keepdim) {
  return extreme("min", a, dim, keepdim, /*largest=*/false);
}

Tensor argmax(const Tensor& a, std::int64_t dim, bool keepdim) {
  return arg_extreme("argmax", a, dim, keepdim, /*largest=*/true);
}

Tensor argmin(const Tensor& a, std::int64_t dim, bool keepdim) {
  return arg_extreme("argmin", a, dim, keepdim, /*largest=*/false);
}

Tensor max(const Tensor& a) { return max(in_a_row("max", a), 0).values; }
Tensor min(const Tensor& a) { return min(in_a_row("min", a), 0).values; }
Tensor argmax(const Tensor& a) { return argmax(in_a_row("argmax", a), 0); }
Tensor argmin(const Tensor& a) { return argmin(in_a_row("argmin", a), 0); }

ValuesAndIndices topk(const Tensor& a, std::int64_t k, std::int64_t dim, bool largest) {
  check_operands("topk", a);
  dim = wrap_dim("topk", dim, a.ndim());
  check<ValueError>(0 <= k && k <= a.dim(dim), "topk: k must be in [0, ", a.dim(dim),
                    "] for dimension ", dim, " of ", a.shape(), ", got ", k);
  return first_in_order("topk", a, dim, k, largest);
}

ValuesAndIndices sort(const Tensor& a, std::int64_t dim, bool descending) {
  check_operands("sort", a);
  dim = wrap_dim("sort", dim, a.ndim());
  return first_in_order("sort", a, dim, a.dim(dim), descending);
}

}  // namespace moegrad::ops
