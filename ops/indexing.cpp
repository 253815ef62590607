// SPDX-License-Identifier: Apache-2.0
#include "ops/indexing.h"

#include <algorithm>
#include <limits>
#include <span>
#include <string_view>

#include "framework/autograd/function.h"
#include "framework/tensor/fill.h"
#include "ops/checks.h"
#include "ops/copies.h"
#include "ops/dims.h"
#include "ops/kernels/indexing.h"

namespace moegrad::ops {
namespace {

Tensor select_slices(const Tensor& a, std::int64_t dim, const Tensor& index) {
  Shape shape = a.shape();
  shape[dim] = index.numel();
  Tensor slices = Tensor::empty(shape, a.dtype());
  const auto [outer, size, inner] = extents_at(a.shape(), dim);
  kernels::gather_slices(a.bytes().data(), index.data<std::int64_t>().data(),
                         slices.mutable_bytes().data(), outer, size, index.numel(),
                         inner * size_of(a.dtype()));
  return slices;
}

void add_slices(const Tensor& slices, std::int64_t dim, const Tensor& index, Tensor& table) {
  const auto extents = extents_at(table.shape(), dim);
  dispatch_floating(table.dtype(), [&]<class T>() {
    kernels::scatter_add_slices<T>(slices.data<T>().data(), index.data<std::int64_t>().data(),
                                   table.mutable_data<T>().data(), extents.outer, extents.n,
                                   index.numel(), extents.inner);
  });
}

kernels::ElementIndex element_index(const Shape& table, std::int64_t dim, const Tensor& index) {
  return {.shape = index.shape(),
          .table_strides = row_major_strides(table),
          .dim = dim,
          .indices = index.data<std::int64_t>().data()};
}

Tensor gather_elements(const Tensor& a, std::int64_t dim, const Tensor& index) {
  Tensor elements = Tensor::empty(index.shape(), a.dtype());
  kernels::gather_elements(a.bytes().data(), element_index(a.shape(), dim, index),
                           elements.mutable_bytes().data(), size_of(a.dtype()));
  return elements;
}

void add_elements(const Tensor& elements, std::int64_t dim, const Tensor& index, Tensor& table) {
  dispatch_floating(table.dtype(), [&]<class T>() {
    kernels::scatter_add_elements<T>(elements.data<T>().data(),
                                     element_index(table.shape(), dim, index),
                                     table.mutable_data<T>().data());
  });
}

// dL/da[r] = sum over the i with index[i] = r of dL/dy[i], in ascending i, for slices.
class IndexSelect final : public Function {
 public:
  IndexSelect(std::string_view name, std::int64_t dim) : name_(name), dim_(dim) {}
  std::string_view name() const override { return name_; }
  bool takes_wide_gradients() const override { return true; }

  Tensor forward(const Tensor& a, const Tensor& index) {
    shape_ = a.shape();
    index_ = index;
    return select_slices(a, dim_, index);
  }

  TensorList backward(const TensorList& grads, InputMask /*needs*/) override {
    const Tensor grad = widened(contiguous(grads[0]));
    Tensor grad_a = Tensor::zeros(shape_, grad.dtype());
    add_slices(grad, dim_, index_.unpack(), grad_a);
    return {grad_a, Tensor()};
  }

 private:
  std::string_view name_;
  std::int64_t dim_;
  Shape shape_;
  SavedTensor index_{*this};
};

// dL/da = dL/dy,  dL/dsource[i] = dL/dy[index[i]], for slices.
class IndexAdd final : public Function {
 public:
  explicit IndexAdd(std::int64_t dim) : dim_(dim) {}
  std::string_view name() const override { return "index_add"; }

  Tensor forward(const Tensor& a, const Tensor& index, const Tensor& source) {
    index_ = index;
    Tensor sum = moegrad::clone(a);
    add_slices(source, dim_, index, sum);
    return sum;
  }

  TensorList backward(const TensorList& grads, InputMask needs) override {
    const Tensor grad = contiguous(grads[0]);
    return {grad, Tensor(), needs[2] ? select_slices(grad, dim_, index_.unpack()) : Tensor()};
  }

 private:
  std::int64_t dim_;
  SavedTensor index_{*this};
};

// dL/da[r] = sum over the i that read r of dL/dy[i], in ascending i, for elements.
class Gather final : public Function {
 public:
  explicit Gather(std::int64_t dim) : dim_(dim) {}
  std::string_view name() const override { return "gather"; }
  bool takes_wide_gradients() const override { return true; }

  Tensor forward(const Tensor& a, const Tensor& index) {
    shape_ = a.shape();
    index_ = index;
    return gather_elements(a, dim_, index);
  }

