// SPDX-License-Identifier: Apache-2.0
// Shapes: R ranks, n rows of x.
#include "ops/collectives.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

#include "framework/autograd/checkpoint.h"
#include "framework/autograd/function.h"
#include "framework/runtime/counters.h"
#include "framework/runtime/error.h"
#include "framework/runtime/rank_context.h"
#include "framework/tensor/fill.h"
#include "framework/tensor/pending_bytes.h"
#include "ops/checks.h"

namespace moegrad::ops {
namespace {

using Group = std::shared_ptr<ProcessGroup>;
using RowCounts = std::vector<std::int64_t>;

// A collective under way: what it reads waits for its end, what it fills for its result.
class Transfer final : public ReaderOfBytes {
 public:
  /// `counters`, if it is not null, counts the time that wait() takes (exchange_wait).
  Transfer(WorkPtr work, std::shared_ptr<Counters> counters)
      : work_(std::move(work)), counters_(std::move(counters)) {}

  void wait() {
    const std::lock_guard lock(mutex_);
    if (work_ != nullptr) {
      const auto begin = std::chrono::steady_clock::now();
      work_->wait();
      const std::chrono::nanoseconds time = std::chrono::steady_clock::now() - begin;
      if (counters_ != nullptr) counters_->exchange_wait += time.count();
    }
    end();
  }
  // What went wrong shows where the result is used.
  void await_end() override {
    if (has_ended()) return;
    const std::lock_guard lock(mutex_);
    if (work_ != nullptr) work_->await_end();
    ended_.store(true, std::memory_order_release);
  }
  // Nobody wants the result any more. Takes the call back if an exception is under way.
  void drop() {
    const std::lock_guard lock(mutex_);
    end();
  }
  bool has_ended() const override { return ended_.load(std::memory_order_acquire); }

 private:
  void end() {
    work_.reset();
    ended_.store(true, std::memory_order_release);
  }

  std::atomic<bool> ended_ = false;
  std::mutex mutex_;
  WorkPtr work_;
  std::shared_ptr<Counters> counters_;
};

// What the tensor that is filled has: the transfer and, until that has ended, the tensor it reads.
class Filling final : public PendingBytes {
 public:
  Filling(std::shared_ptr<Transfer> transfer, Tensor input)
      : transfer_(std::move(transfer)), input_(std::move(input)) {}
  ~Filling() override { transfer_->drop(); }
  Filling(const Filling&) = delete;
  Filling& operator=(const Filling&) = delete;

  void wait() override {
    if (done_.load(std::memory_order_acquire)) return;
    Tensor read;
    const std::lock_guard lock(mutex_);
    transfer_->wait();
    read = std::exchange(input_, Tensor());
    done_.store(true, std::memory_order_release);
  }

