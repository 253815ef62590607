// SPDX-License-Identifier: Apache-2.0
#include "ops/split_cat.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "framework/autograd/function.h"
#include "ops/checks.h"
#include "ops/copies.h"
#include "ops/dims.h"
#include "ops/kernels/copy_block.h"
#include "ops/views.h"

namespace moegrad::ops {
namespace {

// dL/da = the gradients of the pieces, joined.
class Split final : public Function {
 public:
  explicit Split(std::int64_t dim) : dim_(dim) {}

  std::string_view name() const override { return "split"; }
  bool takes_wide_gradients() const override { return true; }

  TensorList forward(const Tensor& a, const std::vector<std::int64_t>& sizes) const {
    TensorList pieces;
    std::int64_t start = 0;
    for (const auto size : sizes) {
      pieces.push_back(Tensor::narrow(a, dim_, start, size));
      start += size;
    }
    return pieces;
  }

  // Gradients of bfloat16 pieces are wide or, of pieces that are not used, narrow.
  TensorList backward(const TensorList& grads, InputMask /*needs*/) override {
    TensorList wide;
    std::ranges::transform(grads, std::back_inserter(wide), widened);
    return {cat(wide, dim_)};
  }

 private:
  std::int64_t dim_;
};

// Also of nothing there is one piece.
std::vector<std::int64_t> sizes_of_pieces(std::int64_t n, std::int64_t size) {
  std::vector<std::int64_t> sizes;
  do {
    sizes.push_back(std::min(size, n));
    n -= size;
  } while (n > 0);
  return sizes;
}

// dL/da_i = the range of dL/dy that a_i fills.
class Cat final : public Function {
 public:
  explicit Cat(std::int64_t dim) : dim_(dim) {}

  std::string_view name() const override { return "cat"; }
  bool takes_wide_gradients() const override { return true; }

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
    auto* target = output.mutable_bytes().data();
    for (const auto& tensor : tensors) {
      const auto piece = tensor.dim(dim_) * size;
      kernels::copy_block(tensor.bytes().data(), piece, target, n * size, outer, piece);
      target += piece;
    }
    return output;
  }

  TensorList backward(const TensorList& grads, InputMask needs) override {
    const Tensor grad = contiguous(grads[0]);
    const auto [outer, n, inner] = extents_at(grad.shape(), dim_);
    const auto size = inner * size_of(grad.dtype());
    const auto* source = grad.bytes().data();
    TensorList grad_inputs(shapes_.size());
    for (std::size_t i = 0; i < shapes_.size(); ++i) {
      const auto piece = shapes_[i][dim_] * size;
      if (needs[i]) {
        grad_inputs[i] = Tensor::empty(shapes_[i], grad.dtype());
        kernels::copy_block(source, n * size, grad_inputs[i].mutable_bytes().data(), piece, outer,
                            piece);
      }
      source += piece;
    }
    return grad_inputs;
  }

 private:
  std::int64_t dim_;
  std::vector<Shape> shapes_;
};

// More tensors than a Function takes are joined in runs, and these in turn: the same elements.
Tensor cat_in_runs(TensorList inputs, std::int64_t dim) {
  constexpr auto kRun = static_cast<std::ptrdiff_t>(Function::kMaxInputs);
  while (std::ssize(inputs) > kRun) {
    TensorList joined;
    for (auto begin = inputs.begin(); begin != inputs.end();) {
      const auto end = begin + std::min(kRun, inputs.end() - begin);
      joined.push_back(apply<Cat>(made_with(dim), TensorList(begin, end)));
      begin = end;
    }
    inputs = std::move(joined);
  }
  return apply<Cat>(made_with(dim), inputs);
}

}  // namespace

TensorList split(const Tensor& a, std::int64_t size, std::int64_t dim) {
  check_operands("split", a);
  dim = wrap_dim("split", dim, a.ndim());
  check<ShapeError>(size > 0, "split: size must be positive, got ", size);
  return apply<Split>(made_with(dim), a, sizes_of_pieces(a.dim(dim), size));
}

TensorList split(const Tensor& a, const std::vector<std::int64_t>& sizes, std::int64_t dim) {
  check_operands("split", a);
  dim = wrap_dim("split", dim, a.ndim());
  std::int64_t rest = a.dim(dim);
  bool fits = !sizes.empty();
  std::string listed;
  for (const auto size : sizes) {
    fits = fits && 0 <= size && size <= rest;
    if (fits) rest -= size;
    listed += (listed.empty() ? "" : ", ") + std::to_string(size);
  }
  check<ShapeError>(fits && rest == 0, "split: sizes must be >= 0 and add up to the ", a.dim(dim),
                    " of dimension ", dim, " of ", a.shape(), ", got ",
                    sizes.empty() ? "none" : listed);
  return apply<Split>(made_with(dim), a, sizes);
}

TensorList split(const Tensor& a, std::initializer_list<std::int64_t> sizes, std::int64_t dim) {
  return split(a, std::vector(sizes), dim);
}

TensorList chunk(const Tensor& a, std::int64_t n, std::int64_t dim) {
  check_operands("chunk", a);
  dim = wrap_dim("chunk", dim, a.ndim());
  check<ShapeError>(n > 0, "chunk: the number of pieces must be positive, got ", n);
  if (a.dim(dim) == 0) return split(a, std::vector<std::int64_t>(static_cast<std::size_t>(n)), dim);
  return split(a, (a.dim(dim) - 1) / n + 1, dim);
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
                      first.dtype(), " and ", tensor.dtype(),
                      cast_hint(first.dtype(), tensor.dtype()));
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

}  // namespace moegrad::ops
