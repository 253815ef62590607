// SPDX-License-Identifier: Apache-2.0
// How one failure becomes an error on every rank, and a report.
#include <utility>

#include "framework/distributed/threads/thread_hub.h"
#include "framework/runtime/log.h"

namespace moegrad {

void ThreadHub::fail(const std::string& cause, const CollectiveRequest* origin) {
  if (!failure_.empty()) return;
  report_ = origin == nullptr ? cause : describe(*origin) + ": " + cause;
  failure_ = origin == nullptr ? cause : "aborted by " + report_;
  report_ += "\nlast operations of each rank:\n" + history();
  for (const auto& group : groups_) {
    for (const auto& [key, channel] : group->channels) {
      for (const auto& queue : channel->pending) {
        for (const auto& call : queue) {
          call->aborted = origin == nullptr || call->channel != origin->channel ||
                          call->sequence != origin->sequence;
          call->error = describe(*call) + ": " + (call->aborted ? failure_ : cause);
        }
      }
      if (channel->running == 0) end_failed_calls(*channel);
    }
  }
}

void ThreadHub::fail_by_exception(int rank, const std::string& what) {
  if (failure_.empty()) rank_threw_ = true;
  fail("rank " + std::to_string(rank) + " failed: " + what);
}

void ThreadHub::fail_by_withdrawal(int rank) {
  const auto& withdrawn = ranks_[static_cast<std::size_t>(rank)]->withdrawn;
  if (!withdrawn.has_value()) return;
  fail("rank " + std::to_string(rank) + " gave up " + describe(*withdrawn) +
       " because of an exception");
}

void ThreadHub::end_failed_calls(Channel& channel) {
  for (std::size_t slot = 0; slot < channel.size(); ++slot) {
    auto& queue = channel.pending[slot];
    auto*& seat = channel.seats[slot];
    // A consumer that is given up keeps its own call.
    if (seat != nullptr && !seat->inside_step) seat = nullptr;
    while (!queue.empty() && queue.back().get() != seat) {
      queue.back()->done = true;
      queue.back()->finished.notify_all();
      queue.pop_back();
    }
  }
  channel.arrived = 0;
  if (stopped_) wake_ranks(channel);
}

std::string ThreadHub::history() const {
  std::vector<std::vector<HistoryLine>> ranks;
  for (const auto& rank : ranks_) {
    auto& lines = ranks.emplace_back();
    for (const auto& request : rank->history.requests()) {
      const auto& withdrawn = rank->withdrawn;
      const bool given_up = withdrawn.has_value() && withdrawn->channel == request.channel &&
                            withdrawn->sequence == request.sequence;
      lines.push_back(
          history_line(request, given_up ? "given up" : request.channel->state(request)));
    }
  }
  return format_history(ranks);
}

void ThreadHub::rank_failed(int rank, const std::string& what) {
  const std::lock_guard lock(mutex_);
  fail_by_exception(rank, what);
}

void ThreadHub::report_failure() {
  std::string report;
  {
    const std::lock_guard lock(mutex_);
    report.swap(report_);
  }
  if (report.empty()) return;
  if (options_.on_failure) return options_.on_failure(report);
  log(rank_threw_ ? LogLevel::kDebug : LogLevel::kError, report);
}

}  // namespace moegrad
