// SPDX-License-Identifier: Apache-2.0
#include "framework/tensor/fill.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "framework/tensor/dispatch_any.h"

namespace moegrad {
namespace {

// Copies a matrix [rows, columns] whose elements may be contiguous along columns. It works in
// squares, so that the cache lines that one row reads are still in cache for the next row.
template <class To, class From>
void copy_matrix(To* target, const From* source, const Shape& shape, const Shape& strides) {
  constexpr std::int64_t kSquare = 32;
  const auto rows = shape[-2], columns = shape[-1];
  const auto row_stride = strides[-2], column_stride = strides[-1];
  for (std::int64_t i0 = 0; i0 < rows; i0 += kSquare) {
    for (std::int64_t j0 = 0; j0 < columns; j0 += kSquare) {
      const auto i1 = std::min(rows, i0 + kSquare), j1 = std::min(columns, j0 + kSquare);
      for (auto i = i0; i < i1; ++i) {
        for (auto j = j0; j < j1; ++j) {
          target[i * columns + j] = convert<To>(source[i * row_stride + j * column_stride]);
        }
      }
    }
  }
}

// Walks a strided tensor in row-major order, one innermost matrix at a time.
template <class To, class From>
void copy_strided(To* target, const From* source, const Shape& shape, const Shape& strides,
                  std::int64_t axis) {
  if (axis == shape.ndim()) {
    *target = convert<To>(*source);
    return;
  }
  if (axis == shape.ndim() - 2) return copy_matrix(target, source, shape, strides);
  const auto n = shape[axis];
  const auto stride = strides[axis];
  if (axis == shape.ndim() - 1) {
    for (std::int64_t i = 0; i < n; ++i) target[i] = convert<To>(source[i * stride]);
    return;
  }
  std::int64_t inner = 1;
  for (std::int64_t i = axis + 1; i < shape.ndim(); ++i) inner *= shape[i];
  for (std::int64_t i = 0; i < n; ++i) {
    copy_strided(target + i * inner, source + i * stride, shape, strides, axis + 1);
  }
}

}  // namespace

void check_element(std::string_view op, double value, Dtype dtype) {
  if (dtype == Dtype::kInt64) {
    const bool whole = value == std::floor(value) && -0x1p63 <= value && value < 0x1p63;
    check<ValueError>(whole, op, ": int64 needs whole numbers in its range, got ", value);
  } else if (dtype == Dtype::kBool) {
    check<ValueError>(value == 0 || value == 1, op, ": bool needs true and false, got ", value);
  }
}

void fill_(Tensor& tensor, double value) {
  dispatch_any(tensor.dtype(),
               [&]<class T>() { std::ranges::fill(tensor.mutable_data<T>(), convert<T>(value)); });
}

void add_(Tensor& target, const Tensor& source) {
  check<ShapeError>(target.shape() == source.shape(), "add_: shapes must agree, got ",
                    target.shape(), " and ", source.shape());
  check<DtypeError>(target.dtype() == source.dtype(), "add_: dtypes must agree, got ",
                    target.dtype(), " and ", source.dtype());
  dispatch_floating(target.dtype(), [&]<class T>() {
    auto out = target.mutable_data<T>();
    const auto in = source.data<T>();
    for (std::size_t i = 0; i < out.size(); ++i) out[i] += in[i];
  });
}

void copy_(Tensor& target, const Tensor& source) {
  check<ShapeError>(target.shape() == source.shape(), "copy_: shapes must agree, got ",
                    target.shape(), " and ", source.shape());
  if (source.numel() == 0) {
    target.storage().bump_version();  // a write like any other: ranks without elements count alike
    return;
  }
  dispatch_any(target.dtype(), [&]<class To>() {
    auto out = target.mutable_data<To>();
    dispatch_any(source.dtype(), [&]<class From>() {
      const auto* in = source.strided_data<From>();
      if constexpr (std::is_same_v<To, From>) {
        if (source.is_contiguous()) {
          std::memcpy(out.data(), in, out.size_bytes());
          return;
        }
      }
      copy_strided(out.data(), in, source.shape(), source.strides(), 0);
    });
  });
}

Tensor clone(const Tensor& source) {
  if (source.layout() == Layout::kNZ) {
    Tensor copy = Tensor::empty_nz(source.shape(), source.nz_blocks(), source.dtype());
    std::ranges::copy(source.bytes(), copy.mutable_bytes().begin());
    return copy;
  }
  return to_dtype(source, source.dtype());
}

Tensor empty_like(const Tensor& like) { return Tensor::empty(like.shape(), like.dtype()); }
Tensor zeros_like(const Tensor& like) { return Tensor::zeros(like.shape(), like.dtype()); }

Tensor to_dtype(const Tensor& source, Dtype dtype) {
  Tensor copy = Tensor::empty(source.shape(), dtype);
  copy_(copy, source);
  return copy;
}

}  // namespace moegrad
