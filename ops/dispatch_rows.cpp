// SPDX-License-Identifier: Apache-2.0
// Shapes: S ranks; T tokens, H hidden size, K rows per token, R = T * K rows that are sent, M that
// come.
#include "ops/dispatch_rows.h"

#include <cstddef>
#include <numeric>
#include <span>
#include <string_view>
#include <utility>

#include "framework/autograd/function.h"
#include "framework/runtime/error.h"
#include "framework/runtime/rank_context.h"
#include "framework/tensor/dispatch_any.h"
#include "ops/checks.h"
#include "ops/collective_function.h"
#include "ops/copies.h"
#include "ops/kernels/routing.h"

namespace moegrad::ops {
namespace {

using RowCounts = std::vector<std::int64_t>;

std::int64_t total(const RowCounts& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

/// Both directions of a plan, without a tape.
class RowExchangeOp {
 public:
  RowExchangeOp(std::shared_ptr<ProcessGroup> group, const RowPlan& plan, CollectiveOptions options)
      : group_(std::move(group)),
        tokens_(plan.tokens),
        top_k_(plan.top_k),
        sent_(plan.sent.sums_of_parts(group_->size())),
        received_(plan.received.sums_of_parts(group_->size())),
        places_(plan.received.runs()),
        options_(std::move(options)) {}

  RowExchangeOp backward() const {
    auto op = *this;
    op.options_ = for_backward(options_);
    return op;
  }

  // x [T, H] -> [M, H]
  Tensor dispatch(const Tensor& x, const Tensor& slot_of_row) const {
    const auto row_bytes = bytes_of_row(x);
    Tensor y = Tensor::empty({total(received_), x.dim(1)}, x.dtype());
    auto places = in_places(y.mutable_bytes(), row_bytes);
    // A part of a few bytes would take longer to find than to copy.
    constexpr std::size_t kNarrow = 64;
    if (row_bytes < kNarrow) {
      const Tensor rows = spread(x, slot_of_row);
      exchange(rows, {rows.bytes()}, sent_, y, std::move(places), received_);
    } else {
      exchange(x, rows_of_slots(x, slot_of_row), sent_, y, std::move(places), received_);
    }
    return y;
  }

  // y [M, H] -> [T, H]
  Tensor combine(const Tensor& y, const Tensor& row_of_slot) const {
    Tensor x = Tensor::empty({tokens_, y.dim(1)}, y.dtype());
    exchange(y, in_places(y.bytes(), bytes_of_row(y)), received_, x, sum_of_rows(x, row_of_slot),
             sent_);
    return x;
  }

 private:
  static std::size_t bytes_of_row(const Tensor& x) {
    return static_cast<std::size_t>(x.dim(1) * size_of(x.dtype()));
  }

  // [T, H] -> [R, H]
  Tensor spread(const Tensor& x, const Tensor& slot_of_row) const {
    Tensor rows = Tensor::empty({slot_of_row.numel(), x.dim(1)}, x.dtype());
    dispatch_reals(x.dtype(), [&]<class T>() {
      kernels::spread_tokens<T>(x.data<T>().data(), slot_of_row.data<std::int64_t>().data(),
                                rows.mutable_data<T>().data(), rows.dim(0), top_k_, x.dim(1));
    });
    return rows;
  }

  // The same rows, where they are in x; those that follow each other there are one part.
  ByteParts rows_of_slots(const Tensor& x, const Tensor& slot_of_row) const {
    const auto row_bytes = bytes_of_row(x);
    const auto bytes = x.bytes();
    ByteParts parts;
    parts.reserve(static_cast<std::size_t>(slot_of_row.numel()));
    for (const auto slot : slot_of_row.data<std::int64_t>()) {
      const auto row =
          bytes.subspan(static_cast<std::size_t>(slot / top_k_) * row_bytes, row_bytes);
      if (!parts.empty() && parts.back().data() + parts.back().size() == row.data()) {
        parts.back() = {parts.back().data(), parts.back().size() + row_bytes};
      } else {
        parts.push_back(row);
      }
    }
    return parts;
  }

  template <class Byte>
  std::vector<std::span<Byte>> in_places(std::span<Byte> bytes, std::size_t row_bytes) const {
    std::vector<std::span<Byte>> parts;
    parts.reserve(places_.size());
    for (const auto& run : places_) {
      parts.push_back(bytes.subspan(static_cast<std::size_t>(run.first) * row_bytes,
                                    static_cast<std::size_t>(run.count) * row_bytes));
    }
    return parts;
  }

  // What adds the rows of each token that come back, from where they are, into x.
  GatherConsumer sum_of_rows(Tensor& x, const Tensor& row_of_slot) const {
    const auto out = x.mutable_bytes();
    const auto row_at_slot = row_of_slot.data<std::int64_t>();
    return [out, row_at_slot, keep = row_of_slot, rows = total(sent_), tokens = tokens_, k = top_k_,
            hidden = x.dim(1), dtype = x.dtype()](PeerSpans parts) {
      dispatch_reals(dtype, [&]<class T>() {
        const auto row_bytes = static_cast<std::size_t>(hidden) * sizeof(T);
        if (row_bytes == 0) return;
        std::vector<const T*> row_at;
        row_at.reserve(static_cast<std::size_t>(rows));
        for (auto part : parts) {
          check(part.size() % row_bytes == 0, "combine_rows: rows of ", row_bytes,
                " bytes must come back, got ", part.size(), " bytes");
          for (; !part.empty(); part = part.subspan(row_bytes)) {
            row_at.push_back(reinterpret_cast<const T*>(part.data()));
          }
        }
        kernels::collect_rows<T>(row_at, row_at_slot.data(), reinterpret_cast<T*>(out.data()),
                                 tokens, k, hidden);
      });
    };
  }

  // `input` is in `from`; what comes goes to `output`, which is in `to` or writes there.
  void exchange(const Tensor& from, ByteParts input, RowCounts send, const Tensor& to, auto output,
                RowCounts receive) const {
    for (auto* rows : {&send, &receive}) {
      for (auto& count : *rows) count *= from.dim(1);
    }
    const auto& counters = RankContext::current().shared_counters();
    count_exchange(*counters, send, receive, group_->rank(), size_of(from.dtype()));
    const auto issue = [&] {
      return group_->all_to_all(std::move(input), send, std::move(output), receive, from.dtype(),
                                options_);
    };
    issue_into(from, to, issue, counters);
  }

  std::shared_ptr<ProcessGroup> group_;
  std::int64_t tokens_, top_k_;
  RowCounts sent_, received_;   // by rank
  std::vector<RowRun> places_;  // of what is received, in the order in which it comes
  CollectiveOptions options_;
};

// The two are each other's transpose: the backward of one is the forward of the other.
class DispatchRows final : public Function {
 public:
  explicit DispatchRows(RowExchangeOp op) : op_(std::move(op)) {}

  std::string_view name() const override { return "dispatch_rows"; }
  bool may_run_again() const override { return false; }

  Tensor forward(const Tensor& x, const Tensor& row_of_slot, const Tensor& slot_of_row) {
    row_of_slot_ = row_of_slot;
    return op_.dispatch(x, slot_of_row);
  }

  TensorList backward(const TensorList& grads, InputMask /*needs*/) override {
    return {op_.backward().combine(contiguous(grads[0]), row_of_slot_.unpack()), Tensor(),
            Tensor()};
  }

 private:
  RowExchangeOp op_;
  SavedTensor row_of_slot_{*this};
};

class CombineRows final : public Function {
 public:
  explicit CombineRows(RowExchangeOp op) : op_(std::move(op)) {}

  std::string_view name() const override { return "combine_rows"; }
  bool may_run_again() const override { return false; }

  Tensor forward(const Tensor& rows, const Tensor& row_of_slot, const Tensor& slot_of_row) {
    slot_of_row_ = slot_of_row;
    return op_.combine(rows, row_of_slot);
  }

  TensorList backward(const TensorList& grads, InputMask /*needs*/) override {
    return {op_.backward().dispatch(contiguous(grads[0]), slot_of_row_.unpack()), Tensor(),
            Tensor()};
  }

 private:
  RowExchangeOp op_;
  SavedTensor slot_of_row_{*this};
};

// Each row is a slot's and each slot has a row, as whoever follows the indices relies on.
void check_order(std::string_view op, const RowPlan& plan) {
  check_operands(op, plan.row_of_slot, plan.slot_of_row);
  for (const auto* const indices : {&plan.row_of_slot, &plan.slot_of_row}) {
    check<ShapeError>(indices->ndim() == 1 && indices->is_contiguous(), op,
                      ": the order must be two contiguous vectors, got ", indices->shape());
    check<DtypeError>(indices->dtype() == Dtype::kInt64, op, ": the order must be int64, got ",
                      indices->dtype());
  }
  const auto row_of_slot = plan.row_of_slot.data<std::int64_t>();
  const auto slot_of_row = plan.slot_of_row.data<std::int64_t>();
  const auto rows = std::ssize(slot_of_row);
  const bool fits = plan.tokens >= 0 && plan.top_k >= 1 && rows % plan.top_k == 0 &&
                    rows / plan.top_k == plan.tokens && std::ssize(row_of_slot) == rows;
  check<ValueError>(fits, op, ": the order must have a row for each of ", plan.top_k,
                    " slots of each of ", plan.tokens, " tokens, got ", rows, " rows of ",
                    row_of_slot.size(), " slots");
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto slot = slot_of_row[static_cast<std::size_t>(row)];
    check<ValueError>(
        0 <= slot && slot < rows && row_of_slot[static_cast<std::size_t>(slot)] == row, op,
        ": row_of_slot must be the inverse of slot_of_row, got slot ", slot, " for row ", row);
  }
}

void check_divides(std::string_view op, std::string_view name, const RowGroups& groups, int ranks) {
  const auto counts = std::ssize(groups.counts_by_source());
  check<ValueError>(counts % ranks == 0, op, ": ", name, " must have as many counts for each of ",
                    ranks, " ranks, got ", counts);
}

void check_call(std::string_view op, const std::shared_ptr<ProcessGroup>& group,
                const Tensor& input, std::string_view name, const RowPlan& plan) {
  check<ValueError>(group != nullptr, op, ": needs a process group, got null");
  check_operands(op, input);
  check_order(op, plan);
  check_divides(op, "plan.sent", plan.sent, group->size());
  check_divides(op, "plan.received", plan.received, group->size());
  const auto rows = plan.slot_of_row.numel();
  check<ValueError>(plan.sent.rows() == rows, op, ": plan.sent must add up to the ", rows,
                    " rows of the order, got ", plan.sent.rows());
  check<ShapeError>(input.ndim() == 2, op, ": ", name, " must be a matrix, got ", input.shape());
  check_reals(op, name, input);
}

}  // namespace

Tensor dispatch_rows(const std::shared_ptr<ProcessGroup>& group, const Tensor& x,
                     const RowPlan& plan, const CollectiveOptions& options) {
  check_call("dispatch_rows", group, x, "x", plan);
  check<ShapeError>(x.dim(0) == plan.tokens, "dispatch_rows: x must be [", plan.tokens,
                    ", H] as planned, got ", x.shape());
  return apply<DispatchRows>(made_with(RowExchangeOp(group, plan, options)), contiguous(x),
                             plan.row_of_slot, plan.slot_of_row);
}

Tensor combine_rows(const std::shared_ptr<ProcessGroup>& group, const Tensor& rows,
                    const RowPlan& plan, const CollectiveOptions& options) {
  check_call("combine_rows", group, rows, "rows", plan);
  check<ShapeError>(rows.dim(0) == plan.received.rows(), "combine_rows: rows must be [",
                    plan.received.rows(), ", H] as planned, got ", rows.shape());
  return apply<CombineRows>(made_with(RowExchangeOp(group, plan, options)), contiguous(rows),
                            plan.row_of_slot, plan.slot_of_row);
}

}  // namespace moegrad::ops
