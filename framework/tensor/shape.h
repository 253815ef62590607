// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <ostream>
#include <span>

#include "framework/runtime/error.h"

namespace moegrad {

/// Sizes (or strides) of up to eight dimensions, printed as `[2, 3]`.
class Shape {
 public:
  static constexpr std::int64_t kMaxDims = 8;

  Shape() = default;
  Shape(std::initializer_list<std::int64_t> dims)
      : Shape(std::span<const std::int64_t>(dims.begin(), dims.size())) {}
  explicit Shape(std::span<const std::int64_t> dims) {
    for (const auto dim : dims) push_back(dim);
  }

  std::int64_t ndim() const { return ndim_; }
  /// Negative positions count from the end, as in PyTorch.
  std::int64_t operator[](std::int64_t i) const { return dims_[index(i)]; }
  std::int64_t& operator[](std::int64_t i) { return dims_[index(i)]; }
  void push_back(std::int64_t dim) {
    check<ShapeError>(ndim_ < kMaxDims, "shape: at most ", kMaxDims, " dimensions");
    dims_[static_cast<std::size_t>(ndim_++)] = dim;
  }
  /// ShapeError if it is more than 2^63 - 1.
  std::int64_t numel() const {
    std::int64_t product = 1;
    bool fits = true;
    for (const auto dim : *this) fits = !__builtin_mul_overflow(product, dim, &product) && fits;
    check<ShapeError>(fits, "shape: ", *this, " must have at most 2^63 - 1 elements");
    return product;
  }
  const std::int64_t* begin() const { return dims_.data(); }
  const std::int64_t* end() const { return dims_.data() + ndim_; }

  friend bool operator==(const Shape& a, const Shape& b) {
    bool equal = a.ndim_ == b.ndim_;
    for (std::int64_t i = 0; equal && i < a.ndim_; ++i) equal = a[i] == b[i];
    return equal;
  }
  friend std::ostream& operator<<(std::ostream& out, const Shape& shape) {
    out << '[';
    for (std::int64_t i = 0; i < shape.ndim(); ++i) out << (i ? ", " : "") << shape[i];
    return out << ']';
  }

 private:
  std::size_t index(std::int64_t i) const {
    check<ShapeError>(-ndim_ <= i && i < ndim_, "shape: dimension must be in [", -ndim_, ", ",
                      ndim_ - 1, "], got ", i);
    return static_cast<std::size_t>(i < 0 ? i + ndim_ : i);
  }

  std::array<std::int64_t, kMaxDims> dims_{};
  std::int64_t ndim_ = 0;
};

/// Strides of a row-major tensor of this shape, in elements.
inline Shape row_major_strides(const Shape& shape) {
  Shape strides = shape;
  std::int64_t step = 1;
  for (std::int64_t i = shape.ndim() - 1; i >= 0; --i) {
    strides[i] = step;
    if (__builtin_mul_overflow(step, shape[i], &step)) step = 0;  // beside a size of 0 alone
  }
  return strides;
}

}  // namespace moegrad
