// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "framework/distributed/collective_clock.h"
#include "framework/distributed/collective_history.h"
#include "framework/distributed/excuses.h"
#include "framework/distributed/mpi/control.h"
#include "framework/distributed/mpi/drain.h"
#include "framework/distributed/mpi/last_operations.h"
#include "framework/distributed/mpi/line.h"
#include "framework/distributed/mpi/mpi_call.h"
#include "framework/distributed/mpi/mpi_options.h"
#include "framework/runtime/byte_stream.h"

namespace moegrad::mpi {

class MpiProcess;

inline constexpr std::size_t kQueues = static_cast<std::size_t>(CollectiveQueue::kGradients) + 1;

/// This rank's side of a group: a communicator for each queue.
struct MpiGroup {
  std::int64_t id = 0;  // the same on all members
  std::string name;
  std::string label = {};  // "subgroup of ranks {0, 1}"
  std::vector<int> ranks;  // of the world
  int rank = 0;
  std::array<MPI_Comm, kQueues> comms{};
};

/// One rank's side of a launch over MPI: its groups, its lines of calls, and how it failed.
///
/// Note [Ranks as processes]
/// Each rank is a process. One thread of the process, MpiProcess's, makes every call of MPI. The
/// rank's other threads hand it their calls and wait until it has executed them.
///
/// Each group has a communicator per queue, made when the group is made. The ranks that execute
/// a call first send each other its header: operation, dtype, count, label, number. A rank that has
/// the headers of all others knows that all have joined, and compares them with its own; a rank
/// that lacks a header knows which rank has not come. A short payload comes with the header; a
/// longer one is sent after that (Transfer), so none is received into a buffer of another size. A
/// call is done on a rank when the rank has sent and received all of its part. So an all_gather is
/// done when this rank's consumer has returned, whatever the others' do.
///
/// Besides, ranks tell each other (Control): the first failure, that a body has returned, and, when
/// a deadline comes near, whether a missing rank is excused. A rank that does not answer counts as
/// not excused: its process may be stopped.
///
/// The first failure poisons the launch on all ranks, as with threads. A call that has failed ends
/// when no message reads or writes its buffers any more. So that this comes soon, each rank takes
/// back its receives, and takes in what the others have begun to send (Drain). If it does not come
/// within kGrace, since another process is stopped or gone, the hub is abandoned: from then on the
/// process calls MPI no more, so that the calls can end at once.
class MpiHub {
 public:
  MpiHub(MpiProcess& process, int rank, int world_size, MpiOptions options);
  ~MpiHub();
  MpiHub(const MpiHub&) = delete;
  MpiHub& operator=(const MpiHub&) = delete;

  // For the threads of the rank.

  /// Where payloads are staged. Set before the first call.
  void set_arena(std::shared_ptr<Arena> arena) { arena_ = std::move(arena); }
  const std::shared_ptr<MpiGroup>& world() const { return world_; }
  /// The hosts of ranks of the world.
  std::vector<int> hosts_of(std::span<const int> ranks) const;
  int most_tags() const;
  /// Collective over `members`, which are ranks of `parent`.
  std::shared_ptr<MpiGroup> make_group(const std::shared_ptr<MpiGroup>& parent,
                                       std::span<const int> members, const std::string& name);
  /// Throws CollectiveError if the launch has failed, or if the call has a fault.
  void post(MpiGroup& group, const std::shared_ptr<MpiCall>& call);
  void wait(MpiCall& call);
  bool test(const MpiCall& call);
  std::exception_ptr failure(const MpiCall& call);
  void release(MpiCall& call, bool unwinding) noexcept;
  /// The body has thrown.
  void body_failed(const std::string& what);
  /// The body has ended, well or not.
  void body_ended();
  static std::shared_ptr<const void> excuse(const std::shared_ptr<MpiHub>& self,
                                            const MpiGroup& group, std::string what);
  /// After a failure: writes what the rank did last to the file of LastOperations.
  void write_last_operations();
  /// Passes the report of a failure to LaunchOptions::on_failure, once.
  void report_failure();
  LastOperations& last_operations() { return last_operations_; }

  // For the thread that calls MPI.

  /// Makes the communicators of the world from one that has more ranks.
  void open(MPI_Comm all);
  /// Ends what is left: later calls throw.
  void close();
  struct Activity {
    bool progress = false;  // something has moved
    bool waits = false;     // for messages
    bool unrung = false;    // for some of them nobody will ring
    CollectiveClock::time_point wake_at = CollectiveClock::time_point::max();
  };
  Activity poll();
  /// After a failure: no message is under way, or none will be any more.
  bool is_quiet() const { return quiet_; }
  bool is_abandoned() const { return abandoned_; }
  /// After a failure: this process calls MPI no more, so that its calls can end.
  void abandon();
  /// The body and all calls have ended, and this rank waits for no answer: it sends nothing any
  /// more.
  bool has_said_all();
  /// Nothing comes any more from the others, which have said all, too.
  bool has_heard_all() const { return ends_heard_ == world_size_ - 1; }

