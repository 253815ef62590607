// SPDX-License-Identifier: Apache-2.0
// Shapes: R ranks, n rows of x.
#include "ops/collectives.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

#include "framework/autograd/checkpoint.h"
#include "framework/autograd/function.h"
#include "framework/runtime/error.h"
#include "framework/runtime/rank_context.h"
#include "framework/tensor/fill.h"
#include "ops/checks.h"
#include "ops/collective_function.h"
#include "ops/copies.h"

namespace moegrad::ops {
namespace {

using Group = std::shared_ptr<ProcessGroup>;
using RowCounts = std::vector<std::int64_t>;

Shape with_rows(const Tensor& x, std::int64_t rows) {
  Shape shape = x.shape();
  shape[0] = rows;
  return shape;
}

Tensor sum_over_ranks(ProcessGroup& group, const Tensor& x, const CollectiveOptions& options) {
  return sum_in_place(group, moegrad::clone(x), options);
}

std::int64_t row_elements(const Tensor& x) {
  std::int64_t elements = 1;
  for (std::int64_t dim = 1; dim < x.ndim(); ++dim) elements *= x.dim(dim);
  return elements;
}

// --- the collectives, on contiguous tensors

Tensor of_root(ProcessGroup& group, const Tensor& x, int root, const CollectiveOptions& options) {
  Tensor y = moegrad::clone(x);
  const auto bytes = y.mutable_bytes();
  return issue_into({}, y, [&] { return group.broadcast(bytes, root, x.dtype(), options); });
}

Tensor exchange(ProcessGroup& group, const Tensor& x, RowCounts send, RowCounts receive,
                const CollectiveOptions& options) {
  Tensor y = Tensor::empty(
      with_rows(x, std::accumulate(receive.begin(), receive.end(), std::int64_t{0})), x.dtype());
  for (auto* rows : {&send, &receive}) {
    for (auto& count : *rows) count *= row_elements(x);
  }
  const auto& counters = RankContext::current().shared_counters();
  count_exchange(*counters, send, receive, group.rank(), size_of(x.dtype()));
  const auto bytes = y.mutable_bytes();
  return issue_into(
      x, y, [&] { return group.all_to_all(x.bytes(), send, bytes, receive, x.dtype(), options); },
      counters);
}

Tensor sent(ProcessGroup& group, const Tensor& x, int to, int tag,
            const CollectiveOptions& options) {
  return issue_into(x, Tensor::zeros({}, is_floating(x.dtype()) ? x.dtype() : Dtype::kFloat32),
                    [&] { return group.send(x.bytes(), to, tag, x.dtype(), options); });
}

Tensor received(ProcessGroup& group, const Shape& shape, Dtype dtype, int from, int tag,
                const CollectiveOptions& options) {
  Tensor y = Tensor::empty(shape, dtype);
  const auto bytes = y.mutable_bytes();
  return issue_into({}, y, [&] { return group.recv(bytes, from, tag, dtype, options); });
}

// What send and recv bring back must not meet a message of the same tag that goes the same way: two
// ranks may both send in forward.
CollectiveOptions of_gradients(CollectiveOptions options) {
  options.queue = CollectiveQueue::kGradients;
  return options;
}

// --- on the tape

// One collective in forward, its conjugate in backward.
class Collective final : public Function {
 public:
  using Call = std::function<Tensor(const Tensor&, const CollectiveOptions&)>;

  Collective(std::string_view name, CollectiveOptions options, Call call, Call conjugate)
      : name_(name),
        options_(std::move(options)),
        call_(std::move(call)),
        conjugate_(std::move(conjugate)) {}

  std::string_view name() const override { return name_; }
  bool may_run_again() const override { return false; }
  Tensor forward(const Tensor& x) {
    return call_(x.is_contiguous() ? x : moegrad::clone(x), options_);
  }
  TensorList backward(const TensorList& grads, InputMask /*needs*/) override {
    const auto& grad = grads[0];
    return {conjugate_(grad.is_contiguous() ? grad : moegrad::clone(grad), for_backward(options_))};
  }