 private:
  std::shared_ptr<Transfer> transfer_;
  std::atomic<bool> done_ = false;
  std::mutex mutex_;
  Tensor input_;
};

// `output`, which the call that `issue` makes will have filled.
template <class Issue>
Tensor filled(const Tensor& input, Tensor output, const Issue& issue,
              const std::shared_ptr<Counters>& counters = nullptr) {
  const auto transfer = std::make_shared<Transfer>(issue(), counters);
  if (input.defined()) input.storage().read_by(transfer);
  output.storage().fill_by(std::make_unique<Filling>(transfer, input));
  return output;
}

Shape with_rows(const Tensor& x, std::int64_t rows) {
  Shape shape = x.shape();
  shape[0] = rows;
  return shape;
}

std::int64_t row_elements(const Tensor& x) {
  std::int64_t elements = 1;
  for (std::int64_t dim = 1; dim < x.ndim(); ++dim) elements *= x.dim(dim);
  return elements;
}

// --- the collectives, on contiguous tensors

Tensor gather_from_ranks(ProcessGroup& group, const Tensor& x, const CollectiveOptions& options) {
  Tensor y = Tensor::empty(with_rows(x, x.dim(0) * group.size()), x.dtype());
  const auto copy_out = [bytes = y.mutable_bytes()](PeerSpans inputs) {
    auto* out = bytes.data();
    for (const auto& input : inputs) out = std::copy(input.begin(), input.end(), out);
  };
  return filled(x, y, [&] { return group.all_gather(x.bytes(), x.dtype(), copy_out, options); });
}

Tensor scatter_sum(ProcessGroup& group, const Tensor& x, const CollectiveOptions& options) {
  Tensor y = Tensor::empty(with_rows(x, x.dim(0) / group.size()), x.dtype());
  const auto bytes = y.mutable_bytes();
  return filled(x, y, [&] {
    return group.reduce_scatter({x.bytes()}, bytes, x.dtype(), ReduceOp::kSum, options);
  });
}

Tensor sum_over_ranks(ProcessGroup& group, const Tensor& x, const CollectiveOptions& options) {
  Tensor y = clone(x);
  const auto bytes = y.mutable_bytes();
  return filled({}, y, [&] { return group.all_reduce(bytes, x.dtype(), ReduceOp::kSum, options); });
}

Tensor of_root(ProcessGroup& group, const Tensor& x, int root, const CollectiveOptions& options) {
  Tensor y = clone(x);
  const auto bytes = y.mutable_bytes();
  return filled({}, y, [&] { return group.broadcast(bytes, root, x.dtype(), options); });
}

Tensor exchange(ProcessGroup& group, const Tensor& x, RowCounts send, RowCounts receive,
                const CollectiveOptions& options) {
  Tensor y = Tensor::empty(
      with_rows(x, std::accumulate(receive.begin(), receive.end(), std::int64_t{0})), x.dtype());
  for (auto* rows : {&send, &receive}) {
    for (auto& count : *rows) count *= row_elements(x);
  }
  const auto& counters = RankContext::current().shared_counters();
  const auto own = static_cast<std::size_t>(group.rank());
  counters->exchanged_bytes_sent += (x.numel() - send[own]) * size_of(x.dtype());
  counters->exchanged_bytes_received += (y.numel() - receive[own]) * size_of(x.dtype());
  const auto bytes = y.mutable_bytes();
  return filled(
      x, y, [&] { return group.all_to_all(x.bytes(), send, bytes, receive, x.dtype(), options); },
      counters);
}

Tensor sent(ProcessGroup& group, const Tensor& x, int to, int tag,
            const CollectiveOptions& options) {
  return filled(x, Tensor::zeros({}, is_floating(x.dtype()) ? x.dtype() : Dtype::kFloat32),
                [&] { return group.send(x.bytes(), to, tag, x.dtype(), options); });
}

Tensor received(ProcessGroup& group, const Shape& shape, Dtype dtype, int from, int tag,
                const CollectiveOptions& options) {
  Tensor y = Tensor::empty(shape, dtype);
  const auto bytes = y.mutable_bytes();
  return filled({}, y, [&] { return group.recv(bytes, from, tag, dtype, options); });
}

// What send and recv bring back must not meet a message of the same tag that goes the same way: two
// ranks may both send in forward.
CollectiveOptions of_gradients(CollectiveOptions options) {
  options.queue = CollectiveQueue::kGradients;
  return options;
}

// --- on the tape

// One collective there, its conjugate back.
class Collective final : public Function {
 public:
  using Call = std::function<Tensor(const Tensor&, const CollectiveOptions&)>;

  Collective(std::string_view name, CollectiveOptions options, Call there, Call back)
      : name_(name),
        options_(std::move(options)),
        there_(std::move(there)),
        back_(std::move(back)) {}

  std::string_view name() const override { return name_; }
  Tensor forward(const Tensor& x) { return there_(x.is_contiguous() ? x : clone(x), options_); }
  TensorList backward(const TensorList& grads, InputMask /*needs*/) override {
    auto options = options_;
    options.label += options.label.empty() ? "backward" : ", backward";
    return {back_(grads[0].is_contiguous() ? grads[0] : clone(grads[0]), options)};
  }

