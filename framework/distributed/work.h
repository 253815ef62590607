// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>

#include "framework/distributed/collective_request.h"
#include "framework/distributed/traffic.h"
#include "framework/runtime/error.h"
#include "framework/runtime/span.h"

namespace moegrad {

/// A collective that cannot complete: mismatched calls, a missing or failed rank, a deadline.
/// The message names rank, operation, group and sequence number.
class CollectiveError : public Error {
 public:
  using Error::Error;
};

/// When a collective ran, and what it took on this rank.
struct CollectiveTiming {
  SpanClock::time_point met;         // all ranks had joined
  SpanClock::time_point ended;       // all ranks' parts were done
  std::chrono::nanoseconds busy{0};  // CPU time of this rank's part
  std::chrono::nanoseconds work{0};  // until its part was done, from when all could begin
  std::int64_t wire_bytes = 0;       // the most that any rank received from others
  // What this rank has sent to ranks on other hosts.
  std::int64_t host_messages = 0;  // with those in which ranks agree on the call
  std::int64_t host_bytes = 0;     // of the payload
};

/// A running collective. The call's buffers must stay valid until wait() has returned. A Work that
/// is dropped blocks until its call has ended, since until then others may read its buffers. A
/// consumer cannot wait: one that drops a Work fails the launch.
///
/// A backend derives from it. What is the same for all backends is here: the time that a rank waits
/// is counted, and spans are recorded (Note [Spans]).
class Work {
 public:
  virtual ~Work() = default;
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  /// Blocks until the collective is done. Throws what went wrong (CollectiveError, or the
  /// consumer's exception).
  void wait();
  /// wait() for a call whose result is no longer wanted. If it failed, the next call in its group
  /// reports the failure.
  void abandon();
  /// Blocks until the collective has ended, well or not: for those who need its buffers, which may
  /// be threads of other ranks.
  void await_end();
  /// True if wait() would not block.
  bool test();
  /// What wait() throws; null while the collective is under way, and if it is done.
  std::exception_ptr error();
  /// Nothing while the collective is under way, and if it failed.
  std::optional<CollectiveTiming> timing();

 protected:
  Work() = default;

  virtual const CollectiveRequest& request() const = 0;
  /// Blocks until the call has ended, well or not.
  virtual void block() = 0;
  virtual bool has_ended() = 0;
  /// What went wrong; null if nothing did. Called after the end.
  virtual std::exception_ptr failure() = 0;
  /// Called after a good end.
  virtual CollectiveTiming times() = 0;

  /// A backend's destructor must call it, with what blocks until no one reads the buffers.
  void drop(const std::function<void()>& release);

 private:
  friend class ProcessGroup;

  void count_wait(SpanClock::time_point begin);
  void record(SpanClock::time_point begin);

  std::shared_ptr<Traffic> traffic_;    // of the group that was called; null if it has one rank
  std::atomic<bool> recorded_ = false;  // test() may run beside wait()
};
using WorkPtr = std::shared_ptr<Work>;

}  // namespace moegrad
