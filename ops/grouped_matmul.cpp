// SPDX-License-Identifier: Apache-2.0
#include "ops/grouped_matmul.h"

#include <algorithm>
#include <string>
#include <tuple>

#include "framework/autograd/function.h"
#include "ops/checks.h"
#include "ops/copies.h"
#include "ops/grouped_products.h"

namespace moegrad::ops {
namespace {

// With g = dL/dy, for the rows of each expert:
//     dL/dx = g W^T
//     dL/dW = x^T g, or its transpose g^T x for a weight [E, N, K]
class GroupedMatmul final : public Function {
 public:
  GroupedMatmul(const RowGroups& groups, bool transpose_weight)
      : groups_(groups), transpose_weight_(transpose_weight) {}

  std::string_view name() const override { return "grouped_matmul"; }
  bool reads_nz(std::size_t i) const override { return i == 1; }
  bool may_wait(std::size_t i) const override { return i == 1; }
  double flops() const override {
    return 2.0 * static_cast<double>(edges()[0].shape[1]) * Function::flops();
  }

  Tensor forward(const Tensor& x, const Tensor& weight) {
    x_ = x;
    weight_ = weight;
    const auto experts = groups_.experts();
    const auto stacked = weight.dim(0) / std::max<std::int64_t>(experts, 1);
    const auto n =
        transpose_weight_ ? (weight.ndim() == 3 ? weight.dim(1) : stacked) : weight.dim(-1);
    return multiply_row_groups(x, stored_matrices(weight, experts, transpose_weight_),
                               groups_.offsets(), n);
  }

  TensorList backward(const TensorList& grads, InputMask needs) override {
    const Tensor grad_output = contiguous(grads[0]);
    Tensor grad_x, grad_weight;
    if (needs[0]) {
      grad_x = multiply_row_groups(
          grad_output, stored_matrices(weight_.unpack(), groups_.experts(), !transpose_weight_),
          groups_.offsets(), edges()[0].shape[1]);
    }
    if (needs[1]) {
      const Tensor x = x_.unpack();
      const auto& [left, right] =
          transpose_weight_ ? std::tie(grad_output, x) : std::tie(x, grad_output);
      grad_weight = weight_gradient(*this, 1, left, right, groups_);
    }
    return {grad_x, grad_weight};
  }

 private:
  RowGroups groups_;
  bool transpose_weight_;
  SavedTensor x_{*this}, weight_{*this};
};

void check_shapes(const Tensor& x, const Tensor& weight, std::int64_t experts,
                  bool transpose_weight) {
  check_operands("grouped_matmul", x, weight);
  check<ShapeError>(x.ndim() == 2, "grouped_matmul: x must be [M, K], got ", x.shape());
  const auto* form = transpose_weight ? "[E, N, K] or [E * N, K]" : "[E, K, N] or [E * K, N]";
  check<ShapeError>(weight.ndim() == 2 || weight.ndim() == 3, "grouped_matmul: weight must be ",
                    form, ", got ", weight.shape());
  const auto k = x.dim(1), rows = weight.dim(0);
  const bool stacked = weight.ndim() == 2;
  const bool fits = transpose_weight
                        ? weight.dim(-1) == k && (!stacked || experts <= 0 || rows % experts == 0)
                        : (stacked ? rows == experts * k : weight.dim(1) == k);
  check<ShapeError>(fits, "grouped_matmul: weight must be ", form, " with K = ", k,
                    stacked ? " and E = " + std::to_string(experts) : "", " to match x ", x.shape(),
                    ", got ", weight.shape());
  check_blocks("grouped_matmul", weight, experts);
}

// As many as the offsets say, where the weight does not.
std::int64_t experts_of(const Tensor& weight, std::int64_t experts) {
  return weight.defined() && weight.ndim() == 3 ? weight.dim(0) : experts;
}

// The rows of each expert.
std::vector<std::int64_t> checked_counts(const std::vector<std::int64_t>& offsets,
                                         std::int64_t experts, std::int64_t rows) {
  check<ValueError>(std::ssize(offsets) == experts + 1, "grouped_matmul: offsets must have ",
                    experts + 1, " entries (experts + 1), got ", offsets.size());
  check<ValueError>(offsets.front() == 0, "grouped_matmul: offsets must start at 0, got ",
                    offsets.front());
  std::vector<std::int64_t> counts;
  for (std::size_t e = 0; e + 1 < offsets.size(); ++e) {
    check<ValueError>(offsets[e] <= offsets[e + 1],
                      "grouped_matmul: offsets must not decrease, got ", offsets[e], " then ",
                      offsets[e + 1], " for expert ", e);
    counts.push_back(offsets[e + 1] - offsets[e]);
  }
  check<ValueError>(offsets.back() == rows, "grouped_matmul: offsets must end at the ", rows,
                    " rows of x, got ", offsets.back());
  return counts;
}

}  // namespace

Tensor grouped_matmul(const Tensor& x, const Tensor& weight,
                      const std::vector<std::int64_t>& offsets, bool transpose_weight) {
  const auto experts = experts_of(weight, std::ssize(offsets) - 1);
  check_shapes(x, weight, experts, transpose_weight);
  const RowGroups groups(1, checked_counts(offsets, experts, x.dim(0)));
  return grouped_matmul(x, weight, groups, transpose_weight);
}

Tensor grouped_matmul(const Tensor& x, const Tensor& weight, const RowGroups& groups,
                      bool transpose_weight) {
  const auto experts = experts_of(weight, groups.experts());
  check_shapes(x, weight, experts, transpose_weight);
  check<ValueError>(groups.experts() == experts, "grouped_matmul: groups must be of the ", experts,
                    " experts of the weight, got ", groups.experts());
  check<ValueError>(groups.rows() == x.dim(0), "grouped_matmul: groups must have the ", x.dim(0),
                    " rows of x, got ", groups.rows());
  check_reals("grouped_matmul", "x", x);
  check_same_dtype("grouped_matmul", "x", x, "weight", weight);
  return apply<GroupedMatmul>(made_with(groups, transpose_weight), contiguous(x),
                              contiguous(weight));
}

}  // namespace moegrad::ops
