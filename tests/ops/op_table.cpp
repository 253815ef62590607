// SPDX-License-Identifier: Apache-2.0
#include "tests/ops/op_table.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "framework/autograd/engine.h"
#include "framework/runtime/random.h"
#include "framework/tensor/fill.h"

namespace moegrad::test {
namespace {

double draw_floating(Draw draw, const Random& random, std::uint64_t i) {
  const double normal = random.normal(i);
  switch (draw) {
    case Draw::kPositive:
      return 0.5 + 1.5 * random.uniform(i);
    case Draw::kAwayFromZero:
      return normal + std::copysign(0.5, normal);
    case Draw::kSixtyFourths:
      return std::round(normal * 64) / 64;
    case Draw::kMask:
      return normal > 0 ? 1 : 0;
    default:
      return normal;
  }
}

// Rows of `n` different numbers below `bound`: a shuffle that stops after the first n.
void draw_distinct(const Random& random, std::int64_t n, std::int64_t bound,
                   std::vector<double>& values) {
  std::vector<double> row(static_cast<std::size_t>(bound));
  for (std::size_t at = 0; at < values.size(); at += static_cast<std::size_t>(n)) {
    for (std::size_t i = 0; i < row.size(); ++i) row[i] = static_cast<double>(i);
    for (std::int64_t j = 0; j < n; ++j) {
      const auto slot = at + static_cast<std::size_t>(j);
      std::swap(row[static_cast<std::size_t>(j)],
                row[static_cast<std::size_t>(j + random.integer(slot, bound - j))]);
      values[slot] = row[static_cast<std::size_t>(j)];
    }
  }
}

std::vector<double> draw_values(const Input& input, const Random& random) {
  if (!input.given.empty()) return input.given;
  std::vector<double> values(static_cast<std::size_t>(input.shape.numel()));
  if (input.draw == Draw::kDistinctIndices) {
    draw_distinct(random, input.shape[-1], input.bound, values);
    return values;
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = input.is_index() ? static_cast<double>(random.integer(i, input.bound))
                                 : draw_floating(input.draw, random, i);
  }
  return values;
}

// Where element (b, k, n) of the matrices stands among the blocks.
std::size_t nz_position(const NzBlocks& blocks, const Shape& i) {
  return static_cast<std::size_t>(i[0] * nz_numel(blocks.k, blocks.n) +
                                  nz_offset(i[1], i[2], blocks.k));
}

}  // namespace

std::vector<OpEntry> op_table() {
  std::vector<OpEntry> table;
  for (auto* entries :
       {elementwise_entries, operator_entries, view_entries,   slice_entries,   copy_entries,
        reduction_entries,   mask_entries,     index_entries,  order_entries,   statistics_entries,
        einsum_entries,      row_entries,      norm_entries,   token_entries,   attention_entries,
        dropout_entries,     product_entries,  router_entries, routing_entries, loss_entries,
        layer_entries,       aux_loss_entries, nz_entries,     npu_entries}) {
    std::ranges::move(entries(), std::back_inserter(table));
  }
  return table;
}

const std::map<std::string, std::vector<std::size_t>>& ops_in_bfloat16() {
  static const std::map<std::string, std::vector<std::size_t>> ops{
      {"add(Tensor, Tensor)", {}},
      {"add(Tensor, double)", {}},
      {"add_rms_norm", {1, 2}},
      {"mul(Tensor, Tensor)", {}},
      {"mul(Tensor, double)", {}},
      {"operator*(Tensor, Tensor)", {}},
      {"operator*(Tensor, double)", {}},
      {"operator*(double, Tensor)", {}},
      {"operator+(Tensor, Tensor)", {}},
      {"operator+(Tensor, double)", {}},
      {"operator+(double, Tensor)", {}},
      {"operator-(Tensor, double)", {}},
      {"partial_rope", {1, 2}},
      {"rms_norm", {1}},
      {"rms_norm_rope", {1, 2, 3}},
      {"rope", {1, 2}},
      {"silu", {}},
      {"swiglu", {1}},
  };
  return ops;
}

TensorList draw_inputs(const OpSample& sample, Dtype dtype, std::uint64_t seed) {
  TensorList inputs;
  for (const auto& input : sample.inputs) {
    const Random random(seed, sample.what + " input " + std::to_string(inputs.size()));
    auto values = draw_values(input, random);
    const auto own_dtype = input.is_index()  ? Dtype::kInt64
                           : input.is_mask() ? Dtype::kBool
                                             : dtype;
    if (own_dtype == Dtype::kInt64 && !input.is_index()) {
      for (auto& value : values) value = std::round(8 * value);
    }
    if (own_dtype == Dtype::kBool) {
      for (auto& value : values) value = value > 0 ? 1 : 0;
    }
    inputs.push_back(to_dtype(Tensor::from(values, input.shape), own_dtype));
  }
  return inputs;
}

TensorList draw_cotangents(const TensorList& outputs, std::uint64_t seed) {
  TensorList cotangents;
  for (const auto& output : outputs) {
    cotangents.emplace_back();
    if (!holds_reals(output.dtype())) continue;
    const Random random(seed, "cotangent " + std::to_string(cotangents.size()));
    std::vector<double> values(static_cast<std::size_t>(output.numel()));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = random.normal(i);
    cotangents.back() = to_dtype(Tensor::from(values, output.shape()), output.dtype());
  }
  return cotangents;
}

Outcome run_entry(const OpEntry& entry, const OpSample& sample, const TensorList& inputs,
                  const std::vector<bool>& needs, std::uint64_t seed, Dtype held_by) {
  TensorList leaves;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    leaves.push_back(inputs[i].detach());
    leaves.back().set_requires_grad(needs[i]);
  }
  const auto outputs = entry.run(leaves, sample.args);
  const auto cotangents = draw_cotangents(outputs, seed);
  TensorList roots, grads;
  Outcome outcome;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    outcome.outputs.push_back(outputs[i].detach());
    if (!outputs[i].requires_grad()) continue;
    roots.push_back(outputs[i]);
    grads.push_back(to_dtype(to_dtype(cotangents[i], held_by), outputs[i].dtype()));
  }
  if (!roots.empty()) run_backward(roots, grads, /*retain_graph=*/false);
  for (const auto& leaf : leaves) outcome.grads.push_back(leaf.grad());
  return outcome;
}

