// SPDX-License-Identifier: Apache-2.0
// Shapes: R rows by expert, E experts.
#include "tools/nz_ablation/nz_rungs.h"

#include <algorithm>
#include <memory>

#include "framework/autograd/function.h"
#include "ops/copies.h"
#include "ops/grouped_matmul.h"
#include "ops/grouped_products.h"
#include "ops/linear.h"
#include "ops/nz.h"
#include "ops/split_cat.h"
#include "ops/views.h"

namespace moegrad::tools {
namespace {

using nn::ExpertWeights;

// A grouped matmul y = x W that makes a copy of its weight each time: for a weight stored as
// [E, N, K] the transpose, as a tensor; for either orientation, on request, a FRACTAL_NZ copy. With
// g = dL/dy, for the rows of each expert:
//     dL/dx = g W^T, which reads a weight [E, N, K] as it is
//     dL/dW = x^T g, transposed for a weight [E, N, K]
// Backward makes another copy. A copy that is kept from forward on would keep in memory what
// fully_shard frees in between.
class PreparedMatmul final : public Function {
 public:
  struct Steps {
    bool transpose = false;  // the weight is [E, N, K]
    bool convert = false;
  };

  PreparedMatmul(const std::vector<std::int64_t>& offsets, const Steps& steps)
      : offsets_(offsets), steps_(steps) {}

  std::string_view name() const override { return "prepared_matmul"; }

  Tensor forward(const Tensor& x, const Tensor& weight) {
    x_ = x;
    weight_ = weight;
    return ops::grouped_matmul(x, converted(transposed(weight)), offsets_);
  }

  TensorList backward(const TensorList& grads, InputMask needs) override {
    const Tensor grad_output = ops::contiguous(grads[0]);
    const Tensor x = x_.unpack(), weight = weight_.unpack();
    Tensor grad_x, grad_weight;
    if (needs[0]) {
      grad_x = ops::grouped_matmul(grad_output, converted(weight), offsets_, !steps_.transpose);
    }
    if (needs[1]) {
      const Shape shape = {weight.dim(0), x.dim(1), grad_output.dim(1)};
      grad_weight = transposed(ops::multiply_column_groups(x, grad_output, offsets_, shape));
    }
    return {grad_x, grad_weight};
  }

 private:
  Tensor transposed(const Tensor& weight) const {
    return steps_.transpose ? ops::contiguous(ops::transpose(weight, 1, 2)) : weight;
  }
  Tensor converted(const Tensor& weight) const {
    return steps_.convert ? ops::nd_to_nz(weight) : weight;
  }

  std::vector<std::int64_t> offsets_;
  Steps steps_;
  SavedTensor x_{*this}, weight_{*this};
};

ExpertProduct prepare_then_multiply(const PreparedMatmul::Steps& steps) {
  return [=](const Tensor& rows, const Tensor& weight, const ops::RowGroups& groups) {
    return apply<PreparedMatmul>(made_with(groups.offsets(), steps), ops::contiguous(rows), weight);
  };
}

// The rows of each expert as a view. dL/da is the concatenation of all experts' gradients.
class SplitByExpert final : public Function {
 public:
  std::string_view name() const override { return "split_by_expert"; }

  TensorList forward(const Tensor& rows, const std::vector<std::int64_t>& offsets) {
    TensorList pieces;
    for (std::size_t e = 0; e + 1 < offsets.size(); ++e) {
      pieces.push_back(ops::narrow(rows, 0, offsets[e], offsets[e + 1] - offsets[e]));
    }
    return pieces;
  }

  TensorList backward(const TensorList& grads, InputMask /*needs*/) override {
    return {ops::cat(grads, 0)};
  }
};

// Joins in two levels, because a Function on the tape has at most 64 inputs.
Tensor join(const TensorList& pieces) {
  constexpr std::ptrdiff_t kMost = 64;
  TensorList parts;
  for (auto begin = pieces.begin(); begin != pieces.end();) {
    const auto end = begin + std::min(kMost, pieces.end() - begin);
    parts.push_back(ops::cat({begin, end}, 0));
    begin = end;
  }
  return ops::cat(parts, 0);
}

// weight: [E, out, in]
Tensor loop_over_experts(const Tensor& rows, const Tensor& weight, const ops::RowGroups& groups) {
  const auto experts = weight.dim(0), out = weight.dim(1);
  const auto inputs = apply<SplitByExpert>(ops::contiguous(rows), groups.offsets());
  const auto weights = ops::split(ops::view(weight, {experts * out, weight.dim(2)}), out, 0);
  TensorList outputs;
  for (std::size_t e = 0; e < inputs.size(); ++e) {
    if (inputs[e].dim(0) > 0) outputs.push_back(ops::linear(inputs[e], weights[e]));
  }
  return join(outputs);
}

}  // namespace

std::vector<Rung> nz_ladder() {
  constexpr auto kHf = ExpertWeights::kHuggingFace, kPretransposed = ExpertWeights::kPretransposed;
  return {
      {.name = "loop over experts",
       .weights = kHf,
       .gathered = Layout::kND,
       .product = loop_over_experts},
      {.name = "grouped matmul",
       .weights = kHf,
       .gathered = Layout::kND,
       .product = prepare_then_multiply({.transpose = true})},
      {.name = "(packing transposes)", .weights = kHf, .gathered = Layout::kND},
      {.name = "+ conversion to NZ",
       .weights = kHf,
       .gathered = Layout::kND,
       .product = prepare_then_multiply({.transpose = true, .convert = true})},
      {.name = "+ slice_to_nz", .weights = kHf, .gathered = Layout::kNZ},
      {.name = "+ pre-transposed", .weights = kPretransposed, .gathered = Layout::kNZ},
      {.name = "+ linear_only_shard",
       .weights = kPretransposed,
       .gathered = Layout::kNZ,
       .linear_only_shard = true},
  };
}

std::vector<Rung> ways_to_nz() {
  return {{.name = "split, then convert",
           .gathered = Layout::kND,
           .product = prepare_then_multiply({.convert = true})},
          {.name = "slice_to_nz", .gathered = Layout::kNZ}};
}

}  // namespace moegrad::tools
