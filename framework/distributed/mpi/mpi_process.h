// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "framework/distributed/mpi/doorbells.h"
#include "framework/distributed/mpi/mpi_calls.h"
#include "framework/distributed/mpi/mpi_transport.h"
#include "framework/runtime/log.h"

namespace moegrad::mpi {

/// This process among those that mpirun has started together, and the one thread of it that calls
/// MPI. MPI can be started and ended once in a process, so there is one such object, made by the
/// first launch; it ends MPI when the program ends.
///
/// Note [Polling]
/// Open MPI moves messages only while it is called. The thread polls as long as something happens,
/// and while it waits for messages for kPoll more. Then it sleeps until its doorbell rings (Note
/// [Doorbells]), but for kNap at most where nobody will ring, else for kIdle.
///
/// Where threads compete for a core, it matters who may interrupt whom (Note [Threads that wake
/// up]). Therefore
/// - a thread that issues a call yields (Engine::post): when it goes on from a gather to the next
///   layer and issues the next gather, the thread that calls MPI has just copied the last one, and
///   would not get its turn;
/// - the thread that calls MPI does not yield, for which Linux would make it wait, and sleeps as
///   soon as it waits for no message (Open MPI yields where a host has more processes than slots);
/// - it asks to be scheduled promptly.
class MpiProcess {
 public:
  /// Starts MPI at the first call. Error if that fails.
  static MpiProcess& instance();
  ~MpiProcess();
  MpiProcess(const MpiProcess&) = delete;
  MpiProcess& operator=(const MpiProcess&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  const std::vector<int>& hosts() const { return doorbells_->hosts(); }
  /// Messages may have tags in [0, most_tags()); each takes four of MPI's.
  int most_tags() const { return most_tags_; }

  /// While the object lives, no other launch can begin. Error where one is on.
  std::shared_ptr<const void> claim_launch();
  /// All processes meet; the texts of all, by rank. CollectiveError if some have not come in time.
  std::vector<std::string> meet(const std::string& text, std::chrono::milliseconds deadline);
  /// Begins to execute the calls of `launch`; null on a process without a rank. The thread that
  /// calls MPI logs at `log_level`.
  void begin(const std::shared_ptr<MpiLaunch>& launch, LogLevel log_level);
  /// Waits until all processes have ended the launch, but after a failure not for long. `thrown`:
  /// what the body has thrown here, if it has. Returns the same of all, by rank.
  std::vector<std::optional<std::string>> end(const std::optional<std::string>& thrown);
  /// Has the thread that calls MPI call `poll` until it returns true; waits for that. Rethrows.
  void run(const std::function<bool()>& poll);
  /// The same for what calls MPI and blocks there: if that takes longer than `limit`, because
  /// another process does not take part, this process can do nothing any more, and ends.
  void run(const std::function<bool()>& poll, std::chrono::milliseconds limit,
           const std::string& what);
  /// There is something new to do in this process.
  void wake() { doorbells_->ring_own(); }
  /// Something has been sent to process `rank`.
  void ring(int rank) { doorbells_->ring(rank); }
  /// Whether process `rank` rings here when it has sent something.
  bool is_rung_by(int rank) const { return doorbells_->reach(rank); }

 private:
  struct Task {
    const std::function<bool()>& poll;
    bool done = false;
    std::exception_ptr thrown = nullptr;
  };

  MpiProcess();
  void serve();
  void start_mpi();
  bool run_tasks();
  Engine::Activity poll_launch();
  void rest(const Engine::Activity& activity, std::uint32_t rings);

  int rank_ = 0;
  int size_ = 1;
  int most_tags_ = 1 << 28;
  MPI_Comm all_ = MPI_COMM_NULL;
  std::optional<Doorbells> doorbells_;
  std::shared_ptr<MpiLaunch> launch_;  // of the thread that calls MPI, while a launch is on
  std::atomic<bool> claimed_ = false;
  std::atomic<bool> launched_ = false;  // a launch is on
  std::atomic<bool> broken_ = false;    // other processes do not answer; MPI is called no more
  CollectiveClock::time_point last_progress_;

  std::mutex mutex_;
  std::condition_variable task_done_;
  bool stopping_ = false;
  std::list<Task*> tasks_;
  std::exception_ptr start_failure_;
  bool started_ = false;
  std::thread thread_;
  pid_t pid_ = getpid();
};

}  // namespace moegrad::mpi
