// SPDX-License-Identifier: Apache-2.0
#include "ops/collective_function.h"

#include <atomic>
#include <chrono>
#include <cstddef>
#include <mutex>
#include <numeric>
#include <utility>

#include "framework/runtime/error.h"
#include "framework/tensor/storage.h"

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