std::vector<bool> inputs_with_gradient(const OpSample& sample, Dtype dtype) {
  std::vector<bool> needs;
  for (const auto& input : sample.inputs) {
    needs.push_back(input.has_gradient && !input.has_own_dtype() && holds_reals(dtype));
  }
  return needs;
}

Array to_array(const Tensor& tensor) {
  Array array(tensor.shape());
  if (tensor.layout() == Layout::kND) {
    const Tensor values = to_dtype(tensor.detach(), Dtype::kFloat64);
    std::ranges::copy(values.data<double>(), array.values.begin());
    return array;
  }
  const auto& blocks = tensor.nz_blocks();
  dispatch_floating(tensor.dtype(), [&]<class T>() {
    const auto stored = tensor.nz_data<T>();
    std::size_t next = 0;
    for_each_index({blocks.batch, blocks.k, blocks.n}, [&](const Shape& i) {
      array.values[next++] = static_cast<double>(stored[nz_position(blocks, i)]);
    });
  });
  return array;
}

// Without a temporary copy, whose freed bytes an op could take for its result.
Tensor as_nz(const Tensor& tensor) {
  const NzBlocks blocks{tensor.ndim() == 3 ? tensor.dim(0) : 1, tensor.dim(-2), tensor.dim(-1)};
  const auto& strides = tensor.strides();
  Tensor nz = Tensor::empty_nz(tensor.shape(), blocks, tensor.dtype());
  dispatch_floating(tensor.dtype(), [&]<class T>() {
    const T* from = tensor.strided_data<T>();
    const auto to = nz.mutable_nz_data<T>();
    std::ranges::fill(to, T{0});
    for_each_index({blocks.batch, blocks.k, blocks.n}, [&](const Shape& i) {
      const auto at =
          (blocks.batch > 1 ? i[0] * strides[0] : 0) + i[1] * strides[-2] + i[2] * strides[-1];
      to[nz_position(blocks, i)] = from[at];
    });
  });
  return nz;
}

std::vector<std::int64_t> integers_from(const Json& list) {
  return list.get<std::vector<std::int64_t>>();
}

Shape shape_from(const Json& sizes) {
  const auto values = integers_from(sizes);
  return Shape(std::span(values));
}

}  // namespace moegrad::test