  TensorList backward(const TensorList& grads, InputMask /*needs*/) override {
    const Tensor grad = widened(contiguous(grads[0]));
    Tensor grad_a = Tensor::zeros(shape_, grad.dtype());
    add_elements(grad, dim_, index_.unpack(), grad_a);
    return {grad_a, Tensor()};
  }

 private:
  std::int64_t dim_;
  Shape shape_;
  SavedTensor index_{*this};
};

// dL/da = dL/dy,  dL/dsource[i] = dL/dy where source[i] was added.
class ScatterAdd final : public Function {
 public:
  explicit ScatterAdd(std::int64_t dim) : dim_(dim) {}
  std::string_view name() const override { return "scatter_add"; }

  Tensor forward(const Tensor& a, const Tensor& index, const Tensor& source) {
    index_ = index;
    Tensor sum = moegrad::clone(a);
    add_elements(source, dim_, index, sum);
    return sum;
  }

  TensorList backward(const TensorList& grads, InputMask needs) override {
    const Tensor grad = contiguous(grads[0]);
    return {grad, Tensor(), needs[2] ? gather_elements(grad, dim_, index_.unpack()) : Tensor()};
  }

 private:
  std::int64_t dim_;
  SavedTensor index_{*this};
};

// dL/da = dL/dy flipped.
class Flip final : public Function {
 public:
  explicit Flip(unsigned flipped) : flipped_(flipped) {}
  std::string_view name() const override { return "flip"; }
  bool takes_wide_gradients() const override { return true; }

  Tensor forward(const Tensor& a) const { return flipped(a); }

  TensorList backward(const TensorList& grads, InputMask /*needs*/) override {
    return {flipped(contiguous(grads[0]))};
  }

 private:
  Tensor flipped(const Tensor& x) const {
    Tensor y = empty_like(x);
    kernels::flip(x.bytes().data(), y.mutable_bytes().data(), x.shape(), flipped_,
                  size_of(x.dtype()));
    return y;
  }

