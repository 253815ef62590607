// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/mpi/mpi_transport.h"

#include <algorithm>
#include <utility>

#include "framework/distributed/engine/message_wire.h"
#include "framework/distributed/mpi/mpi_process.h"

namespace moegrad::mpi {
namespace {

// Tags of queues, of what a parent group's communicator is used for beside its own queue, and of
// messages: four for each of theirs.
constexpr int kSubgroupTag = 2, kCreationTag = 3, kFirstMessageTag = 4;

struct Tags {
  int header_out = 0;
  int header_in = 0;
  int payload = 1;
};

Tags tags_of(const LineKey& key) {
  if (key.from >= 0) {
    const int first = kFirstMessageTag + 4 * key.tag;
    return {
        .header_out = first + key.side, .header_in = first + 1 - key.side, .payload = first + 2};
  }
  // The line on which the members of a new group meet has a tag.
  if (key.tag != 0) return {kSubgroupTag, kSubgroupTag, kSubgroupTag};
  return {};
}

class MpiRequest final : public Messages::Request {
 public:
  MpiRequest(std::shared_ptr<const bool> abandoned, bool sends)
      : abandoned_(std::move(abandoned)), sends_(sends) {}
  ~MpiRequest() override {
    if (request == MPI_REQUEST_NULL || *abandoned_) return;
    if (sends_) {
      MPI_Request_free(&request);
      return;
    }
    MPI_Cancel(&request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
  }
  bool test() override {
    if (request == MPI_REQUEST_NULL) return true;
    int flag = 0;
    MPI_Status status;
    check_mpi(MPI_Test(&request, &flag, &status), "MPI_Test");
    if (flag != 0 && !sends_) MPI_Get_count(&status, MPI_BYTE, &size_);
    return flag != 0;
  }
  std::size_t size() const override { return static_cast<std::size_t>(size_); }
  void cancel() override {
    if (request != MPI_REQUEST_NULL) MPI_Cancel(&request);
  }

  MPI_Request request = MPI_REQUEST_NULL;

 private:
  std::shared_ptr<const bool> abandoned_;
  bool sends_;
  int size_ = 0;
};

class MpiMessages final : public Messages {
 public:
  /// `comm_ranks`: of the slots, in the communicator.
  MpiMessages(MPI_Comm comm, std::vector<int> comm_ranks, Tags tags, Slots slots,
              MpiTransport& transport, const std::vector<int>& hosts,
              std::shared_ptr<const bool> abandoned)
      : comm_(comm),
        comm_ranks_(std::move(comm_ranks)),
        tags_(tags),
        slots_(std::move(slots)),
        transport_(transport),
        hosts_(hosts),
        abandoned_(std::move(abandoned)) {}

  std::unique_ptr<Request> send(std::size_t slot, Kind kind,
                                std::span<const std::byte> bytes) override {
    auto sent = std::make_unique<MpiRequest>(abandoned_, /*sends=*/true);
    const int tag = kind == Kind::kHeader ? tags_.header_out : tags_.payload;
    check_mpi(MPI_Isend(bytes.data(), static_cast<int>(bytes.size()), MPI_BYTE, comm_ranks_[slot],
                        tag, comm_, &sent->request),
              "MPI_Isend");
    return sent;
  }
  std::unique_ptr<Request> receive(std::size_t slot, Kind kind,
                                   std::span<std::byte> bytes) override {
    auto received = std::make_unique<MpiRequest>(abandoned_, /*sends=*/false);
    const int tag = kind == Kind::kHeader ? tags_.header_in : tags_.payload;
    check_mpi(MPI_Irecv(bytes.data(), static_cast<int>(bytes.size()), MPI_BYTE, comm_ranks_[slot],
                        tag, comm_, &received->request),
              "MPI_Irecv");
    return received;
  }
  bool is_on_this_host(std::size_t slot) const override { return host(slot) == host(slots_.own); }
  void wake() override { transport_.wake(slots_.world_ranks); }

 private:
  int host(std::size_t slot) const {
    return hosts_[static_cast<std::size_t>(slots_.world_ranks[slot])];
  }

