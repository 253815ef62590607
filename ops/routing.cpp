// SPDX-License-Identifier: Apache-2.0
// Shapes: T tokens, H hidden, E experts, K experts per token, R = T * K rows.
#include "ops/routing.h"

#include <memory>
#include <numeric>
#include <string_view>
#include <utility>

#include "framework/autograd/function.h"
#include "framework/tensor/dispatch_any.h"
#include "framework/tensor/fill.h"
#include "ops/checks.h"
#include "ops/copies.h"
#include "ops/kernels/routing.h"

namespace moegrad::ops {
namespace {

const std::int64_t* index_data(const Tensor& indices) {
  return indices.data<std::int64_t>().data();
}

// rows[r] = x[slot_of_row[r] / top_k]: [T, H] -> [R, H]
Tensor spread(const Tensor& x, const Tensor& slot_of_row, std::int64_t top_k) {
  const auto h = x.dim(1);
  Tensor rows = Tensor::empty({slot_of_row.numel(), h}, x.dtype());
  dispatch_reals(x.dtype(), [&]<class T>() {
    kernels::spread_tokens<T>(x.data<T>().data(), index_data(slot_of_row),
                              rows.mutable_data<T>().data(), slot_of_row.numel(), top_k, h);
  });
  return rows;
}

// y[t] = sum_j rows[row_of_slot[t * top_k + j]]: [R, H] -> [T, H]
Tensor collect(const Tensor& rows, const Tensor& row_of_slot, std::int64_t tokens,
               std::int64_t top_k) {
  const auto h = rows.dim(1);
  Tensor y = Tensor::empty({tokens, h}, rows.dtype());
  dispatch_reals(rows.dtype(), [&]<class T>() {
    kernels::collect_tokens<T>(rows.data<T>().data(), index_data(row_of_slot),
                               y.mutable_data<T>().data(), tokens, top_k, h);
  });
  return y;
}

// The two are each other's transpose: the backward of one is the forward of the other.
class PermuteRows final : public Function {
 public:
  PermuteRows(std::int64_t tokens, std::int64_t top_k) : tokens_(tokens), top_k_(top_k) {}

  std::string_view name() const override { return "permute_rows"; }

  Tensor forward(const Tensor& x, const Tensor& row_of_slot, const Tensor& slot_of_row) {
    row_of_slot_ = row_of_slot;
    return spread(x, slot_of_row, top_k_);
  }

  TensorList backward(const TensorList& grads, InputMask /*needs*/) override {
    return {collect(contiguous(grads[0]), row_of_slot_.unpack(), tokens_, top_k_), Tensor(),
            Tensor()};
  }

 private:
  std::int64_t tokens_, top_k_;
  SavedTensor row_of_slot_{*this};
};

class UnpermuteRows final : public Function {
 public:
  UnpermuteRows(std::int64_t tokens, std::int64_t top_k) : tokens_(tokens), top_k_(top_k) {}

  std::string_view name() const override { return "unpermute_rows"; }

  Tensor forward(const Tensor& rows, const Tensor& row_of_slot, const Tensor& slot_of_row) {
    slot_of_row_ = slot_of_row;
    return collect(rows, row_of_slot, tokens_, top_k_);
  }

  TensorList backward(const TensorList& grads, InputMask /*needs*/) override {
    return {spread(contiguous(grads[0]), slot_of_row_.unpack(), top_k_), Tensor(), Tensor()};
  }

