// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/mpi/mpi_hub.h"

#include <algorithm>
#include <numeric>
#include <thread>
#include <utility>

#include "framework/distributed/backend_work.h"
#include "framework/distributed/mpi/mpi_process.h"
#include "framework/runtime/log.h"

namespace moegrad::mpi {
namespace {

using std::chrono::milliseconds;

// So short that a stop of the process adds next to nothing to the running time.
constexpr CollectiveClock::duration kLongestTick = milliseconds(10);

thread_local bool inside_step = false;  // this thread is running a consumer

std::string file_in(const std::string& folder, int rank) {
  if (folder.empty()) return {};
  return folder + "/last_operations.rank" + std::to_string(rank) + ".txt";
}

}  // namespace

MpiHub::StepGuard::StepGuard() { inside_step = true; }
MpiHub::StepGuard::~StepGuard() { inside_step = false; }
bool MpiHub::StepGuard::is_inside() { return inside_step; }

MpiHub::MpiHub(MpiProcess& process, int rank, int world_size, MpiOptions options)
    : process_(process),
      rank_(rank),
      world_size_(world_size),
      options_(std::move(options)),
      world_(std::make_shared<MpiGroup>()),
      last_operations_(rank, file_in(options_.last_operations_folder, rank)),
      excuses_(rank, options_.deadline),
      histories_(static_cast<std::size_t>(world_size)),
      clock_(CollectiveClock::now(), kLongestTick) {
  world_->name = "world";
  world_->rank = rank;
  world_->ranks.resize(static_cast<std::size_t>(world_size));
  std::iota(world_->ranks.begin(), world_->ranks.end(), 0);
  groups_.emplace(world_->id, world_);
}

MpiHub::~MpiHub() = default;

// ---- The threads of the rank.

void MpiHub::post(MpiGroup& group, const std::shared_ptr<MpiCall>& call) {
  std::unique_lock lock(mutex_);
  fail_by_withdrawal();
  if (failure_) {
    process_.wake();
    throw AbortedError(describe(*call) + ": " + failure_text_);
  }
  check<CollectiveError>(!stopped_, "group ", group.name, ": the launch has ended");
  call->number = history_.add(*call);
  const auto line = history_line(*call, "");
  call->noted = last_operations_.add(line.where + "  " + line.sequence + "  " + line.signature +
                                     "  " + line.label);
  if (!call->fault.empty()) {
    call->state = CallState::kFailed;
    note_state(*call);
    auto error = describe(*call) + ": " + call->fault;
    record_failure({.cause = call->fault,
                    .origin = describe(*call),
                    .line = call->line,
                    .sequence = call->sequence});
    lock.unlock();
    process_.wake();
    throw CollectiveError(error);
  }
  const bool is_alone = group.ranks.size() == 1 && !is_point_to_point(call->op);
  call->joins_at =
      CollectiveClock::now() + (is_alone ? CollectiveClock::duration::zero() : jitter(*call, 0));
  pending_.push_back(call);
  inbox_.push_back(call);
  lock.unlock();
  process_.wake();
  std::this_thread::yield();  // see Note [Polling]
}

int MpiHub::most_tags() const { return process_.most_tags(); }

void MpiHub::wait(MpiCall& call) {
  // What the consumer holds, tensors perhaps, ends here, on the rank's own thread.
  GatherConsumer consumer;
  std::unique_lock lock(mutex_);
  if (inside_step && !call.done) {
    throw CollectiveError(describe(call) +
                          ": a consumer cannot wait for a collective, it holds up the thread that "
                          "executes them");
  }
  call.finished.wait(lock, [&] { return call.done; });
  consumer.swap(call.consume);
}

bool MpiHub::test(const MpiCall& call) {
  const std::lock_guard lock(mutex_);
  return call.done;
}

std::exception_ptr MpiHub::failure(const MpiCall& call) {
  const std::lock_guard lock(mutex_);
  if (call.thrown != nullptr) return call.thrown;
  if (call.error.empty()) return nullptr;
  if (call.aborted) return std::make_exception_ptr(AbortedError(call.error));
  return std::make_exception_ptr(CollectiveError(call.error));
}

void MpiHub::release(MpiCall& call, bool unwinding) noexcept {
  GatherConsumer consumer;
  std::unique_lock lock(mutex_);
  if (inside_step) return;
  const bool begun = call.state != CallState::kIssued && call.state != CallState::kJoined;
  if (unwinding && !call.done && !begun) {
    // Only headers have gone, which are the line's own.
    call.state = CallState::kGivenUp;
    call.done = true;
    note_state(call);
    withdrawn_ = {.request = call, .number = call.number};
    return;
  }
  call.finished.wait(lock, [&] { return call.done; });
  consumer.swap(call.consume);
}

void MpiHub::body_ended() {
  {
    const std::lock_guard lock(mutex_);
    fail_by_withdrawal();
    body_ended_ = true;
  }
  process_.wake();
}

std::shared_ptr<const void> MpiHub::excuse(const std::shared_ptr<MpiHub>& self,
                                           const MpiGroup& group, std::string what) {
  const std::lock_guard lock(self->mutex_);
  return {nullptr, [self, own = self->excuses_.begin(&group, std::move(what))](std::nullptr_t) {
            std::string warning;
            {
              const std::lock_guard ending(self->mutex_);
              warning = self->excuses_.end(own);
            }
            if (!warning.empty()) log(LogLevel::kWarning, warning);
          }};
}

void MpiHub::note_state(const MpiCall& call) {
  last_operations_.set_state(call.noted, to_string(call.state.load()));
}

CollectiveClock::duration MpiHub::jitter(const MpiCall& call, int draw) const {
  if (options_.jitter.maximum.count() == 0) return {};
  return options_.jitter.delay(rank_, where(call), 2 * call.sequence + draw);
}

void MpiHub::conclude(MpiCall& call, std::exception_ptr thrown) {
  std::shared_ptr<MpiCall> kept;  // what a consumer holds ends outside the lock
  {
    const std::lock_guard lock(mutex_);
    if (thrown != nullptr) {
      call.thrown = thrown;
      record_failure({.cause = "rank " + std::to_string(rank_) + " failed: " + what_of(thrown),
                      .rank_threw = true});
    }
    if (call.state != CallState::kGivenUp) {
      const bool failed = call.thrown != nullptr || !call.error.empty();
      call.state = failed ? CallState::kFailed : CallState::kDone;
    }
    note_state(call);
    const auto found =
        std::ranges::find_if(pending_, [&](const auto& each) { return each.get() == &call; });
    if (found != pending_.end()) {
      kept = std::move(*found);
      pending_.erase(found);
    }
    call.done = true;
    call.finished.notify_all();
  }
}

// ---- The thread that calls MPI.

void MpiHub::ring(std::span<const int> ranks) {
  for (const int rank : ranks) {
    if (rank != rank_) process_.ring(rank);
  }
}

bool MpiHub::is_rung_by(std::span<const int> ranks) const {
  return std::ranges::all_of(ranks, [this](int rank) { return process_.is_rung_by(rank); });
}

void MpiHub::open(MPI_Comm all) {
  make_comms(*world_, all, world_->ranks);
  check_mpi(MPI_Comm_dup(world_->comms[0], &control_comm_), "MPI_Comm_dup");
  control_ = std::make_unique<Control>(control_comm_);
}

void MpiHub::close() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  conclude_all();
  if (abandoned_) return control_->abandon();
  lines_.clear();
  control_.reset();
  if (failed_) return;  // messages that nobody has received may be left
  for (const auto& [id, group] : groups_) {
    for (auto& comm : group->comms) MPI_Comm_free(&comm);
  }
  MPI_Comm_free(&control_comm_);
}

