// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "framework/distributed/engine/engine.h"
#include "framework/distributed/mpi/control.h"
#include "framework/distributed/mpi/mpi_calls.h"
#include "framework/runtime/arena.h"

namespace moegrad::mpi {

class MpiProcess;

/// Ranks that are processes: a group has a communicator for each queue, made when the group is.
///
/// Note [Ranks as processes]
/// Each rank is a process. One thread of the process, MpiProcess's, makes every call of MPI. The
/// rank's other threads hand it their calls and wait until it has executed them.
///
/// So that a failed call ends soon, each rank takes back its receives, and takes in what the others
/// have begun to send (drain()). If that does not come to an end, since another process is stopped
/// or gone, the transport is abandoned: from then on the process calls MPI no more.
class MpiTransport final : public Transport {
 public:
  MpiTransport(MpiProcess& process, int rank, const LaunchOptions& options)
      : process_(process), rank_(rank), options_(options) {}

  /// Makes the communicators of the world from one that has more ranks.
  void open_world(MPI_Comm all, const EngineGroup& world);
  /// When the engine has been closed. `failed`: messages that nobody has received may be left.
  void close(bool failed);

  void set_arena(std::shared_ptr<Arena> arena) override { arena_ = std::move(arena); }
  std::unique_ptr<Wire> open(const EngineGroup& group, const LineKey& key,
                             const Slots& slots) override;
  void send(int rank, std::vector<std::byte> message) override {
    control_->send(rank, std::move(message));
  }
  bool receive(
      const std::function<void(int from, std::span<const std::byte> message)>& hear) override {
    return control_->poll(hear);
  }
  void wake(std::span<const int> ranks) override;
  bool is_woken_by(std::span<const int> ranks) const override;
  void wake_own() override;
  bool makes_groups_any_time() const override { return false; }
  void make_group(const EngineGroup& group, const EngineGroup& parent,
                  std::span<const int> members) override;
  std::optional<int> most_tags() const override;
  bool drain() override;
  void abandon() override;

 private:
  using Comms = std::array<MPI_Comm, kQueues>;

  static Comms make_comms(MPI_Comm parent, std::span<const int> members);
  bool take(MPI_Comm comm);
  MPI_Comm comm_of(std::int64_t group, CollectiveQueue queue);

  MpiProcess& process_;
  int rank_;
  const LaunchOptions options_;
  std::shared_ptr<Arena> arena_;
  std::mutex mutex_;
  std::map<std::int64_t, Comms> comms_;  // by group; guarded by the mutex
  MPI_Comm control_comm_ = MPI_COMM_NULL;
  std::unique_ptr<Control> control_;
  std::list<Buffer> drained_;  // what others have sent to calls that this rank has given up
  std::shared_ptr<bool> abandoned_ = std::make_shared<bool>(false);
};

/// This process's rank of a launch.
struct MpiLaunch {
  MpiLaunch(MpiProcess& process, int rank, int world_size, const LaunchOptions& options,
            const std::vector<int>& hosts)
      : state(std::make_shared<LaunchState>("launch_mpi", options, world_size)) {
    auto own = std::make_unique<MpiTransport>(process, rank, options);
    transport = own.get();
    state->hosts = hosts;
    engine = std::make_shared<Engine>(state, rank, std::move(own));
  }

  std::shared_ptr<LaunchState> state;
  std::shared_ptr<Engine> engine;
  MpiTransport* transport;  // the engine's
};

}  // namespace moegrad::mpi
