// SPDX-License-Identifier: Apache-2.0
// Shapes: T tokens, H hidden, E experts, K experts per token, R = T * K rows.
#include "ops/routing.h"

#include <memory>
#include <numeric>
#include <string_view>

#include "framework/autograd/function.h"
#include "framework/tensor/fill.h"
#include "ops/kernels/routing.h"
#include "ops/shape_ops.h"

namespace moegrad::ops {
namespace {

const std::int64_t* index_data(const Tensor& indices) {
  return indices.data<std::int64_t>().data();
}

// dL/dx[t] = sum_j dL/drows[row_of_slot[t * K + j]]
class PermuteRows final : public Function {
 public:
  explicit PermuteRows(std::int64_t top_k) : top_k_(top_k) {}

  std::string_view name() const override { return "permute_rows"; }

  Tensor forward(const Tensor& x, const Tensor& row_of_slot, const Tensor& slot_of_row) {
    x_shape_ = x.shape();
    const auto h = x.dim(1);
    Tensor rows = Tensor::empty({slot_of_row.numel(), h}, x.dtype());  // [R, H]
    dispatch_floating(x.dtype(), [&]<class T>() {
      kernels::spread_tokens<T>(x.data<T>().data(), /*weights=*/nullptr, index_data(slot_of_row),
                                rows.mutable_data<T>().data(), slot_of_row.numel(), top_k_, h);
    });
    row_of_slot_ = row_of_slot;
    return rows;
  }

  TensorList backward(const TensorList& grads, InputMask /*needs*/) override {
    const Tensor grad_rows = contiguous(grads[0]), row_of_slot = row_of_slot_.unpack();
    Tensor grad_x = Tensor::empty(x_shape_, grad_rows.dtype());  // [T, H]
    dispatch_floating(grad_rows.dtype(), [&]<class T>() {
      kernels::collect_tokens<T>(grad_rows.data<T>().data(), /*weights=*/nullptr,
                                 index_data(row_of_slot), grad_x.mutable_data<T>().data(),
                                 x_shape_[0], top_k_, x_shape_[1]);
    });
    return {grad_x, Tensor(), Tensor()};
  }

 private:
  std::int64_t top_k_;
  Shape x_shape_;
  SavedTensor row_of_slot_{*this};
};

// With r = row_of_slot[t * K + j] and g = dL/dy:
//     dL/drows[r]       = weights[t, j] * g[t]
//     dL/dweights[t, j] = <rows[r], g[t]>
class UnpermuteRows final : public Function {
 public:
  std::string_view name() const override { return "unpermute_rows"; }

  Tensor forward(const Tensor& rows, const Tensor& weights, const Tensor& row_of_slot,
                 const Tensor& slot_of_row) {
    const auto tokens = weights.dim(0), h = rows.dim(1);
    Tensor y = Tensor::empty({tokens, h}, rows.dtype());  // [T, H]
    dispatch_floating(rows.dtype(), [&]<class T>() {
      kernels::collect_tokens<T>(rows.data<T>().data(), weights.data<T>().data(),
                                 index_data(row_of_slot), y.mutable_data<T>().data(), tokens,
                                 weights.dim(1), h);
    });
    rows_ = rows;
    weights_ = weights;
    row_of_slot_ = row_of_slot;
    slot_of_row_ = slot_of_row;
    return y;
  }

  TensorList backward(const TensorList& grads, InputMask needs) override {
    const Tensor grad_y = contiguous(grads[0]);
    const Tensor rows = rows_.unpack(), weights = weights_.unpack();
    const Tensor row_of_slot = row_of_slot_.unpack(), slot_of_row = slot_of_row_.unpack();
    const auto top_k = weights.dim(1), h = rows.dim(1);
    Tensor grad_rows, grad_weights;
    dispatch_floating(rows.dtype(), [&]<class T>() {
      const T* g = grad_y.data<T>().data();
      if (needs[0]) {
        grad_rows = empty_like(rows);  // [R, H]
        kernels::spread_tokens<T>(g, weights.data<T>().data(), index_data(slot_of_row),
                                  grad_rows.mutable_data<T>().data(), rows.dim(0), top_k, h);
      }
      if (needs[1]) {
        grad_weights = empty_like(weights);  // [T, K]
        kernels::slot_dots<T>(rows.data<T>().data(), g, index_data(row_of_slot),
                              grad_weights.mutable_data<T>().data(), weights.dim(0), top_k, h);
      }
    });
    return {grad_rows, grad_weights, Tensor(), Tensor()};
  }

