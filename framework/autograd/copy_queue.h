// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "framework/distributed/launch_options.h"
#include "framework/distributed/link_model.h"
#include "framework/runtime/counters.h"
#include "framework/tensor/storage.h"

namespace moegrad {

/// What others give way to, lowest first.
enum class CopyPriority : std::uint8_t { kOut, kAhead, kNow };

/// Moves bytes in a thread of its own, one copy after the other, over a modelled link. A copy takes
/// bytes / bytes_per_second of the link, and arrives `latency` after that, which keeps no other
/// from the link. `jitter` delays each. It moves in pieces of kPiece bytes, between which one of a
/// higher priority goes first; those of one priority go in the order in which they were asked for.
class CopyQueue {
 public:
  class Copy final : public ReaderOfBytes {
   public:
    /// Blocks until it has arrived, which the rank counts (swap_wait). Throws what went wrong, each
    /// time.
    void wait();
    void await_end() override;
    bool has_ended() const override;

   private:
    friend class CopyQueue;

    void end(std::chrono::steady_clock::time_point arrives_at, std::exception_ptr failure);

    std::function<const std::byte*()> source_;
    std::byte* target_ = nullptr;
    const std::byte* from_ = nullptr;  // once it has begun
    std::int64_t left_ = 0;
    CopyPriority priority_{};
    bool has_begun_ = false;  // under the queue's mutex
    std::shared_ptr<Counters> counters_;
    mutable std::mutex mutex_;
    std::condition_variable ended_;
    bool has_ended_ = false;
    std::chrono::steady_clock::time_point arrives_at_;
    std::exception_ptr failure_;
  };
  using CopyPtr = std::shared_ptr<Copy>;
  static constexpr std::int64_t kPiece = std::int64_t{1} << 20;

  CopyQueue(const LinkModel& link, const Jitter& jitter);
  /// Ends the thread after the copies that have been asked for.
  ~CopyQueue();
  CopyQueue(const CopyQueue&) = delete;
  CopyQueue& operator=(const CopyQueue&) = delete;

  /// `source` says where the bytes are, and may wait for them.
  CopyPtr begin(std::function<const std::byte*()> source, std::byte* target, std::int64_t bytes,
                CopyPriority priority);
  /// Takes a copy back, which ends it, if it has not begun. Returns whether that is so.
  bool take_back(const CopyPtr& copy);

 private:
  void start();
  void run(int rank);

  LinkModel link_;
  Jitter jitter_;
  std::thread thread_;  // from the first copy on
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<CopyPtr> copies_;  // that have not ended, the next one first
  bool ending_ = false;
};

}  // namespace moegrad
