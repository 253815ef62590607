// SPDX-License-Identifier: Apache-2.0
#include "ops/split_cat.h"

#include <algorithm>
#include <memory>
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
  Split(std::int64_t size, std::int64_t dim) : size_(size), dim_(dim) {}

  std::string_view name() const override { return "split"; }

  TensorList forward(const Tensor& a) {
    TensorList pieces;
    const auto n = a.dim(dim_);
    // Also of nothing there is one piece.
    for (std::int64_t start = 0; start < std::max<std::int64_t>(n, 1); start += size_) {
      pieces.push_back(Tensor::narrow(a, dim_, start, std::min(size_, n - start)));
    }
    return pieces;
  }

  TensorList backward(const TensorList& grads, InputMask /*needs*/) override {
    return {cat(grads, dim_)};
  }

 private:
  std::int64_t size_;
  std::int64_t dim_;
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
  return apply<Split>(made_with(size, dim), a);
}

TensorList chunk(const Tensor& a, std::int64_t n, std::int64_t dim) {
  check_operands("chunk", a);
  dim = wrap_dim("chunk", dim, a.ndim());
  check<ShapeError>(n > 0 && a.dim(dim) > 0 && a.dim(dim) % n == 0, "chunk: ", n,
                    " equal pieces of dimension ", dim, " of ", a.shape(), " are not possible");
  return split(a, a.dim(dim) / n, dim);
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

}  // namespace moegrad::ops
