// SPDX-License-Identifier: Apache-2.0
#include "ops/embedding.h"

#include <algorithm>
#include <memory>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "framework/autograd/function.h"
#include "framework/tensor/dispatch_any.h"
#include "framework/tensor/fill.h"
#include "ops/checks.h"
#include "ops/collective_function.h"
#include "ops/copies.h"
#include "ops/kernels/gather_rows.h"

namespace moegrad::ops {
namespace {

// dL/dweight[v] = sum over the positions i with ids[i] = v of dL/dy[i], by halving over positions;
// for a bfloat16 weight in float32. The weight has the rows from `first` on.
Tensor weight_gradient(const Tensor& grad, const Tensor& ids, std::int64_t first,
                       const Shape& shape) {
  Tensor grad_weight = Tensor::zeros(shape, arithmetic_dtype(grad.dtype()));
  const auto values = ids.data<std::int64_t>();
  std::vector<std::int64_t> by_id;
  for (std::int64_t i = 0; i < std::ssize(values); ++i) {
    const auto row = values[static_cast<std::size_t>(i)] - first;
    if (0 <= row && row < shape[0]) by_id.push_back(i);
  }
  std::ranges::stable_sort(by_id, {},
                           [&](std::int64_t i) { return values[static_cast<std::size_t>(i)]; });
  dispatch_reals(grad.dtype(), [&]<class T>() {
    using Sum = std::conditional_t<std::is_same_v<T, BFloat16>, float, T>;
    kernels::sum_rows_by_index<T, Sum>(grad.data<T>().data(), ids.numel(), values.data(), by_id,
                                       first, grad_weight.mutable_data<Sum>().data(), shape[1]);
  });
  return grad_weight;
}

Shape shape_of_rows(const Tensor& ids, const Tensor& weight) {
  Shape shape = ids.shape();
  shape.push_back(weight.dim(1));
  return shape;
}

class Embedding final : public Function {
 public:
  std::string_view name() const override { return "embedding"; }
  bool takes_wide_gradients() const override { return true; }

  Tensor forward(const Tensor& ids, const Tensor& weight) {
    ids_ = ids;
    weight_shape_ = weight.shape();
    Tensor output = Tensor::empty(shape_of_rows(ids, weight), weight.dtype());
    kernels::gather_rows(weight.bytes().data(), ids.data<std::int64_t>().data(),
                         output.mutable_bytes().data(), ids.numel(),
                         weight.dim(1) * size_of(weight.dtype()));
    return output;
  }

  TensorList backward(const TensorList& grads, InputMask /*needs*/) override {
    return {Tensor(), weight_gradient(contiguous(grads[0]), ids_.unpack(), 0, weight_shape_)};
  }

 private:
  Shape weight_shape_;
  SavedTensor ids_{*this};
};

// The same of the ids that this rank has.
class VocabularyParallelEmbedding final : public Function {
 public:
  VocabularyParallelEmbedding(std::shared_ptr<ProcessGroup> group, bool divided,
                              CollectiveOptions options)
      : group_(std::move(group)), divided_(divided), options_(std::move(options)) {}

  std::string_view name() const override { return "vocabulary_parallel_embedding"; }
  bool may_run_again() const override { return false; }
  bool takes_wide_gradients() const override { return true; }

  Tensor forward(const Tensor& ids, const Tensor& weight) {
    ids_ = ids;
    weight_shape_ = weight.shape();
    // x + -0 is x in any dtype, so the sum needs no wider one.
    const Tensor y = Tensor::full(shape_of_rows(ids, weight), -0.0, weight.dtype());
    const auto values = ids.data<std::int64_t>();
    for (std::int64_t i = 0; i < std::ssize(values); ++i) {
      const auto row = values[static_cast<std::size_t>(i)] - first_row();
      if (row < 0 || row >= weight.dim(0)) continue;
      const Shape one = {weight.dim(1)};
      Tensor to = Tensor::as_strided(y, one, {1}, i * weight.dim(1));
      copy_(to, Tensor::as_strided(weight, one, {1}, weight.offset() + row * weight.dim(1)));
    }
    return divided_ ? scatter_sum(*group_, y, options_) : sum_in_place(*group_, y, options_);
  }

  TensorList backward(const TensorList& grads, InputMask /*needs*/) override {
    Tensor grad = contiguous(grads[0]);
    if (divided_) grad = gather_parts(*group_, grad, 0, for_backward(options_));
    return {Tensor(), weight_gradient(grad, ids_.unpack(), first_row(), weight_shape_)};
  }

 private:
  std::int64_t first_row() const { return group_->rank() * weight_shape_[0]; }

  std::shared_ptr<ProcessGroup> group_;
  bool divided_;
  CollectiveOptions options_;
  Shape weight_shape_;
  SavedTensor ids_{*this};
};

void check_embedding(std::string_view op, const Tensor& ids, const Tensor& weight) {
  check_operands(op, ids, weight);
  check<ShapeError>(weight.ndim() == 2, op, ": weight must be [V, H], got ", weight.shape());
  check<DtypeError>(ids.dtype() == Dtype::kInt64, op, ": ids must be int64, got ", ids.dtype());
  check_reals(op, "weight", weight);
}

}  // namespace

Tensor embedding(const Tensor& ids, const Tensor& weight) {
  check_embedding("embedding", ids, weight);
  const Tensor positions = contiguous(ids);
  check_indices("embedding", "token id", positions, weight.dim(0));
  return apply<Embedding>(positions, contiguous(weight));
}

Tensor vocabulary_parallel_embedding(const std::shared_ptr<ProcessGroup>& group, const Tensor& ids,
                                     const Tensor& weight, bool divided_rows,
                                     const CollectiveOptions& options) {
  constexpr std::string_view kOp = "vocabulary_parallel_embedding";
  check<ValueError>(group != nullptr, kOp, ": needs a process group, got null");
  check_embedding(kOp, ids, weight);
  check<ShapeError>(!divided_rows || (ids.ndim() >= 1 && ids.dim(0) % group->size() == 0), kOp,
                    ": the ", group->size(), " ranks must divide the rows of ids, got ",
                    ids.shape());
  const Tensor positions = contiguous(ids);
  check_indices(kOp, "token id", positions, group->size() * weight.dim(0));
  return apply<VocabularyParallelEmbedding>(made_with(group, divided_rows, options), positions,
                                            contiguous(weight));
}

}  // namespace moegrad::ops
