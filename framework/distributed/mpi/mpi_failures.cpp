// SPDX-License-Identifier: Apache-2.0
// How a launch over MPI fails: what is recorded, how its calls end, what is reported.
#include <unistd.h>

#include <cerrno>
#include <sstream>
#include <system_error>
#include <utility>

#include "framework/distributed/exit_soon.h"
#include "framework/distributed/mpi/mpi_hub.h"
#include "framework/distributed/mpi/mpi_process.h"
#include "framework/runtime/log.h"

namespace moegrad::mpi {
namespace {

// After a failure: how long messages that are under way may take.
constexpr CollectiveClock::duration kGrace = std::chrono::seconds(1);

// How long what it had overtaken may hold up a failure.
constexpr CollectiveClock::duration kOvertaken = std::chrono::milliseconds(10);

bool same_meeting(const LineKey& a, const LineKey& b) { return a == b || a == across(b); }

}  // namespace

void MpiHub::body_failed(const std::string& what) {
  {
    const std::lock_guard lock(mutex_);
    record_failure(
        {.cause = "rank " + std::to_string(rank_) + " failed: " + what, .rank_threw = true});
  }
  process_.wake();
}

void MpiHub::fail(const std::string& cause, const MpiCall& origin) {
  const std::lock_guard lock(mutex_);
  record_failure({.cause = cause,
                  .origin = describe(origin),
                  .line = origin.line,
                  .sequence = origin.sequence});
}

void MpiHub::record_failure(Failure failure) {
  if (failure_) return;
  const auto report =
      failure.origin.empty() ? failure.cause : failure.origin + ": " + failure.cause;
  failure_text_ = failure.origin.empty() ? failure.cause : "aborted by " + report;
  histories_[static_cast<std::size_t>(rank_)] = history();
  for (const auto& call : pending_) {
    call->aborted = failure.origin.empty() || !same_meeting(call->line, failure.line) ||
                    call->sequence != failure.sequence;
    call->error = describe(*call) + ": " + (call->aborted ? failure_text_ : failure.cause);
  }
  failure_ = std::move(failure);
  failed_ = true;
}

// What another rank has told. It may overtake what ranks had sent before, such as the last header
// of a barrier that all have passed: so lines first go on as far as they get.
void MpiHub::take_heard_failure(bool progress) {
  if (!heard_failure_) return;
  if (progress && CollectiveClock::now() - heard_at_ < kOvertaken) return;
  const std::lock_guard lock(mutex_);
  record_failure(*heard_failure_);
}

void MpiHub::fail_by_withdrawal() {
  if (!withdrawn_) return;
  record_failure({.cause = "rank " + std::to_string(rank_) + " gave up " +
                           describe(withdrawn_->request) + " because of an exception"});
}

std::vector<HistoryLine> MpiHub::history() {
  std::vector<HistoryLine> lines;
  for (const auto& entry : history_.entries()) {
    auto state = CallState::kDone;
    if (withdrawn_ && withdrawn_->number == entry.number) state = CallState::kGivenUp;
    for (const auto& call : pending_) {
      if (call->number == entry.number) state = call->state;
    }
    lines.push_back(history_line(entry.request, to_string(state)));
  }
  return lines;
}

void MpiHub::report_failure() {
  std::string report;
  bool rank_threw = false;
  {
    const std::lock_guard lock(mutex_);
    if (!failure_ || std::exchange(reported_, true)) return;
    report = failure_->origin.empty() ? failure_->cause : failure_->origin + ": " + failure_->cause;
    rank_threw = failure_->rank_threw;
    // Rank 0 has what the others have sent it, which may not be all.
    std::vector<std::vector<HistoryLine>> known;
    std::vector<int> ranks;
    for (int rank = 0; rank < world_size_; ++rank) {
      auto& lines = histories_[static_cast<std::size_t>(rank)];
      if (rank_ != 0 && rank != rank_) continue;
      known.push_back(lines ? *lines : std::vector{HistoryLine{.state = "not heard of"}});
      ranks.push_back(rank);
    }
    report += "\nlast operations of " +
              (rank_ == 0 ? std::string("each rank") : "rank " + std::to_string(rank_)) + ":\n" +
              format_history(known, ranks);
  }
  if (options_.on_failure) return options_.on_failure(report);
  log(rank_threw || rank_ != 0 ? LogLevel::kDebug : LogLevel::kError, report);
}

void MpiHub::write_last_operations() {
  std::string reason;
  {
    const std::lock_guard lock(mutex_);
    reason = failure_text_;
  }
  if (reason.empty() || last_operations_.write_file(reason.c_str())) return;
  // A launch may well fail before the body has made the folder.
  if (errno == ENOENT) return;
  log(LogLevel::kWarning, "launch_mpi: cannot write " + last_operations_.file() + ": " +
                              std::generic_category().message(errno));
}

void MpiHub::poll_failed() {
  if (!std::exchange(told_failure_, true)) {
    failed_at_ = running();
    tell_failure();
  }
  bool all = control_->all_sent();
  for (const auto& [key, line] : lines_) all = line->abort(/*abandoned=*/false) && all;
  for (const auto& [id, group] : groups_) {
    for (auto* const comm : group->comms) drain_.poll(comm);
  }
  quiet_ = drain_.is_empty() && all;
  if (!quiet_ && running() - failed_at_ > kGrace) abandon();
  watch_the_stuck();
}

void MpiHub::abandon() {
  abandoned_ = quiet_ = true;
  for (const auto& [key, line] : lines_) line->abort(/*abandoned=*/true);
}

void MpiHub::conclude_all() {
  std::list<std::shared_ptr<MpiCall>> left;
  {
    const std::lock_guard lock(mutex_);
    inbox_.clear();
    left = pending_;
    for (const auto& call : left) {
      if (call->error.empty()) {
        call->error = describe(*call) + ": group " + call->group + ": the launch has ended";
      }
    }
  }
  for (const auto& call : left) conclude(*call, nullptr);
}

// A body that does not return keeps its process from ending.
void MpiHub::watch_the_stuck() {
  const auto patience = options_.exit_after.value_or(options_.deadline);
  if (reported_stuck_ || running() - failed_at_ < patience) return;
  std::ostringstream text;
  {
    const std::lock_guard lock(mutex_);
    if (body_ended_) return;
    reported_stuck_ = true;
    text << "launch_mpi: rank " << rank_ << " has not returned " << patience.count()
         << " ms after a failure, "
         << (options_.exit_after ? "the process ends" : "launch_mpi() waits")
         << "; the failure: " << failure_text_;
  }
  if (options_.exit_after) exit_soon();
  report_failure();
  log(LogLevel::kError, text.str());
  if (options_.exit_after) _exit(1);
}

}  // namespace moegrad::mpi
