// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/mpi/mpi_process.h"

#include <unistd.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "framework/distributed/exit_soon.h"
#include "framework/distributed/process_group.h"
#include "framework/runtime/be_scheduled_promptly.h"
#include "framework/runtime/mpi_environment.h"
#include "framework/runtime/rank_context.h"

namespace moegrad::mpi {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr microseconds kPoll{20};
constexpr microseconds kNap{50};
constexpr milliseconds kIdle{5};
constexpr milliseconds kLongestOpening{60'000};
constexpr milliseconds kTick{10};  // of a RunningClock
// After a failure: how long others may take to end the launch. Rank 0, which reports, leaves first.
constexpr milliseconds kPatience{1'500}, kPatienceOfOthers{2'500};

constexpr std::size_t kLongestText = 4096;
// Before what a body has thrown, which may be empty.
constexpr char kThrown = '!';
constexpr int kTextTag = 0;

/// Each process sends its text to all others.
class TextExchange {
 public:
  TextExchange(MPI_Comm comm, int rank, int size, const std::string& text)
      : texts_(static_cast<std::size_t>(size)), out_(text.substr(0, kLongestText)) {
    texts_[static_cast<std::size_t>(rank)] = out_;
    for (int peer = 0; peer < size; ++peer) {
      if (peer == rank) continue;
      auto& in = incoming_.emplace_back();
      in.peer = peer;
      in.text.resize(kLongestText);
      check_mpi(MPI_Irecv(in.text.data(), static_cast<int>(kLongestText), MPI_BYTE, peer, kTextTag,
                          comm, &in.request),
                "MPI_Irecv");
      check_mpi(MPI_Isend(out_.data(), static_cast<int>(out_.size()), MPI_BYTE, peer, kTextTag,
                          comm, &sending_.emplace_back()),
                "MPI_Isend");
    }
  }

  /// Whether all have come.
  bool poll() {
    for (auto& in : incoming_) {
      int flag = 0;
      MPI_Status status;
      if (in.request == MPI_REQUEST_NULL) continue;
      check_mpi(MPI_Test(&in.request, &flag, &status), "MPI_Test");
      if (flag == 0) continue;
      int size = 0;
      MPI_Get_count(&status, MPI_BYTE, &size);
      in.text.resize(static_cast<std::size_t>(size));
      texts_[static_cast<std::size_t>(in.peer)] = in.text;
    }
    int sent = 0;
    check_mpi(
        MPI_Testall(static_cast<int>(sending_.size()), sending_.data(), &sent, MPI_STATUSES_IGNORE),
        "MPI_Testall");
    return sent != 0 && missing().empty();
  }
  std::vector<int> missing() const {
    std::vector<int> ranks;
    for (std::size_t rank = 0; rank < texts_.size(); ++rank) {
      if (!texts_[rank]) ranks.push_back(static_cast<int>(rank));
    }
    return ranks;
  }
  /// Whether a text that has come begins with `first`.
  bool any(char first) const {
    return std::ranges::any_of(texts_,
                               [&](const auto& text) { return text && text->starts_with(first); });
  }
  const std::vector<std::optional<std::string>>& texts() const { return texts_; }

 private:
  struct Incoming {
    int peer = 0;
    std::string text;
    MPI_Request request = MPI_REQUEST_NULL;
  };

  std::vector<std::optional<std::string>> texts_;
  std::string out_;
  std::list<Incoming> incoming_;
  std::vector<MPI_Request> sending_;
};

}  // namespace

MpiProcess& MpiProcess::instance() {
  static MpiProcess process;
  return process;
}

MpiProcess::MpiProcess() {
  thread_ = std::thread([this] { serve(); });
  std::unique_lock lock(mutex_);
  // MPI waits for all processes, however long that takes.
  for (int minutes = 1;
       !task_done_.wait_for(lock, std::chrono::minutes(1), [this] { return started_; });
       ++minutes) {
    log(LogLevel::kWarning, "launch_mpi: MPI has not started after " +
                                std::to_string(60 * minutes) +
                                " s; it waits until all processes have come to their first launch");
  }
  if (start_failure_ == nullptr) return;
  lock.unlock();
  thread_.join();
  std::rethrow_exception(start_failure_);
}

MpiProcess::~MpiProcess() {
  if (getpid() != pid_) {  // a fork, which does not have the thread
    thread_.detach();
    return;
  }
  if (std::this_thread::get_id() == thread_.get_id()) _exit(1);  // exit() was called by a consumer
  if (launched_) {  // the program has called exit() in the body of a launch
    const std::string what = "it has called exit()";
    if (launch_ != nullptr) {
      launch_->engine->body_failed(what);
      launch_->engine->body_ended();
    }
    try {
      end(what);
    } catch (const std::exception&) {
      broken_ = true;
    }
  }
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake();
  thread_.join();
}

void MpiProcess::start_mpi() {
  int provided = 0;
  check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread");
  check(provided >= MPI_THREAD_FUNNELED,
        "launch_mpi: MPI must allow one thread of several to call it (MPI_THREAD_FUNNELED)");
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &size_);
  const auto started = mpi_environment();
  check(!started || started->size == size_, "launch_mpi: this is one of ",
        started ? started->size : 1, " processes, but MPI knows of ", size_,
        "; the program must be started by the mpirun of the Open MPI that it was built with");
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &all_), "MPI_Comm_dup");
  MPI_Comm_set_errhandler(all_, MPI_ERRORS_RETURN);
  doorbells_.emplace(all_);
  void* largest = nullptr;
  int found = 0;
  MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &largest, &found);
  if (found != 0) most_tags_ = std::min(most_tags_, *static_cast<int*>(largest) / 4 - 2);
}

