// SPDX-License-Identifier: Apache-2.0
#include "framework/runtime/work_time.h"

#include "framework/runtime/rank_context.h"

namespace moegrad {
namespace {

// How long the calling thread has been in waits and in guards that have ended. Each thread of a
// rank has its own: what one of them waits for is no wait of another's.
std::chrono::nanoseconds& elsewhere() {
  thread_local std::chrono::nanoseconds time{0};
  return time;
}

}  // namespace

std::string_view to_string(WorkClass what) {
  constexpr std::array<std::string_view, kWorkClasses> kNames = {"compute", "communication", "data",
                                                                 "checkpoint"};
  return kNames[static_cast<std::size_t>(what)];
}

void add_wait(std::chrono::nanoseconds time) { elsewhere() += time; }

WorkGuard::WorkGuard(WorkClass what)
    : what_(what), totals_(RankContext::current().work()), elsewhere_before_(elsewhere()) {}

WorkGuard::~WorkGuard() {
  const std::chrono::nanoseconds whole = std::chrono::steady_clock::now() - begin_;
  totals_->add(what_, whole - (elsewhere() - elsewhere_before_));
  elsewhere() = elsewhere_before_ + whole;
}

}  // namespace moegrad
