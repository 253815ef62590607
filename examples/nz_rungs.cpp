// SPDX-License-Identifier: Apache-2.0
// Shapes: R rows by expert, E experts.
#include "examples/nz_rungs.h"

#include <algorithm>
#include <memory>

#include "framework/autograd/function.h"
#include "ops/grouped_matmul.h"
#include "ops/grouped_products.h"
#include "ops/linear.h"
#include "ops/nz.h"
#include "ops/shape_ops.h"

namespace moegrad::examples {
namespace {

using nn::ExpertWeights;

// A grouped matmul that makes a FRACTAL_NZ copy of its weight, [E, K, N] or transposed [E, N, K],
// each time it reads it. With g = dL/dy, for the rows of each expert:
//     dL/dx = g W^T
//     dL/dW = x^T g, or its transpose g^T x for a weight [E, N, K]
// Backward makes another copy: one that stayed from forward on would keep in memory what
// fully_shard frees in between.
class ConvertedMatmul final : public Function {
 public:
  ConvertedMatmul(const std::vector<std::int64_t>& offsets, bool transpose_weight)
      : offsets_(offsets), transpose_weight_(transpose_weight) {}

  std::string_view name() const override { return "converted_matmul"; }

  Tensor forward(const Tensor& x, const Tensor& weight) {
    x_ = x;
    weight_ = weight;
    return ops::grouped_matmul(x, ops::nd_to_nz(weight), offsets_, transpose_weight_);
  }

  TensorList backward(const TensorList& grads, InputMask needs) override {
    const Tensor grad_output = ops::row_major(grads[0]);
    const Tensor x = x_.unpack(), weight = weight_.unpack();
    Tensor grad_x, grad_weight;
    if (needs[0]) {
      grad_x =
          ops::grouped_matmul(grad_output, ops::nd_to_nz(weight), offsets_, !transpose_weight_);
    }
    if (needs[1]) {
      const auto& left = transpose_weight_ ? grad_output : x;
      const auto& right = transpose_weight_ ? x : grad_output;
      grad_weight = ops::multiply_column_groups(left, right, offsets_, weight.shape());
    }
    return {grad_x, grad_weight};
  }

 private:
  std::vector<std::int64_t> offsets_;
  bool transpose_weight_;
  SavedTensor x_{*this}, weight_{*this};
};

nn::ExpertProduct convert_then_multiply(ExpertWeights weights) {
  const bool transpose_weight = weights == ExpertWeights::kHuggingFace;
  return [=](const Tensor& rows, const Tensor& weight, const ops::RoutingPlan& plan) {
    return Function::apply(std::make_shared<ConvertedMatmul>(plan.offsets, transpose_weight),
                           ops::contiguous(rows), weight);
  };
}

// The rows of each expert as a view, and dL/da = those of all experts one behind the other.
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

// A Function on the tape has at most 64 inputs, so in two levels.
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
Tensor loop_over_experts(const Tensor& rows, const Tensor& weight, const ops::RoutingPlan& plan) {
  const auto experts = weight.dim(0), out = weight.dim(1);
  const auto inputs =
      Function::apply(std::make_shared<SplitByExpert>(), ops::contiguous(rows), plan.offsets);
  const auto weights = ops::split(ops::view(weight, {experts * out, weight.dim(2)}), out, 0);
  TensorList outputs;
  for (std::size_t e = 0; e < inputs.size(); ++e) {
    if (plan.counts[e] > 0) outputs.push_back(ops::linear(inputs[e], weights[e]));
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
      {.name = "grouped matmul", .weights = kHf, .gathered = Layout::kND},
      {.name = "+ conversion to NZ",
       .weights = kHf,
       .gathered = Layout::kND,
       .product = convert_then_multiply(kHf)},
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
           .product = convert_then_multiply(ExpertWeights::kPretransposed)},
          {.name = "slice_to_nz", .gathered = Layout::kNZ}};
}

void set_product(nn::Module& module, const Rung& rung) {
  if (!rung.product) return;
  for (const auto& [path, below] : module.named_modules()) {
    auto* const experts = dynamic_cast<nn::GroupedExperts*>(below);
    if (experts != nullptr) experts->set_product(rung.product);
  }
}

}  // namespace moegrad::examples