 private:
  std::string_view name_;
  CollectiveOptions options_;
  Call call_, conjugate_;
};

Tensor apply_collective(std::string_view name, const Tensor& x, const CollectiveOptions& options,
                        Collective::Call call, Collective::Call conjugate) {
  return apply<Collective>(made_with(name, options, std::move(call), std::move(conjugate)), x);
}

void check_rows(std::string_view op, const Group& group, const Tensor& x, bool sums = false) {
  check_collective(op, group, x, sums);
  check<ShapeError>(x.ndim() >= 1, op, ": x must have rows, got ", x.shape());
}

// The `counts` as a vector: one for each rank, which add up to `rows`, if that is given.
RowCounts checked_row_counts(std::string_view name, std::span<const std::int64_t> counts, int ranks,
                             std::optional<std::int64_t> rows = std::nullopt) {
  check<ValueError>(std::ssize(counts) == ranks, "all_to_all: ", name,
                    " must have one count for each of ", ranks, " ranks, got ", counts.size());
  constexpr std::int64_t kMost = std::int64_t{1} << 53;
  std::int64_t total = 0;
  for (const auto count : counts) {
    check<ValueError>(0 <= count && count <= kMost - total, "all_to_all: ", name,
                      " must be at least 0, and at most 2^53 together, got ", count);
    total += count;
  }
  check<ShapeError>(!rows || total == *rows, "all_to_all: ", name, " must add up to the ",
                    rows.value_or(0), " rows of x, got ", total);
  return {counts.begin(), counts.end()};
}

void check_rank(std::string_view op, std::string_view what, int rank, const Group& group) {
  check<ValueError>(0 <= rank && rank < group->size(), op, ": ", what, " must be in [0, ",
                    group->size(), "), got ", rank);
}

// What send and recv bring back has a queue, in which tags alone tell messages apart.
void check_queue(std::string_view op, const CollectiveOptions& options) {
  check<ValueError>(options.queue == CollectiveQueue::kDefault, op,
                    ": options.queue must be the default one, got '", to_string(options.queue),
                    "'; tags tell messages apart");
}

// Backward would run the body of a checkpoint, and so a message in it, a second time: the other
// rank is not asked again.
void check_not_recomputed(std::string_view op) {
  check(!in_checkpoint_forward(), op,
        ": must not be called in a recomputed module or the body of a checkpoint, got such a call");
}

}  // namespace

Tensor all_gather(const Group& group, const Tensor& x, const CollectiveOptions& options) {
  check_rows("all_gather", group, x);
  return apply_collective(
      "all_gather", x, options,
      [group](const Tensor& t, const CollectiveOptions& o) {
        return gather_parts(*group, t, 0, o);
      },
      [group](const Tensor& t, const CollectiveOptions& o) {
        return scatter_sum(*group, widened(t), o);
      });
}

Tensor reduce_scatter(const Group& group, const Tensor& x, const CollectiveOptions& options) {
  check_rows("reduce_scatter", group, x, /*sums=*/true);
  check<ShapeError>(x.dim(0) % group->size() == 0, "reduce_scatter: the rows of x ", x.shape(),
                    " must divide by the ", group->size(), " ranks");
  return apply_collective(
      "reduce_scatter", x, options,
      [group](const Tensor& t, const CollectiveOptions& o) { return scatter_sum(*group, t, o); },
      [group](const Tensor& t, const CollectiveOptions& o) {
        return gather_parts(*group, t, 0, o);
      });
}

Tensor all_reduce(const Group& group, const Tensor& x, const CollectiveOptions& options) {
  check_collective("all_reduce", group, x, /*sums=*/true);
  const auto call = [group](const Tensor& t, const CollectiveOptions& o) {
    return sum_over_ranks(*group, t, o);
  };
  return apply_collective("all_reduce", x, options, call, call);
}

Tensor broadcast(const Group& group, const Tensor& x, int root, const CollectiveOptions& options) {
  check_collective("broadcast", group, x);
  check_rank("broadcast", "root", root, group);
  return apply_collective(
      "broadcast", x, options,
      [group, root](const Tensor& t, const CollectiveOptions& o) {
        return of_root(*group, t, root, o);
      },
      [group, root](const Tensor& t, const CollectiveOptions& o) {
        Tensor total = sum_over_ranks(*group, widened(t), o);
        return group->rank() == root ? total : zeros_like(t);
      });
}

Tensor all_to_all(const Group& group, const Tensor& x, std::span<const std::int64_t> send_rows,
                  std::span<const std::int64_t> recv_rows, const CollectiveOptions& options) {
  check_rows("all_to_all", group, x);
  auto sent = checked_row_counts("send_rows", send_rows, group->size(), x.dim(0));
  auto received = checked_row_counts("recv_rows", recv_rows, group->size());
  return apply_collective(
      "all_to_all", x, options,
      [group, sent, received](const Tensor& t, const CollectiveOptions& o) {
        return exchange(*group, t, sent, received, o);
      },
      [group, sent, received](const Tensor& t, const CollectiveOptions& o) {
        return exchange(*group, t, received, sent, o);
      });
}

Tensor send(const Group& group, const Tensor& x, int to, int tag,
            const CollectiveOptions& options) {
  check_collective("send", group, x);
  check_rank("send", "to", to, group);
  check_queue("send", options);
  check_not_recomputed("send");
  return apply_collective(
      "send", x, options,
      [group, to, tag](const Tensor& t, const CollectiveOptions& o) {
        return sent(*group, t, to, tag, o);
      },
      [group, to, tag, shape = x.shape(), dtype = x.dtype()](const Tensor&,
                                                             const CollectiveOptions& o) {
        return received(*group, shape, dtype, to, tag, of_gradients(o));
      });
}

Tensor recv(const Group& group, const Tensor& like, int from, int tag,
            const CollectiveOptions& options) {
  check_collective("recv", group, like);
  check_rank("recv", "from", from, group);
  check_queue("recv", options);
  check_not_recomputed("recv");
  // The gradient is on its way until the tape is freed: backward does not wait for its receiver.
  const auto returned = std::make_shared<Tensor>();
  return apply_collective(
      "recv", like, options,
      [group, from, tag](const Tensor& t, const CollectiveOptions& o) {
        return received(*group, t.shape(), t.dtype(), from, tag, o);
      },
      [group, from, tag, returned](const Tensor& t, const CollectiveOptions& o) {
        *returned = sent(*group, t, from, tag, of_gradients(o));
        return zeros_like(t);
      });
}

}  // namespace moegrad::ops