void MpiProcess::serve() {
  be_scheduled_promptly();
  try {
    start_mpi();
  } catch (...) {
    start_failure_ = std::current_exception();
  }
  {
    const std::lock_guard lock(mutex_);
    started_ = true;
  }
  task_done_.notify_all();
  if (start_failure_ != nullptr) return;
  RankContext context({.rank = rank_, .world_size = size_});
  const RankContextGuard guard(context);
  while (true) {
    const auto rings = doorbells_->rings();
    auto activity = poll_launch();
    const bool busy = run_tasks();  // they ask how far the launch has come
    if (busy) activity.waits = true;
    if (busy && !doorbells_->reach_all()) activity.unwoken = true;
    {
      const std::lock_guard lock(mutex_);
      if (stopping_ && tasks_.empty()) break;
    }
    rest(activity, rings);
  }
  if (broken_) return;  // MPI_Finalize would wait for the others
  MPI_Comm_free(&all_);
  MPI_Finalize();
}

// True if a task is not done.
bool MpiProcess::run_tasks() {
  std::list<Task*> tasks;
  {
    const std::lock_guard lock(mutex_);
    tasks = tasks_;
  }
  for (auto* const task : tasks) {
    bool done = false;
    std::exception_ptr thrown;
    try {
      done = task->poll();
    } catch (...) {
      done = true;
      thrown = std::current_exception();
    }
    if (!done) continue;
    {
      const std::lock_guard lock(mutex_);
      tasks_.remove(task);
      task->thrown = thrown;
      task->done = true;
    }
    task_done_.notify_all();
  }
  const std::lock_guard lock(mutex_);
  return !tasks_.empty();
}

Engine::Activity MpiProcess::poll_launch() {
  if (launch_ == nullptr) return {};
  auto& [state, engine, transport] = *launch_;
  EngineLock lock(state->mutex);
  if (broken_ && !engine->is_abandoned()) return {};
  try {
    const auto now = CollectiveClock::now();
    state->advance(now);
    const auto activity = engine->poll(lock, /*works=*/true);
    state->watch(lock, now);
    if (engine->is_abandoned()) broken_ = true;
    return activity;
  } catch (const std::exception& error) {
    // What MPI refuses, or memory that does not suffice.
    if (state->has_failed()) engine->abandon();
    lock.unlock();
    engine->body_failed(error.what());
    return {.progress = true};
  }
}

void MpiProcess::rest(const Engine::Activity& activity, std::uint32_t rings) {
  const auto now = CollectiveClock::now();
  if (activity.progress) last_progress_ = now;
  if (activity.progress || (activity.waits && now - last_progress_ < kPoll)) return;
  const auto pause = activity.unwoken ? microseconds(kNap) : microseconds(kIdle);
  doorbells_->sleep(rings, std::min<CollectiveClock::time_point>(now + pause, activity.wake_at));
}

void MpiProcess::run(const std::function<bool()>& poll) { run(poll, milliseconds::max(), {}); }