  // For lines.

  const MpiOptions& options() const { return options_; }
  const std::shared_ptr<Arena>& arena() const { return arena_; }
  std::unique_lock<std::mutex> lock() { return std::unique_lock(mutex_); }
  bool has_failed() const { return failed_; }
  bool any_has_left() const { return ends_heard_ > 0; }
  CollectiveClock::duration running() const { return clock_.elapsed(); }
  CollectiveClock::duration jitter(const MpiCall& call, int draw) const;
  /// With the mutex held.
  void note_state(const MpiCall& call);
  /// Poisons the launch, once. `origin`: the call that has found the failure.
  void fail(const std::string& cause, const MpiCall& origin);
  /// Something has been sent to ranks of the world, or what they have sent has been taken.
  void ring(std::span<const int> ranks);
  bool is_rung_by(std::span<const int> ranks) const;
  bool is_on_this_host(int rank) const;
  void ask(int rank, const LineKey& line, std::int64_t sequence, CollectiveClock::duration waited);
  /// The call has ended; `thrown`: what its consumer threw.
  void conclude(MpiCall& call, std::exception_ptr thrown);
  /// While one lives, this thread runs a consumer.
  class StepGuard {
   public:
    StepGuard();
    ~StepGuard();
    StepGuard(const StepGuard&) = delete;
    StepGuard& operator=(const StepGuard&) = delete;
    static bool is_inside();
  };

 private:
  struct Failure {
    std::string cause;
    std::string origin = {};  // describe() of the call; empty if it was none
    LineKey line = {};
    std::int64_t sequence = -1;
    bool rank_threw = false;
  };

  void record_failure(Failure failure);  // with the mutex held
  void fail_by_withdrawal();             // with the mutex held
  void hear(int from, std::span<const std::byte> message);
  void hear_failure(ByteReader& reader);
  void take_heard_failure(bool progress);
  void hear_history(int from, ByteReader& reader);
  void hear_question(int from, ByteReader& reader);
  void hear_answer(int from, ByteReader& reader);
  void tell(int rank, std::vector<std::byte> message);
  void tell_end();
  void tell_failure();
  void take_inbox();
  void poll_failed();
  void warn_of_excuses();
  void watch_the_stuck();
  std::vector<HistoryLine> history();  // with the mutex held
  Line& line_of(const LineKey& key);
  bool has_issued(const LineKey& key, std::int64_t sequence) const;
  void conclude_all();
  std::unique_ptr<Line> make_line(const LineKey& key);
  void make_comms(MpiGroup& group, MPI_Comm parent, std::span<const int> members);

  MpiProcess& process_;
  const int rank_;
  const int world_size_;
  const MpiOptions options_;
  std::shared_ptr<Arena> arena_;
  std::shared_ptr<MpiGroup> world_;
  LastOperations last_operations_;
  std::mutex makes_group_;  // held by the thread that makes one

  std::mutex mutex_;
  std::vector<std::shared_ptr<MpiCall>> inbox_;
  std::list<std::shared_ptr<MpiCall>> pending_;
  CollectiveHistory history_;
  std::optional<CollectiveHistory::Entry> withdrawn_;
  Excuses excuses_;
  std::optional<Failure> failure_;
  std::string failure_text_;
  bool body_ended_ = false;
  bool stopped_ = false;
  bool reported_ = false;
  std::vector<std::optional<std::vector<HistoryLine>>> histories_;  // by rank, after a failure
  std::atomic<bool> failed_ = false;

  // For the thread that calls MPI.
  std::map<std::int64_t, std::shared_ptr<MpiGroup>> groups_;
  std::map<LineKey, std::unique_ptr<Line>> lines_;
  std::map<LineKey, std::int64_t> issued_;  // calls so far
  std::int64_t groups_made_ = 0;
  std::unique_ptr<Control> control_;
  Drain drain_;
  std::optional<Failure> heard_failure_;  // of another rank
  CollectiveClock::time_point heard_at_;
  MPI_Comm control_comm_ = MPI_COMM_NULL;
  RunningClock clock_;
  CollectiveClock::duration failed_at_{0};
  CollectiveClock::time_point warns_at_;
  bool told_failure_ = false;
  bool told_end_ = false;
  int ends_heard_ = 0;
  std::int64_t unanswered_ = 0;  // questions
  bool reported_stuck_ = false;
  bool quiet_ = false;
  bool abandoned_ = false;
};

}  // namespace moegrad::mpi