 private:
  std::string_view name_;
  CollectiveOptions options_;
  Call there_, back_;
};

Tensor apply_collective(std::string_view name, const Tensor& x, const CollectiveOptions& options,
                        Collective::Call there, Collective::Call back) {
  return apply<Collective>(made_with(name, options, std::move(there), std::move(back)), x);
}

void check_call(std::string_view op, const Group& group, const Tensor& x) {
  check<ValueError>(group != nullptr, op, ": needs a process group, got null");
  check_operands(op, x);
  const auto dtype = x.dtype();
  check<DtypeError>(is_floating(dtype) || dtype == Dtype::kInt64, op,
                    ": needs float32, float64 or int64, got ", dtype);
}

void check_rows(std::string_view op, const Group& group, const Tensor& x) {
  check_call(op, group, x);
  check<ShapeError>(x.ndim() >= 1, op, ": x must have rows, got ", x.shape());
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

// Those of one side of all_to_all; `rows`: how many the tensor has, if that is known.
RowCounts checked_rows(std::string_view side, std::span<const std::int64_t> counts,
                       const Group& group, std::optional<std::int64_t> rows) {
  check<ValueError>(std::ssize(counts) == group->size(), "all_to_all: ", side,
                    "_rows must have one count for each of ", group->size(), " ranks, got ",
                    counts.size());
  constexpr std::int64_t kMost = std::int64_t{1} << 53;
  std::int64_t total = 0;
  for (const auto count : counts) {
    check<ValueError>(0 <= count && count <= kMost - total, "all_to_all: ", side,
                      "_rows must be at least 0, and at most 2^53 together, got ", count);
    total += count;
  }
  check<ShapeError>(!rows || total == *rows, "all_to_all: ", side, "_rows must add up to the ",
                    rows.value_or(0), " rows of x, got ", total);
  return {counts.begin(), counts.end()};
}

}  // namespace

Tensor all_gather(const Group& group, const Tensor& x, const CollectiveOptions& options) {
  check_rows("all_gather", group, x);
  return apply_collective(
      "all_gather", x, options,
      [group](const Tensor& t, const CollectiveOptions& o) {
        return gather_from_ranks(*group, t, o);
      },
      [group](const Tensor& t, const CollectiveOptions& o) { return scatter_sum(*group, t, o); });
}

Tensor reduce_scatter(const Group& group, const Tensor& x, const CollectiveOptions& options) {
  check_rows("reduce_scatter", group, x);
  check<ShapeError>(x.dim(0) % group->size() == 0, "reduce_scatter: the rows of x ", x.shape(),
                    " must divide by the ", group->size(), " ranks");
  return apply_collective(
      "reduce_scatter", x, options,
      [group](const Tensor& t, const CollectiveOptions& o) { return scatter_sum(*group, t, o); },
      [group](const Tensor& t, const CollectiveOptions& o) {
        return gather_from_ranks(*group, t, o);
      });
}

Tensor all_reduce(const Group& group, const Tensor& x, const CollectiveOptions& options) {
  check_call("all_reduce", group, x);
  const auto call = [group](const Tensor& t, const CollectiveOptions& o) {
    return sum_over_ranks(*group, t, o);
  };
  return apply_collective("all_reduce", x, options, call, call);
}

Tensor broadcast(const Group& group, const Tensor& x, int root, const CollectiveOptions& options) {
  check_call("broadcast", group, x);
  check_rank("broadcast", "root", root, group);
  return apply_collective(
      "broadcast", x, options,
      [group, root](const Tensor& t, const CollectiveOptions& o) {
        return of_root(*group, t, root, o);
      },
      [group, root](const Tensor& t, const CollectiveOptions& o) {
        Tensor total = sum_over_ranks(*group, t, o);
        return group->rank() == root ? total : zeros_like(t);
      });
}

Tensor all_to_all(const Group& group, const Tensor& x, std::span<const std::int64_t> send_rows,
                  std::span<const std::int64_t> recv_rows, const CollectiveOptions& options) {
  check_rows("all_to_all", group, x);
  auto there = checked_rows("send", send_rows, group, x.dim(0));
  auto back = checked_rows("recv", recv_rows, group, std::nullopt);
  return apply_collective(
      "all_to_all", x, options,
      [group, there, back](const Tensor& t, const CollectiveOptions& o) {
        return exchange(*group, t, there, back, o);
      },
      [group, there, back](const Tensor& t, const CollectiveOptions& o) {
        return exchange(*group, t, back, there, o);
      });
}

Tensor send(const Group& group, const Tensor& x, int to, int tag,
            const CollectiveOptions& options) {
  check_call("send", group, x);
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
  check_call("recv", group, like);
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