void MpiProcess::run(const std::function<bool()>& poll, milliseconds limit,
                     const std::string& what) {
  Task task{.poll = poll};
  std::unique_lock lock(mutex_);
  tasks_.push_back(&task);
  wake();
  const auto is_done = [&] { return task.done; };
  if (limit == milliseconds::max()) task_done_.wait(lock, is_done);
  // A process that is stopped and continued has not waited meanwhile.
  RunningClock clock(CollectiveClock::now(), kTick);
  while (!task_done_.wait_for(lock, kTick, is_done)) {
    clock.advance(CollectiveClock::now());
    if (clock.elapsed() <= limit) continue;
    exit_soon();
    log(LogLevel::kError, "launch_mpi: " + what + " took longer than " +
                              std::to_string(limit.count()) +
                              " ms, as another process does not take part; the process ends");
    _exit(1);
  }
  if (task.thrown != nullptr) std::rethrow_exception(task.thrown);
}

std::shared_ptr<const void> MpiProcess::claim_launch() {
  check(!claimed_.exchange(true), "launch_mpi: must not be called while another launch is on");
  return {nullptr, [this](std::nullptr_t) { claimed_ = false; }};
}

std::vector<std::string> MpiProcess::meet(const std::string& text, milliseconds deadline) {
  check<CollectiveError>(!broken_,
                         "launch_mpi: a launch has failed so that the processes cannot go on");
  std::optional<TextExchange> exchange;
  RunningClock clock(CollectiveClock::now(), kTick);
  run([&] {
    if (!exchange) {
      exchange.emplace(all_, rank_, size_, text);
      doorbells_->ring_all();
    }
    clock.advance(CollectiveClock::now());
    if (exchange->poll()) return true;
    if (clock.elapsed() > deadline) broken_ = true;
    return broken_.load();
  });
  if (broken_) {
    throw CollectiveError("launch_mpi: not joined within " + std::to_string(deadline.count()) +
                          " ms by " + name_ranks(exchange->missing()));
  }
  std::vector<std::string> texts;
  for (const auto& each : exchange->texts()) texts.push_back(*each);
  return texts;
}

void MpiProcess::begin(const std::shared_ptr<MpiLaunch>& launch, LogLevel log_level) {
  launched_ = true;
  try {
    run(
        [&] {
          RankContext::current().set_log_level(log_level);
          if (launch != nullptr) launch->transport->open_world(all_, *launch->engine->world());
          launch_ = launch;
          return true;
        },
        kLongestOpening, "opening the group of all ranks");
  } catch (...) {
    broken_ = true;  // the others wait in theirs
    launched_ = false;
    throw;
  }
}

std::vector<std::optional<std::string>> MpiProcess::end(const std::optional<std::string>& thrown) {
  // A communicator that is freed while a message to it is under way would give that message to the
  // next one that gets its number. So a process ends a launch when nothing is: it waits for what it
  // has asked, then says that it has ended, then waits for the same of all others.
  std::optional<TextExchange> exchange;
  std::optional<CollectiveClock::time_point> failed_at;
  run([&] {
    if (broken_) return true;
    const auto now = CollectiveClock::now();
    const auto engine = launch_ == nullptr ? nullptr : launch_->engine;
    EngineLock lock;
    if (engine != nullptr) lock = EngineLock(launch_->state->mutex);
    const bool failed = engine != nullptr && engine->has_failed();
    const bool failed_elsewhere = exchange && exchange->any(kThrown);
    if ((failed || failed_elsewhere) && !failed_at) failed_at = now;
    if (failed_at && now > *failed_at + (rank_ == 0 ? kPatience : kPatienceOfOthers)) {
      broken_ = true;
      if (failed) engine->abandon();
    }
    const bool said_all =
        engine == nullptr || (failed ? engine->is_quiet() : engine->has_said_all());
    if (!exchange && said_all) {
      exchange.emplace(all_, rank_, size_, thrown ? kThrown + *thrown : std::string());
      doorbells_->ring_all();
    }
    const bool heard_all =
        engine == nullptr || (failed ? engine->is_quiet() : engine->has_heard_all());
    return (exchange && exchange->poll() && heard_all) || broken_;
  });
  run([&] {
    if (launch_ != nullptr) {
      launch_->engine->close();
      launch_->transport->close(launch_->state->has_failed());
    }
    launch_.reset();
    return true;
  });
  launched_ = false;
  std::vector<std::optional<std::string>> all(static_cast<std::size_t>(size_), "it has not ended");
  all[static_cast<std::size_t>(rank_)] = thrown;
  for (std::size_t rank = 0; exchange && rank < all.size(); ++rank) {
    const auto& text = exchange->texts()[rank];
    if (!text) continue;
    all[rank].reset();
    if (text->starts_with(kThrown)) all[rank] = text->substr(1);
  }
  return all;
}

}  // namespace moegrad::mpi
