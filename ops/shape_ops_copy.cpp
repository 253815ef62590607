// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>
#include <string_view>
#include <utility>

#include "framework/autograd/function.h"
#include "framework/runtime/rank_context.h"
#include "framework/tensor/fill.h"
#include "ops/checks.h"
#include "ops/dims.h"
#include "ops/kernels/copy_block.h"
#include "ops/kernels/gather_rows.h"
#include "ops/raw_bytes.h"
#include "ops/shape_ops.h"

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

// dL/da_i = the range of dL/dy that a_i fills.
class Cat final : public Function {
 public:
  explicit Cat(std::int64_t dim) : dim_(dim) {}

  std::string_view name() const override { return "cat"; }

  Tensor forward(const TensorList& tensors) {
    Shape shape = tensors[0].shape();
    shape[dim_] = 0;
    for (const auto& tensor : tensors) {
      shapes_.push_back(tensor.shape());
      shape[dim_] += tensor.dim(dim_);
    }
    Tensor output = Tensor::empty(shape, tensors[0].dtype());
    const auto [outer, n, inner] = extents_at(shape, dim_);
    const auto size = inner * size_of(output.dtype());
    auto* target = output.storage().data();
    for (const auto& tensor : tensors) {
      const auto piece = tensor.dim(dim_) * size;
      kernels::copy_block(raw_bytes(tensor), piece, target, n * size, outer, piece);
      target += piece;
    }
    return output;
  }

  TensorList backward(const TensorList& grads, InputMask needs) override {
    const Tensor grad = contiguous(grads[0]);
    const auto [outer, n, inner] = extents_at(grad.shape(), dim_);
    const auto size = inner * size_of(grad.dtype());
    const auto* source = raw_bytes(grad);
    TensorList grad_inputs(shapes_.size());
    for (std::size_t i = 0; i < shapes_.size(); ++i) {
      const auto piece = shapes_[i][dim_] * size;
      if (needs[i]) {
        grad_inputs[i] = Tensor::empty(shapes_[i], grad.dtype());
        kernels::copy_block(source, n * size, grad_inputs[i].storage().data(), piece, outer, piece);
      }
      source += piece;
    }
    return grad_inputs;
  }

 private:
  std::int64_t dim_;
  std::vector<Shape> shapes_;
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
    kernels::gather_rows(raw_bytes(a), indices.data<std::int64_t>().data(), output.storage().data(),
                         indices.numel(), extents_at(shape, 0).inner * size_of(a.dtype()));
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

// More tensors than a Function takes are joined in runs, and the runs are joined again. The result
// is the same.
Tensor cat_in_runs(TensorList inputs, std::int64_t dim) {
  constexpr auto kRun = static_cast<std::ptrdiff_t>(Function::kMaxInputs);
  while (std::ssize(inputs) > kRun) {
    TensorList joined;
    for (auto begin = inputs.begin(); begin != inputs.end();) {
      const auto end = begin + std::min(kRun, inputs.end() - begin);
      joined.push_back(Function::apply(std::make_shared<Cat>(dim), TensorList(begin, end)));
      begin = end;
    }
    inputs = std::move(joined);
  }
  return Function::apply(std::make_shared<Cat>(dim), inputs);
}

}  // namespace

Tensor contiguous(const Tensor& a) {
  check_operands("contiguous", a);
  if (a.layout() == Layout::kNZ || a.is_contiguous()) return a;
  return Function::apply(std::make_shared<Contiguous>(), a);
}

Tensor cat(const TensorList& tensors, std::int64_t dim) {
  check_operands("cat", tensors);
  check<ShapeError>(!tensors.empty(), "cat: needs at least one tensor");
  const auto& first = tensors[0];
  dim = wrap_dim("cat", dim, first.ndim());
  TensorList inputs;
  for (const auto& tensor : tensors) {
    Shape expected = first.shape();
    if (tensor.ndim() == first.ndim()) expected[dim] = tensor.dim(dim);
    check<ShapeError>(tensor.shape() == expected, "cat: shapes must agree but for dimension ", dim,
                      ", got ", first.shape(), " and ", tensor.shape());
    check<DtypeError>(tensor.dtype() == first.dtype(), "cat: dtypes must agree, got ",
                      first.dtype(), " and ", tensor.dtype());
    inputs.push_back(contiguous(tensor));
  }
  return cat_in_runs(std::move(inputs), dim);
}

Tensor stack(const TensorList& tensors, std::int64_t dim) {
  check_operands("stack", tensors);
  check<ShapeError>(!tensors.empty(), "stack: needs at least one tensor");
  TensorList inputs;
  for (const auto& tensor : tensors) {
    check<ShapeError>(tensor.shape() == tensors[0].shape(), "stack: shapes must agree, got ",
                      tensors[0].shape(), " and ", tensor.shape());
    inputs.push_back(unsqueeze(tensor, dim));
  }
  return cat(inputs, dim);
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
  return Function::apply(std::make_shared<IndexSelect>(), contiguous(a), rows);
}

Tensor cast(const Tensor& a, Dtype dtype) {
  check_operands("cast", a);
  check<DtypeError>(is_floating(a.dtype()) && is_floating(dtype),
                    "cast: from and to float32 or float64, got ", a.dtype(), " to ", dtype);
  if (a.dtype() == dtype) return a;
  return Function::apply(std::make_shared<Cast>(), a, dtype);
}

}  // namespace moegrad::ops