 private:
  SavedTensor rows_{*this}, weights_{*this}, row_of_slot_{*this}, slot_of_row_{*this};
};

}  // namespace

RoutingPlan plan_routing(const Tensor& indices, std::int64_t num_experts) {
  check<ShapeError>(indices.ndim() == 2, "routing: indices must be [T, K], got ", indices.shape());
  check<ValueError>(num_experts >= 1, "routing: num_experts must be at least 1, got ", num_experts);
  check<DtypeError>(indices.dtype() == Dtype::kInt64, "routing: indices must be int64, got ",
                    indices.dtype());
  const Tensor slots = contiguous(indices);
  const auto experts = slots.data<std::int64_t>();
  RoutingPlan plan{.row_of_slot = Tensor::empty({slots.numel()}, Dtype::kInt64),
                   .slot_of_row = Tensor::empty({slots.numel()}, Dtype::kInt64),
                   .offsets = std::vector<std::int64_t>(static_cast<std::size_t>(num_experts) + 1),
                   .counts = std::vector<std::int64_t>(static_cast<std::size_t>(num_experts)),
                   .top_k = indices.dim(1)};
  for (std::size_t slot = 0; slot < experts.size(); ++slot) {
    check<ValueError>(0 <= experts[slot] && experts[slot] < num_experts,
                      "routing: expert index must be in [0, ", num_experts, "), got ",
                      experts[slot], " at token ", slot / static_cast<std::size_t>(plan.top_k));
    ++plan.counts[static_cast<std::size_t>(experts[slot])];
  }
  std::partial_sum(plan.counts.begin(), plan.counts.end(), plan.offsets.begin() + 1);

  auto next = plan.offsets;
  const auto row_of_slot = plan.row_of_slot.mutable_data<std::int64_t>();
  const auto slot_of_row = plan.slot_of_row.mutable_data<std::int64_t>();
  for (std::size_t slot = 0; slot < experts.size(); ++slot) {
    const auto row = next[static_cast<std::size_t>(experts[slot])]++;
    row_of_slot[slot] = row;
    slot_of_row[static_cast<std::size_t>(row)] = static_cast<std::int64_t>(slot);
  }
  return plan;
}

Tensor permute_rows(const Tensor& x, const RoutingPlan& plan) {
  const auto rows = plan.slot_of_row.numel();
  check<ShapeError>(x.ndim() == 2, "permute_rows: x must be [T, H], got ", x.shape());
  check<ShapeError>(x.dim(0) * plan.top_k == rows, "permute_rows: the plan has ", rows, " rows, ",
                    plan.top_k, " for each token, got x ", x.shape());
  check<DtypeError>(is_floating(x.dtype()), "permute_rows: x must be float32 or float64, got ",
                    x.dtype());
  return Function::apply(std::make_shared<PermuteRows>(plan.top_k), contiguous(x), plan.row_of_slot,
                         plan.slot_of_row);
}

Tensor unpermute_rows(const Tensor& rows, const Tensor& weights, const RoutingPlan& plan) {
  const auto routed = plan.slot_of_row.numel();
  check<ShapeError>(rows.ndim() == 2 && rows.dim(0) == routed, "unpermute_rows: rows must be [",
                    routed, ", H] as planned, got ", rows.shape());
  check<ShapeError>(
      weights.ndim() == 2 && weights.dim(1) == plan.top_k && weights.numel() == routed,
      "unpermute_rows: weights must be [T, ", plan.top_k, "] with ", routed,
      " elements as planned, got ", weights.shape());
  check<DtypeError>(is_floating(rows.dtype()),
                    "unpermute_rows: rows must be float32 or float64, got ", rows.dtype());
  check<DtypeError>(weights.dtype() == rows.dtype(), "unpermute_rows: rows is ", rows.dtype(),
                    " but weights is ", weights.dtype());
  return Function::apply(std::make_shared<UnpermuteRows>(), contiguous(rows), contiguous(weights),
                         plan.row_of_slot, plan.slot_of_row);
}

}  // namespace moegrad::ops