 private:
  std::int64_t tokens_, top_k_;
  SavedTensor slot_of_row_{*this};
};

}  // namespace

RowGroups::RowGroups(std::int64_t sources, std::vector<std::int64_t> counts)
    : sources_(sources), by_source_(std::move(counts)) {
  check<ValueError>(sources >= 1, "RowGroups: needs at least one source, got ", sources);
  const auto experts = std::ssize(by_source_) / sources;
  check<ValueError>(experts * sources == std::ssize(by_source_),
                    "RowGroups: must have as many counts for each of ", sources, " sources, got ",
                    by_source_.size());
  constexpr std::int64_t kMost = std::int64_t{1} << 53;
  std::int64_t rows = 0;
  for (const auto count : by_source_) {
    check<ValueError>(0 <= count && count <= kMost - rows,
                      "RowGroups: counts must be at least 0, and at most 2^53 together, got ",
                      count);
    rows += count;
  }
  offsets_.resize(static_cast<std::size_t>(experts) + 1);
  for (std::size_t i = 0; i < by_source_.size(); ++i) {
    offsets_[i % static_cast<std::size_t>(experts) + 1] += by_source_[i];
  }
  std::partial_sum(offsets_.begin(), offsets_.end(), offsets_.begin());
}

std::vector<std::int64_t> RowGroups::counts() const {
  std::vector<std::int64_t> counts(static_cast<std::size_t>(experts()));
  for (std::size_t e = 0; e < counts.size(); ++e) counts[e] = offsets_[e + 1] - offsets_[e];
  return counts;
}

std::vector<RowRun> RowGroups::runs() const {
  std::vector<RowRun> runs;
  runs.reserve(by_source_.size());
  auto next = offsets_;  // where each expert's rows of the next source begin
  for (std::size_t i = 0; i < by_source_.size(); ++i) {
    auto& first = next[i % static_cast<std::size_t>(experts())];
    runs.push_back({.first = first, .count = by_source_[i]});
    first += by_source_[i];
  }
  return runs;
}

std::vector<std::int64_t> RowGroups::sums_of_parts(std::int64_t parts) const {
  const auto counts = std::ssize(by_source_);
  check<ValueError>(parts >= 1 && counts % parts == 0, "RowGroups: ", counts,
                    " counts must be cut into equal parts, got ", parts);
  std::vector<std::int64_t> sums;
  for (auto part = by_source_.begin(); std::ssize(sums) < parts; part += counts / parts) {
    sums.push_back(std::accumulate(part, part + counts / parts, std::int64_t{0}));
  }
  return sums;
}

RowPlan plan_routing(const Tensor& indices, std::int64_t num_experts, std::int64_t token_parts) {
  check_operands("plan_routing", indices);
  check<ShapeError>(indices.ndim() == 2, "routing: indices must be [T, K], got ", indices.shape());
  check<ValueError>(num_experts >= 1, "routing: num_experts must be at least 1, got ", num_experts);
  check<DtypeError>(indices.dtype() == Dtype::kInt64, "routing: indices must be int64, got ",
                    indices.dtype());
  check<ValueError>(token_parts >= 1 && indices.dim(0) % token_parts == 0,
                    "routing: token_parts must divide the ", indices.dim(0), " tokens, got ",
                    token_parts);
  const Tensor slots = contiguous(indices);
  const auto experts = slots.data<std::int64_t>();
  std::vector<std::int64_t> counts(static_cast<std::size_t>(token_parts * num_experts));
  const auto slots_of_part = experts.size() / static_cast<std::size_t>(token_parts);
  for (std::size_t slot = 0; slot < experts.size(); ++slot) {
    check<ValueError>(0 <= experts[slot] && experts[slot] < num_experts,
                      "routing: expert index must be in [0, ", num_experts, "), got ",
                      experts[slot], " at token ", slot / static_cast<std::size_t>(indices.dim(1)));
    const auto part = static_cast<std::int64_t>(slot / slots_of_part);
    ++counts[static_cast<std::size_t>(part * num_experts + experts[slot])];
  }
  RowGroups received(token_parts, std::move(counts));
  RowPlan plan{.row_of_slot = Tensor::empty({slots.numel()}, Dtype::kInt64),
               .slot_of_row = Tensor::empty({slots.numel()}, Dtype::kInt64),
               .tokens = indices.dim(0),
               .top_k = indices.dim(1),
               .sent = RowGroups(1, received.counts()),
               .received = token_parts == 1 ? received : received.of_one_micro_batch()};
  auto next = plan.sent.offsets();
  const auto row_of_slot = plan.row_of_slot.mutable_data<std::int64_t>();
  const auto slot_of_row = plan.slot_of_row.mutable_data<std::int64_t>();
  for (std::size_t slot = 0; slot < experts.size(); ++slot) {
    const auto row = next[static_cast<std::size_t>(experts[slot])]++;
    row_of_slot[slot] = row;
    slot_of_row[static_cast<std::size_t>(row)] = static_cast<std::int64_t>(slot);
  }
  return plan;
}

Tensor permute_rows(const Tensor& x, const RowPlan& plan) {
  check_operands("permute_rows", x, plan.slot_of_row);
  const auto rows = plan.slot_of_row.numel();
  check<ShapeError>(x.ndim() == 2, "permute_rows: x must be [T, H], got ", x.shape());
  check<ShapeError>(x.dim(0) * plan.top_k == rows, "permute_rows: the plan has ", rows, " rows, ",
                    plan.top_k, " for each token, got x ", x.shape());
  check_reals("permute_rows", "x", x);
  return apply<PermuteRows>(made_with(x.dim(0), plan.top_k), contiguous(x), plan.row_of_slot,
                            plan.slot_of_row);
}

Tensor unpermute_rows(const Tensor& rows, const RowPlan& plan) {
  check_operands("unpermute_rows", rows, plan.slot_of_row);
  const auto routed = plan.slot_of_row.numel();
  check<ShapeError>(rows.ndim() == 2 && rows.dim(0) == routed, "unpermute_rows: rows must be [",
                    routed, ", H] as planned, got ", rows.shape());
  check_reals("unpermute_rows", "rows", rows);
  return apply<UnpermuteRows>(made_with(plan.tokens, plan.top_k), contiguous(rows),
                              plan.row_of_slot, plan.slot_of_row);
}

}  // namespace moegrad::ops
