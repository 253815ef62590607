// SPDX-License-Identifier: Apache-2.0
#include "framework/tensor/fill.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "framework/runtime/grad_mode.h"
#include "framework/runtime/parallel_for.h"
#include "framework/tensor/dispatch_any.h"
#include "framework/tensor/meta.h"
#include "framework/tensor/tensor_impl.h"

namespace moegrad {
namespace {

// Where the elements of one shape lie in two tensors.
struct StridedPair {
  const Shape& shape;
  const Shape& to;
  const Shape& from;
};

template <class To, class From>
void copy_row(To* target, std::int64_t to_step, const From* source, std::int64_t from_step,
              std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) target[i * to_step] = convert<To>(source[i * from_step]);
}

// Copies a matrix of the last two dimensions in squares, so that the cache lines that one row reads
// are still in cache for the next row.
template <class To, class From>
void copy_matrix(To* target, const From* source, const StridedPair& pair) {
  constexpr std::int64_t kSquare = 32;
  const auto& [shape, to, from] = pair;
  for (std::int64_t i0 = 0; i0 < shape[-2]; i0 += kSquare) {
    for (std::int64_t j0 = 0; j0 < shape[-1]; j0 += kSquare) {
      const auto i1 = std::min(shape[-2], i0 + kSquare), j1 = std::min(shape[-1], j0 + kSquare);
      for (auto i = i0; i < i1; ++i) {
        copy_row(target + i * to[-2] + j0 * to[-1], to[-1], source + i * from[-2] + j0 * from[-1],
                 from[-1], j1 - j0);
      }
    }
  }
}

// Walks both tensors in row-major order, one innermost matrix at a time.
template <class To, class From>
void copy_strided(To* target, const From* source, const StridedPair& pair, std::int64_t axis) {
  const auto& [shape, to, from] = pair;
  const auto left = shape.ndim() - axis;
  if (left == 0) return copy_row(target, 1, source, 1, 1);
  if (left == 1) return copy_row(target, to[-1], source, from[-1], shape[-1]);
  if (left == 2) return copy_matrix(target, source, pair);
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

constexpr std::int64_t kElementsPerTask = 1 << 16;

// Conversions to reals never fail, so the rank's threads share them.
template <class To, class From>
void copy_contiguous(To* target, const From* source, std::int64_t n) {
  if constexpr (std::is_same_v<To, From>) {
    std::memcpy(target, source, static_cast<std::size_t>(n) * sizeof(To));
  } else if constexpr (holds_reals(dtype_of<To>)) {
    parallel_for(n, kElementsPerTask, [=](std::int64_t begin, std::int64_t end) {
      for (auto i = begin; i < end; ++i) target[i] = convert<To>(source[i]);
    });
  } else {
    copy_row(target, 1, source, 1, n);
  }
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
      if (!target.is_contiguous() || !source.is_contiguous()) {
        return copy_strided(out, in, {source.shape(), target.strides(), source.strides()}, 0);
      }
      copy_contiguous(out, in, target.numel());
    });
  });
}

// The largest finite number of a floating dtype.
double largest(Dtype dtype) {
  if (dtype == Dtype::kFloat32) return std::numeric_limits<float>::max();
  return dtype == Dtype::kBFloat16 ? 0x1.FEp127 : std::numeric_limits<double>::max();
}

// A copy of a shard of a parameter is one, too. The whole tensor that a shard has replaced is
// whole.
Tensor with_spec_of(const Tensor& source, Tensor copy) {
  if (const auto& spec = source.shard_spec(); spec != nullptr && !has_mark(source, kReplaced)) {
    copy.set_shard_spec(spec);
  }
  return copy;
}

// As torch: such a write would change a parameter unnoticed by what has been computed with it.
void check_target(std::string_view op, const Tensor& tensor, std::string_view name) {
  check_off_tape(op, tensor, name);
  check(!grad_enabled() || !tensor.requires_grad(), op, ": is not recorded on the tape, but ", name,
        " is a leaf that requires a gradient; call it under a NoGradGuard");
}

}  // namespace

void check_off_tape(std::string_view op, const Tensor& tensor, std::string_view name,
                    std::string_view instead) {
  check(!grad_enabled() || tensor.is_leaf(), op, ": is not recorded on the tape, but ", name,
        " is a result on the tape; ", instead, instead.empty() ? "" : ", or ",
        "call it under a NoGradGuard");
}

void check_element(std::string_view op, double value, Dtype dtype) {
  if (is_integer(dtype)) {
    const double end = std::ldexp(0.5, static_cast<int>(8 * size_of(dtype)));
    const bool whole = value == std::floor(value) && -end <= value && value < end;
    check<ValueError>(whole, op, ": ", dtype, " needs whole numbers in its range, got ", value);
  } else if (dtype == Dtype::kBool) {
    check<ValueError>(value == 0 || value == 1, op, ": bool needs true and false, got ", value);
  } else {
    check<ValueError>(std::isinf(value) || !(std::abs(value) > largest(dtype)), op, ": ", dtype,
                      " needs numbers in its range, got ", value);
  }
}