  MPI_Comm comm_;
  std::vector<int> comm_ranks_;
  Tags tags_;
  Slots slots_;
  MpiTransport& transport_;
  const std::vector<int>& hosts_;
  std::shared_ptr<const bool> abandoned_;
};

}  // namespace

void MpiTransport::open_world(MPI_Comm all, const EngineGroup& world) {
  const auto comms = make_comms(all, world.ranks);
  check_mpi(MPI_Comm_dup(comms[0], &control_comm_), "MPI_Comm_dup");
  control_ = std::make_unique<Control>(control_comm_);
  const std::lock_guard lock(mutex_);
  comms_.emplace(world.id, comms);
}

void MpiTransport::close(bool failed) {
  if (*abandoned_) return;
  control_.reset();
  if (failed) return;
  const std::lock_guard lock(mutex_);
  for (auto& [id, comms] : comms_) {
    for (auto& comm : comms) MPI_Comm_free(&comm);
  }
  MPI_Comm_free(&control_comm_);
}

std::unique_ptr<Wire> MpiTransport::open(const EngineGroup& group, const LineKey& key,
                                         const Slots& slots) {
  std::vector<int> comm_ranks;
  for (const int rank : slots.world_ranks) {
    const auto at = std::ranges::find(group.ranks, rank) - group.ranks.begin();
    comm_ranks.push_back(static_cast<int>(at));
  }
  auto messages =
      std::make_unique<MpiMessages>(comm_of(group.id, key.queue), std::move(comm_ranks),
                                    tags_of(key), slots, *this, process_.hosts(), abandoned_);
  return std::make_unique<MessageWire>(std::move(messages), slots, arena_);
}

void MpiTransport::wake(std::span<const int> ranks) {
  for (const int rank : ranks) {
    if (rank != rank_) process_.ring(rank);
  }
}

bool MpiTransport::is_woken_by(std::span<const int> ranks) const {
  return std::ranges::all_of(ranks, [this](int rank) { return process_.is_rung_by(rank); });
}

void MpiTransport::wake_own() { process_.wake(); }

MPI_Comm MpiTransport::comm_of(std::int64_t group, CollectiveQueue queue) {
  const std::lock_guard lock(mutex_);
  return comms_.at(group)[static_cast<std::size_t>(queue)];
}

MpiTransport::Comms MpiTransport::make_comms(MPI_Comm parent, std::span<const int> members) {
  Comms comms{};
  MPI_Group of_parent = MPI_GROUP_NULL, of_members = MPI_GROUP_NULL;
  check_mpi(MPI_Comm_group(parent, &of_parent), "MPI_Comm_group");
  check_mpi(
      MPI_Group_incl(of_parent, static_cast<int>(members.size()), members.data(), &of_members),
      "MPI_Group_incl");
  check_mpi(MPI_Comm_create_group(parent, of_members, kCreationTag, &comms[0]),
            "MPI_Comm_create_group");
  MPI_Group_free(&of_members);
  MPI_Group_free(&of_parent);
  MPI_Comm_set_errhandler(comms[0], MPI_ERRORS_RETURN);
  for (std::size_t queue = 1; queue < kQueues; ++queue) {
    check_mpi(MPI_Comm_dup(comms[0], &comms[queue]), "MPI_Comm_dup");
  }
  return comms;
}

// Making a communicator waits for all members, who have met.
void MpiTransport::make_group(const EngineGroup& group, const EngineGroup& parent,
                              std::span<const int> members) {
  process_.run(
      [&] {
        const auto comms = make_comms(comm_of(parent.id, CollectiveQueue::kDefault), members);
        const std::lock_guard lock(mutex_);
        comms_.emplace(group.id, comms);
        return true;
      },
      options_.deadline, "making group " + group.name);
}

std::optional<int> MpiTransport::most_tags() const { return process_.most_tags(); }

// Takes what has come, from whomever and with whatever tag, and forgets it. Else the sends of
// others would never end.
bool MpiTransport::drain() {
  const bool all_sent = control_->all_sent();
  const std::lock_guard lock(mutex_);
  for (const auto& [id, comms] : comms_) {
    for (auto* const comm : comms) {
      while (take(comm)) {
      }
    }
  }
  return all_done(drained_) && all_sent;
}

bool MpiTransport::take(MPI_Comm comm) {
  int found = 0, size = 0;
  MPI_Message message = MPI_MESSAGE_NULL;
  MPI_Status status;
  check_mpi(MPI_Improbe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm, &found, &message, &status),
            "MPI_Improbe");
  if (found == 0) return false;
  MPI_Get_count(&status, MPI_BYTE, &size);
  auto& taken = drained_.emplace_back();
  taken.bytes.resize(static_cast<std::size_t>(size));
  check_mpi(MPI_Imrecv(taken.bytes.data(), size, MPI_BYTE, &message, &taken.request), "MPI_Imrecv");
  return true;
}

void MpiTransport::abandon() {
  *abandoned_ = true;
  control_->abandon();
}

}  // namespace moegrad::mpi
