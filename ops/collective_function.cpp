// SPDX-License-Identifier: Apache-2.0
#include "ops/collective_function.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <mutex>
#include <numeric>
#include <utility>

#include "framework/runtime/error.h"
#include "framework/tensor/storage.h"
#include "ops/checks.h"

namespace moegrad::ops {
namespace {

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
  // Gives up the result. Takes the call back if an exception is under way.
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

}  // namespace

Tensor issue_into(const Tensor& input, Tensor output, const std::function<WorkPtr()>& issue,
                  const std::shared_ptr<Counters>& counters) {
  const auto transfer = std::make_shared<Transfer>(issue(), counters);
  if (input.defined()) input.storage().read_by(transfer);
  output.storage().fill_by(std::make_unique<Filling>(transfer, input));
  return output;
}

void check_collective(std::string_view op, const std::shared_ptr<ProcessGroup>& group,
                      const Tensor& x, bool sums) {
  check<ValueError>(group != nullptr, op, ": needs a process group, got null");
  check_operands(op, x);
  const auto dtype = x.dtype();
  const bool narrow = dtype == Dtype::kBFloat16;
  check<DtypeError>(is_floating(dtype) || dtype == Dtype::kInt64 || (narrow && !sums), op,
                    sums ? ": needs float32, float64 or int64, got "
                         : ": needs float32, float64, bfloat16 or int64, got ",
                    dtype, narrow ? "; convert it with ops::cast" : "");
}

Tensor gather_parts(ProcessGroup& group, const Tensor& x, std::int64_t dim,
                    const CollectiveOptions& options) {
  Shape shape = x.shape();
  shape[dim] *= group.size();
  std::int64_t blocks = 1;  // of each part, side by side in y
  for (std::int64_t i = 0; i < dim; ++i) blocks *= shape[i];
  Tensor y = Tensor::empty(shape, x.dtype());
  const auto copy_out = [bytes = y.mutable_bytes(), blocks](PeerSpans inputs) {
    auto* out = bytes.data();
    for (std::int64_t block = 0; block < blocks; ++block) {
      for (const auto& input : inputs) {
        const auto size = static_cast<std::int64_t>(input.size()) / blocks;
        out = std::copy_n(input.data() + block * size, size, out);
      }
    }
  };
  return issue_into(x, y,
                    [&] { return group.all_gather(x.bytes(), x.dtype(), copy_out, options); });
}

Tensor scatter_sum(ProcessGroup& group, const Tensor& x, const CollectiveOptions& options) {
  Shape shape = x.shape();
  shape[0] /= group.size();
  Tensor y = Tensor::empty(shape, x.dtype());
  const auto bytes = y.mutable_bytes();
  return issue_into(x, y, [&] {
    return group.reduce_scatter({x.bytes()}, bytes, x.dtype(), ReduceOp::kSum, options);
  });
}

Tensor sum_in_place(ProcessGroup& group, const Tensor& x, const CollectiveOptions& options) {
  Tensor y = x;
  const auto bytes = y.mutable_bytes();
  return issue_into({}, y,
                    [&] { return group.all_reduce(bytes, x.dtype(), ReduceOp::kSum, options); });
}

CollectiveOptions for_tile(CollectiveOptions options, std::int64_t i) {
  if (i % 2 != 0) options.queue = CollectiveQueue::kOddTiles;
  return options;
}

CollectiveOptions for_backward(CollectiveOptions options) {
  options.label += options.label.empty() ? "backward" : ", backward";
  return options;
}

void count_exchange(Counters& counters, std::span<const std::int64_t> sent,
                    std::span<const std::int64_t> received, int own, std::int64_t element_bytes) {
  const auto with_others = [&](std::span<const std::int64_t> counts) {
    const auto all = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
    return (all - counts[static_cast<std::size_t>(own)]) * element_bytes;
  };
  counters.exchanged_bytes_sent += with_others(sent);
  counters.exchanged_bytes_received += with_others(received);
}

}  // namespace moegrad::ops