  unsigned flipped_;
};

void check_index_dtype(std::string_view op, const Tensor& index) {
  check<DtypeError>(index.dtype() == Dtype::kInt64, op, ": index must be int64, got ",
                    index.dtype());
}

// A contiguous index of slices along `dim`.
Tensor checked_slice_index(std::string_view op, const Tensor& a, std::int64_t dim,
                           const Tensor& index) {
  check<ShapeError>(index.ndim() == 1, op, ": index must be [n], got ", index.shape());
  check_index_dtype(op, index);
  const Tensor values = contiguous(index);
  check_indices(op, "index", values, a.dim(dim));
  return values;
}

// A contiguous index of elements.
Tensor checked_element_index(std::string_view op, const Tensor& a, std::int64_t dim,
                             const Tensor& index) {
  check<ShapeError>(index.ndim() == a.ndim(), op, ": index must have the ", a.ndim(),
                    " dimensions of ", a.shape(), ", got ", index.shape());
  for (std::int64_t d = 0; d < a.ndim(); ++d) {
    check<ShapeError>(d == dim || index.dim(d) <= a.dim(d), op, ": index must fit into ", a.shape(),
                      " but for dimension ", dim, ", got ", index.shape());
  }
  check_index_dtype(op, index);
  const Tensor values = contiguous(index);
  check_indices(op, "index", values, a.dim(dim));
  return values;
}

// Slice i of dimension `dim`, counts[i] >= 0 times for each i.
Tensor select_repeated(const Tensor& a, std::int64_t dim, std::span<const std::int64_t> counts) {
  constexpr std::int64_t kMost = std::int64_t{1} << 53;
  std::int64_t total = 0;
  for (const auto count : counts) {
    const bool fits = count <= kMost - total;
    check<ShapeError>(fits,
                      "repeat_interleave: the result must have at most 2^53 slices, got more");
    total += count;
  }
  Tensor index = Tensor::empty({total}, Dtype::kInt64);
  auto* next = index.mutable_data<std::int64_t>().data();
  for (std::size_t i = 0; i < counts.size(); ++i) {
    next = std::fill_n(next, counts[i], static_cast<std::int64_t>(i));
  }
  return apply<IndexSelect>(made_with("repeat_interleave", dim), contiguous(a), index);
}

}  // namespace

Tensor index_select(const Tensor& a, std::int64_t dim, const Tensor& index) {
  check_operands("index_select", a, index);
  dim = wrap_dim("index_select", dim, a.ndim());
  const Tensor slices = checked_slice_index("index_select", a, dim, index);
  return apply<IndexSelect>(made_with("index_select", dim), contiguous(a), slices);
}

Tensor index_add(const Tensor& a, std::int64_t dim, const Tensor& index, const Tensor& source) {
  check_operands("index_add", a, index, source);
  dim = wrap_dim("index_add", dim, a.ndim());
  check<ShapeError>(index.ndim() == 1, "index_add: index must be [n], got ", index.shape());
  Shape shape = a.shape();
  shape[dim] = index.numel();
  check<ShapeError>(source.shape() == shape, "index_add: source must be ", shape, " to match ",
                    a.shape(), " and ", index.numel(), " indices, got ", source.shape());
  check_floating("index_add", "a", a);
  check_same_dtype("index_add", "a", a, "source", source);
  const Tensor slices = checked_slice_index("index_add", a, dim, index);
  return apply<IndexAdd>(made_with(dim), contiguous(a), slices, contiguous(source));
}

Tensor gather(const Tensor& a, std::int64_t dim, const Tensor& index) {
  check_operands("gather", a, index);
  dim = wrap_dim("gather", dim, a.ndim());
  const Tensor elements = checked_element_index("gather", a, dim, index);
  return apply<Gather>(made_with(dim), contiguous(a), elements);
}

Tensor scatter_add(const Tensor& a, std::int64_t dim, const Tensor& index, const Tensor& source) {
  check_operands("scatter_add", a, index, source);
  dim = wrap_dim("scatter_add", dim, a.ndim());
  check<ShapeError>(source.shape() == index.shape(), "scatter_add: source must be ", index.shape(),
                    " as index, got ", source.shape());
  check_floating("scatter_add", "a", a);
  check_same_dtype("scatter_add", "a", a, "source", source);
  const Tensor elements = checked_element_index("scatter_add", a, dim, index);
  return apply<ScatterAdd>(made_with(dim), contiguous(a), elements, contiguous(source));
}

Tensor repeat_interleave(const Tensor& a, std::int64_t n, std::int64_t dim) {
  check_operands("repeat_interleave", a);
  dim = wrap_dim("repeat_interleave", dim, a.ndim());
  check<ValueError>(n >= 0, "repeat_interleave: n must not be negative, got ", n);
  return select_repeated(a, dim, std::vector(static_cast<std::size_t>(a.dim(dim)), n));
}

Tensor repeat_interleave(const Tensor& a, const Tensor& counts, std::int64_t dim) {
  check_operands("repeat_interleave", a, counts);
  dim = wrap_dim("repeat_interleave", dim, a.ndim());
  check<ShapeError>(counts.shape() == Shape{a.dim(dim)}, "repeat_interleave: counts must be [",
                    a.dim(dim), "] to match dimension ", dim, " of ", a.shape(), ", got ",
                    counts.shape());
  check<DtypeError>(counts.dtype() == Dtype::kInt64,
                    "repeat_interleave: counts must be int64, got ", counts.dtype());
  const Tensor rows = contiguous(counts);
  for (const auto count : rows.data<std::int64_t>()) {
    check<ValueError>(count >= 0, "repeat_interleave: counts must not be negative, got ", count);
  }
  return select_repeated(a, dim, rows.data<std::int64_t>());
}

Tensor one_hot(const Tensor& indices, std::int64_t num_classes) {
  check_operands("one_hot", indices);
  check_index_dtype("one_hot", indices);
  const Tensor values = contiguous(indices);
  const auto classes = values.data<std::int64_t>();
  check<ValueError>(num_classes >= 1 || num_classes == -1,
                    "one_hot: num_classes must be at least 1, or -1, got ", num_classes);
  if (num_classes == -1) {
    check<ValueError>(!classes.empty(), "one_hot: needs num_classes where there is no index");
    constexpr auto kMost = std::numeric_limits<std::int64_t>::max() - 1;
    num_classes = std::clamp<std::int64_t>(std::ranges::max(classes), 0, kMost) + 1;
  }
  check_indices("one_hot", "index", values, num_classes);
  Shape shape = indices.shape();
  shape.push_back(num_classes);
  Tensor y = Tensor::zeros(shape, Dtype::kInt64);
  auto* row = y.mutable_data<std::int64_t>().data();
  for (const auto each : classes) {
    row[each] = 1;
    row += num_classes;
  }
  return y;
}

Tensor flip(const Tensor& a, const std::vector<std::int64_t>& dims) {
  check_operands("flip", a);
  unsigned flipped = 0;
  for (const auto each : dims) {
    const auto dim = wrap_dim("flip", each, a.ndim());
    check<ShapeError>((flipped >> dim & 1U) == 0, "flip: dimension ", dim, " is named twice");
    flipped |= 1U << dim;
  }
  return apply<Flip>(made_with(flipped), contiguous(a));
}

}  // namespace moegrad::ops