std::unique_ptr<Line> MpiHub::make_line(const LineKey& key) {
  const auto& group = groups_.at(key.group);
  const auto comm = group->comms[static_cast<std::size_t>(key.queue)];
  Slots slots;
  Line::Tags tags = {.header_out = 0, .header_in = 0, .payload = 1};
  if (key.from < 0) {
    slots.world_ranks = group->ranks;
    slots.comm_ranks.resize(group->ranks.size());
    std::iota(slots.comm_ranks.begin(), slots.comm_ranks.end(), 0);
    slots.own = static_cast<std::size_t>(group->rank);
  } else {
    const auto comm_rank = [&](int world_rank) {
      return static_cast<int>(std::ranges::find(group->ranks, world_rank) - group->ranks.begin());
    };
    slots.world_ranks = {key.from, key.to};
    slots.comm_ranks = {comm_rank(key.from), comm_rank(key.to)};
    slots.own = static_cast<std::size_t>(key.side);
    // Four for each tag: each side's headers, and what is sent.
    const int first = 4 * (key.tag + 1);
    tags = {
        .header_out = first + key.side, .header_in = first + 1 - key.side, .payload = first + 2};
  }
  return std::make_unique<Line>(*this, key, std::move(slots), comm, tags);
}

Line& MpiHub::line_of(const LineKey& key) {
  auto& line = lines_[key];
  if (line == nullptr) line = make_line(key);
  return *line;
}

void MpiHub::take_inbox() {
  std::vector<std::shared_ptr<MpiCall>> calls;
  {
    const std::lock_guard lock(mutex_);
    calls.swap(inbox_);
  }
  for (auto& call : calls) {
    const auto key = call->line;
    line_of(key).add(std::move(call));
    ++issued_[key];
  }
}

bool MpiHub::has_issued(const LineKey& key, std::int64_t sequence) const {
  const auto found = issued_.find(key);
  return found != issued_.end() && sequence < found->second;
}

MpiHub::Activity MpiHub::poll() {
  const auto now = CollectiveClock::now();
  clock_.advance(now);
  Activity activity;
  if (abandoned_) {
    conclude_all();
    watch_the_stuck();
    return activity;
  }
  take_inbox();
  activity.progress =
      control_->poll([this](int from, std::span<const std::byte> message) { hear(from, message); });
  bool progress = false;
  for (auto each = lines_.begin(); each != lines_.end() && !failed_;) {
    const auto line = each++;
    if (line->second->empty()) {
      // A program may use any number of tags.
      if (line->first.from >= 0 && line->second->is_idle()) lines_.erase(line);
      continue;
    }
    progress = line->second->poll(now, activity.wake_at) || progress;
    activity.waits = activity.waits || line->second->waits_for_messages();
    activity.unrung = activity.unrung || !line->second->will_be_woken();
  }
  take_heard_failure(progress);
  activity.progress = progress || activity.progress;
  if (failed_) {
    poll_failed();
    activity.waits = activity.unrung = true;
  } else {
    tell_end();
  }
  warn_of_excuses();
  return activity;
}

bool MpiHub::has_said_all() {
  const std::lock_guard lock(mutex_);
  return told_end_ && unanswered_ == 0 && pending_.empty();
}

void MpiHub::warn_of_excuses() {
  const auto now = CollectiveClock::now();
  if (now < warns_at_) return;
  warns_at_ = now + kLongestTick;
  std::vector<std::string> warnings;
  {
    const std::lock_guard lock(mutex_);
    excuses_.warn(now, warnings);
  }
  for (const auto& warning : warnings) log(LogLevel::kWarning, warning);
}

}  // namespace moegrad::mpi
