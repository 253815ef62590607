// SPDX-License-Identifier: Apache-2.0
#include "framework/autograd/copy_queue.h"

#include <algorithm>
#include <cstring>
#include <system_error>
#include <utility>

#include "framework/runtime/be_scheduled_promptly.h"
#include "framework/runtime/error.h"
#include "framework/runtime/rank_context.h"
#include "framework/runtime/same_rank.h"
#include "framework/runtime/work_time.h"

namespace moegrad {

using Clock = std::chrono::steady_clock;

void CopyQueue::Copy::wait() {
  await_end();
  const std::lock_guard lock(mutex_);
  if (failure_ != nullptr) std::rethrow_exception(failure_);
}

void CopyQueue::Copy::await_end() {
  const auto begin = Clock::now();
  {
    std::unique_lock lock(mutex_);
    if (has_ended_ && arrives_at_ <= begin) return;
    ended_.wait(lock, [this] { return has_ended_; });
  }
  std::this_thread::sleep_until(arrives_at_);
  const auto end = Clock::now();
  counters_->swap_wait += std::chrono::nanoseconds(end - begin).count();
  add_wait(end - begin);
  auto* const rank = RankContext::find();
  if (rank == nullptr || !rank->spans().records(SpanKind::kWait)) return;
  rank->spans().add({.name = "wait for swap", .kind = SpanKind::kWait, .begin = begin, .end = end});
}

bool CopyQueue::Copy::has_ended() const {
  const std::lock_guard lock(mutex_);
  return has_ended_ && arrives_at_ <= Clock::now();
}

void CopyQueue::Copy::end(Clock::time_point arrives_at, std::exception_ptr failure) {
  {
    const std::lock_guard lock(mutex_);
    failure_ = std::move(failure);
    arrives_at_ = arrives_at;
    has_ended_ = true;
  }
  ended_.notify_all();
}

CopyQueue::CopyQueue(const LinkModel& link, const Jitter& jitter) : link_(link), jitter_(jitter) {}

void CopyQueue::start() {
  try {
    thread_ = std::thread([this, rank = same_rank()] {
      RankContext context(rank);
      const RankContextGuard guard(context);
      be_scheduled_promptly();
      run(rank.rank);
    });
  } catch (const std::system_error& error) {
    throw too_few_threads("swap space", "thread that copies", 1, 0, error);
  }
}

CopyQueue::~CopyQueue() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

CopyQueue::CopyPtr CopyQueue::begin(std::function<const std::byte*()> source, std::byte* target,
                                    std::int64_t bytes, CopyPriority priority) {
  auto copy = std::make_shared<Copy>();
  copy->source_ = std::move(source);
  copy->target_ = target;
  copy->left_ = bytes;
  copy->priority_ = priority;
  copy->counters_ = RankContext::current().shared_counters();
  {
    const std::lock_guard lock(mutex_);
    if (!thread_.joinable()) start();
    const auto behind = std::ranges::find_if(
        copies_, [&](const CopyPtr& other) { return other->priority_ < priority; });
    copies_.insert(behind, copy);
  }
  changed_.notify_all();
  return copy;
}

bool CopyQueue::take_back(const CopyPtr& copy) {
  {
    const std::lock_guard lock(mutex_);
    if (copy->has_begun_ || std::erase(copies_, copy) == 0) return false;
  }
  copy->end(Clock::now(), nullptr);
  return true;
}

void CopyQueue::run(int rank) {
  std::int64_t begun = 0;
  Clock::time_point link_is_free;
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return !copies_.empty() || ending_; });
    if (copies_.empty()) return;
    const auto copy = copies_.front();
    const bool is_first_piece = !std::exchange(copy->has_begun_, true);
    lock.unlock();
    std::exception_ptr failure;
    if (is_first_piece) {
      std::this_thread::sleep_for(jitter_.delay(rank, "swap", begun++));
      try {
        copy->from_ = copy->source_();
      } catch (...) {
        failure = std::current_exception();
        copy->left_ = 0;
      }
      link_is_free = Clock::now();
    }
    const auto bytes = std::min(copy->left_, kPiece);
    if (bytes > 0) std::memcpy(copy->target_, copy->from_, static_cast<std::size_t>(bytes));
    copy->from_ += bytes;
    copy->target_ += bytes;
    copy->left_ -= bytes;
    link_is_free += link_.duration(bytes) - link_.latency;
    std::this_thread::sleep_until(link_is_free);
    const bool ends = copy->left_ == 0;
    if (ends) copy->end(link_is_free + link_.latency, failure);
    lock.lock();
    if (ends) std::erase(copies_, copy);
  }
}

}  // namespace moegrad
