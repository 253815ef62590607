// SPDX-License-Identifier: Apache-2.0
#include "framework/tensor/fill.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string_view>
#include <type_traits>
#include <vector>

#include "framework/autograd/grad_mode.h"
#include "framework/tensor/dispatch_any.h"

namespace moegrad {
namespace {

// Where the elements of one shape lie in two tensors.
struct StridedPair {
  const Shape& shape;
  const Shape& to;
  const Shape& from;
};

// Copies the matrices of the last two dimensions, in squares, so that the cache lines that one row
// reads are still in cache for the next row. A constant stride along rows lets loops be vectorised.
template <std::int64_t kToStride, class To, class From>
void copy_matrix(To* target, const From* source, const StridedPair& pair) {
  constexpr std::int64_t kSquare = 32;
  const auto rows = pair.shape[-2], columns = pair.shape[-1];
  const auto to_row = pair.to[-2], to_column = kToStride != 0 ? kToStride : pair.to[-1];
  const auto from_row = pair.from[-2], from_column = pair.from[-1];
  for (std::int64_t i0 = 0; i0 < rows; i0 += kSquare) {
    for (std::int64_t j0 = 0; j0 < columns; j0 += kSquare) {
      const auto i1 = std::min(rows, i0 + kSquare), j1 = std::min(columns, j0 + kSquare);
      for (auto i = i0; i < i1; ++i) {
        for (auto j = j0; j < j1; ++j) {
          target[i * to_row + j * to_column] = convert<To>(source[i * from_row + j * from_column]);
        }
      }
    }
  }
}

// Walks both tensors in row-major order, one innermost matrix at a time.
template <class To, class From>
void copy_strided(To* target, const From* source, const StridedPair& pair, std::int64_t axis) {
  const auto& [shape, to, from] = pair;
  if (axis == shape.ndim()) {
    *target = convert<To>(*source);
    return;
  }
  if (axis == shape.ndim() - 2) {
    return to[-1] == 1 ? copy_matrix<1>(target, source, pair)
                       : copy_matrix<0>(target, source, pair);
  }
  for (std::int64_t i = 0; i < shape[axis]; ++i) {
    copy_strided(target + i * to[axis], source + i * from[axis], pair, axis + 1);
  }
}

// Whether no two elements of a tensor lie in one place. Dimensions are taken from the smallest
// stride to the largest; each must step over all elements of those before.
bool has_distinct_elements(const Tensor& tensor) {
  if (tensor.numel() == 0) return true;
  const auto& strides = tensor.strides();
  std::vector<std::int64_t> dims;
  for (std::int64_t i = 0; i < tensor.ndim(); ++i) {
    if (tensor.dim(i) > 1) dims.push_back(i);
  }
  std::ranges::sort(dims, {}, [&](std::int64_t dim) { return strides[dim]; });
  std::int64_t last = 0;
  for (const auto dim : dims) {
    if (strides[dim] <= last) return false;
    last += (tensor.dim(dim) - 1) * strides[dim];
  }
  return true;
}

// Not recorded on the tape, whatever the operands are.
void copy_elements(Tensor& target, const Tensor& source) {
  if (source.numel() == 0) {
    target.storage().bump_version();  // a write like any other: ranks without elements count alike
    return;
  }
  dispatch_any(target.dtype(), [&]<class To>() {
    auto* const out = target.mutable_strided_data<To>();
    dispatch_any(source.dtype(), [&]<class From>() {
      const auto* in = source.strided_data<From>();
      if constexpr (std::is_same_v<To, From>) {
        if (target.is_contiguous() && source.is_contiguous()) {
          std::memcpy(out, in, static_cast<std::size_t>(target.numel()) * sizeof(To));
          return;
        }
      }
      copy_strided(out, in, {source.shape(), target.strides(), source.strides()}, 0);
    });
  });
}

void check_off_tape(const Tensor& tensor, std::string_view name) {
  check(!grad_enabled() || tensor.is_leaf(), "copy_: is not recorded on the tape, but ", name,
        " is a result on the tape; copy under a NoGradGuard");
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
  if (!tensor.is_contiguous()) {
    Shape repeated;
    for (std::int64_t i = 0; i < tensor.ndim(); ++i) repeated.push_back(0);
    const Tensor element = Tensor::full({}, value, tensor.dtype());
    return copy_elements(tensor, Tensor::as_strided(element, tensor.shape(), repeated, 0));
  }
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
  check_off_tape(source, "the source");
  check_off_tape(target, "the target");
  check<LayoutError>(has_distinct_elements(target),
                     "copy_: elements of the target must not lie in one place, got shape ",
                     target.shape(), " with strides ", target.strides());
  // Parts of one tensor may overlap.
  const bool apart = &target.storage() != &source.storage();
  copy_elements(target, apart ? source : clone(source));
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
  copy_elements(copy, source);
  return copy;
}

}  // namespace moegrad