void fill_(Tensor& tensor, double value) {
  check_target("fill_", tensor, "the tensor");
  check_element("fill_", value, tensor.dtype());
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
  const bool widens = target.dtype() == Dtype::kFloat32 && source.dtype() == Dtype::kBFloat16;
  check<DtypeError>(widens || target.dtype() == source.dtype(), "add_: dtypes must agree, got ",
                    target.dtype(), " and ", source.dtype());
  check_off_tape("add_", source, "the source");
  check_target("add_", target, "the target");
  const auto add = [&]<class T, class Source>() {
    T* const out = target.mutable_data<T>().data();
    const Source* const in = source.data<Source>().data();
    parallel_for(target.numel(), kElementsPerTask, [=](std::int64_t begin, std::int64_t end) {
      for (auto i = begin; i < end; ++i) out[i] += convert<T>(in[i]);
    });
  };
  if (widens) return add.operator()<float, BFloat16>();
  dispatch_floating(target.dtype(), [&]<class T>() { add.template operator()<T, T>(); });
}

void copy_(Tensor& target, const Tensor& source) {
  check<ShapeError>(target.shape() == source.shape(), "copy_: shapes must agree, got ",
                    target.shape(), " and ", source.shape());
  check_off_tape("copy_", source, "the source");
  check_target("copy_", target, "the target");
  check<LayoutError>(has_distinct_elements(target),
                     "copy_: elements of the target must not lie in one place, got shape ",
                     target.shape(), " with strides ", target.strides());
  // Parts of one tensor may overlap.
  const bool apart = &target.storage() != &source.storage();
  copy_elements(target, apart ? source : clone(source));
}

template <std::same_as<Tensor> T>
T clone(const T& source) {
  check_off_tape("clone", source, "the source", "use ops::clone");
  if (source.layout() == Layout::kNZ) {
    Tensor copy = Tensor::empty_nz(source.shape(), source.nz_blocks(), source.dtype());
    std::ranges::copy(source.bytes(), copy.mutable_bytes().begin());
    copy.storage().set_nz_pairs(source.storage().nz_pairs());
    return with_spec_of(source, std::move(copy));
  }
  return to_dtype(source, source.dtype());
}
template Tensor clone(const Tensor& source);

Tensor empty_like(const Tensor& like) { return Tensor::empty(like.shape(), like.dtype()); }
Tensor zeros_like(const Tensor& like) { return Tensor::zeros(like.shape(), like.dtype()); }
Tensor ones_like(const Tensor& like) { return full_like(like, 1); }
Tensor full_like(const Tensor& like, double value) {
  check_element("full_like", value, like.dtype());
  return Tensor::full(like.shape(), value, like.dtype());
}

Tensor scalar(double value, Dtype dtype) {
  const bool overflows = std::abs(value) > largest(dtype);
  return Tensor::full(
      {}, overflows ? std::copysign(std::numeric_limits<double>::infinity(), value) : value, dtype);
}

Tensor to_dtype(const Tensor& source, Dtype dtype) {
  check_off_tape("to_dtype", source, "the source", "use ops::cast");
  Tensor copy = Tensor::empty(source.shape(), dtype);
  copy_elements(copy, source);
  return with_spec_of(source, std::move(copy));
}

void convert_(Tensor& leaf, Dtype dtype) {
  check(leaf.is_leaf(), "convert_: only a leaf can be converted; detach() the result first");
  check<LayoutError>(leaf.layout() == Layout::kND,
                     "convert_: tensor must be row-major ND, got FRACTAL_NZ");
  if (leaf.dtype() == dtype) return;
  const Tensor converted = [&] {
    const MemoryTagGuard tag(leaf.storage().tag());
    const MetaGuard guard(leaf.is_meta());
    return leaf.is_meta() ? Tensor::empty(leaf.shape(), dtype) : to_dtype(leaf, dtype);
  }();
  Tensor grad = leaf.grad();
  if (grad.defined()) {
    const MemoryTagGuard tag(grad.storage().tag());
    grad = to_dtype(grad, arithmetic_dtype(dtype));
  }
  converted.storage().set_name(leaf.storage().name());
  leaf.storage().bump_version();
  auto& impl = *leaf.impl();
  impl.storage = converted.impl()->storage;
  impl.strides = converted.strides();
  impl.offset = 0;
  impl.dtype = dtype;
  if (grad.defined()) leaf.set_grad(grad);
}

}  // namespace moegrad
