// SPDX-License-Identifier: Apache-2.0
#include "ops/copies.h"

#include <memory>
#include <string_view>

#include "framework/autograd/function.h"
#include "framework/runtime/rank_context.h"
#include "framework/tensor/fill.h"
#include "ops/checks.h"
#include "ops/dims.h"
#include "ops/kernels/gather_rows.h"

namespace moegrad::ops {
namespace {

// The values do not change: dL/da = dL/dy.
class Contiguous final : public Function {
 public:
  std::string_view name() const override { return "contiguous"; }

  Tensor forward(const Tensor& a) {
    auto& counters = RankContext::current().counters();
    ++counters.materialized_transposes;
    counters.converted_bytes += a.numel() * size_of(a.dtype());
    return clone(a);
  }

  TensorList backward(const TensorList& grads, InputMask /*needs*/) override { return {grads[0]}; }
};

// dL/da[r] = sum over the i with indices[i] = r of dL/dy[i], in ascending i.
class IndexSelect final : public Function {
 public:
  std::string_view name() const override { return "index_select"; }

  Tensor forward(const Tensor& a, const Tensor& indices) {
    shape_ = a.shape();
    indices_ = indices;
    Shape shape = a.shape();
    shape[0] = indices.numel();
    Tensor output = Tensor::empty(shape, a.dtype());
    kernels::gather_rows(a.bytes().data(), indices.data<std::int64_t>().data(),
                         output.mutable_bytes().data(), indices.numel(),
                         extents_at(shape, 0).inner * size_of(a.dtype()));
    return output;
  }

  TensorList backward(const TensorList& grads, InputMask /*needs*/) override {
    const Tensor grad = contiguous(grads[0]), indices = indices_.unpack();
    Tensor grad_a = Tensor::zeros(shape_, grad.dtype());
    dispatch_floating(grad.dtype(), [&]<class T>() {
      kernels::scatter_add_rows<T>(grad.data<T>().data(), indices.data<std::int64_t>().data(),
                                   grad_a.mutable_data<T>().data(), indices.numel(),
                                   extents_at(shape_, 0).inner);
    });
    return {grad_a, Tensor()};
  }

 private:
  Shape shape_;
  SavedTensor indices_{*this};
};

// dL/da = dL/dy in the dtype of a.
class Cast final : public Function {
 public:
  std::string_view name() const override { return "cast"; }

  Tensor forward(const Tensor& a, Dtype dtype) {
    dtype_ = a.dtype();
    return to_dtype(a, dtype);
  }

  TensorList backward(const TensorList& grads, InputMask /*needs*/) override {
    return {to_dtype(grads[0], dtype_)};
  }

 private:
  Dtype dtype_ = Dtype::kFloat32;
};

}  // namespace

Tensor contiguous(const Tensor& a) {
  check_operands("contiguous", a);
  if (a.layout() == Layout::kNZ || a.is_contiguous()) return a;
  return apply<Contiguous>(a);
}

Tensor index_select(const Tensor& a, const Tensor& indices) {
  check_operands("index_select", a, indices);
  check<ShapeError>(a.ndim() >= 1, "index_select: needs at least one dimension, got ", a.shape());
  check<ShapeError>(indices.ndim() == 1, "index_select: indices must be [n], got ",
                    indices.shape());
  check<DtypeError>(indices.dtype() == Dtype::kInt64, "index_select: indices must be int64, got ",
                    indices.dtype());
  const Tensor rows = contiguous(indices);
  check_indices("index_select", "index", rows, a.dim(0));
  return apply<IndexSelect>(contiguous(a), rows);
}

Tensor cast(const Tensor& a, Dtype dtype) {
  check_operands("cast", a);
  check<DtypeError>(is_floating(a.dtype()) && is_floating(dtype),
                    "cast: from and to float32 or float64, got ", a.dtype(), " to ", dtype);
  if (a.dtype() == dtype) return a;
  return apply<Cast>(a, dtype);
}

}  // namespace moegrad::ops
