// SPDX-License-Identifier: Apache-2.0
#include "nn/linear.h"

#include <utility>

#include "ops/parallel_linear.h"
#include "ops/tensor_parallel.h"

namespace moegrad::nn {

using Side = LinearDivision::Side;

Tensor Linear::product(const Tensor& x, std::optional<Dtype> dtype) {
  const Tensor weight = weight_operand(*this, weight_);
  const auto with_bias = [&](const Tensor& y) {
    return bias_.defined() ? ops::cast(y + bias_, y.dtype()) : y;
  };
  if (!division_) {
    return with_bias(ops::linear(operand(*this, x), weight, gradient_rows_, dtype));
  }
  const auto& [group, side, divided_rows, whole_features, tiles] = *division_;
  const ops::ParallelLinearOptions options{.divided_rows = divided_rows,
                                           .gradient_rows = gradient_rows_,
                                           .dtype = dtype,
                                           .tiles = tiles};
  if (side == Side::kColumns) {
    const Tensor y =
        with_bias(ops::column_parallel_linear(group, operand(*this, x), weight, options));
    return whole_features ? ops::gather_from_ranks(group, y, -1) : y;
  }
  const Tensor own = whole_features ? ops::scatter_to_ranks(group, x, -1) : x;
  return with_bias(ops::row_parallel_linear(group, operand(*this, own), weight, options));
}

Tensor Linear::cross_entropy(const Tensor& x, const Tensor& targets,
                             ops::CrossEntropyOptions options) {
  check(!bias_.defined() && (!division_ || division_->side == Side::kColumns),
        "Linear: cross_entropy needs a layer without bias, whole or column-parallel, got another");
  if (division_) options.vocabulary = division_->group;
  return ops::linear_cross_entropy(operand(*this, x), weight_operand(*this, weight_), targets,
                                   options, division_ && division_->divided_rows);
}

void Linear::divide(LinearDivision division) {
  check<ValueError>(division.group != nullptr, "Linear: divide needs a process group, got null");
  division_ = std::move(division);
}

}  // namespace moegrad::nn
