// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/mpi/control.h"

#include <cassert>
#include <utility>

namespace moegrad::mpi {
namespace {

constexpr int kTag = 0;

}  // namespace

Control::Control(MPI_Comm comm) : comm_(comm), in_(kBytes) { receive(); }

Control::~Control() {
  if (receiving_ == MPI_REQUEST_NULL) return;
  MPI_Cancel(&receiving_);
  MPI_Wait(&receiving_, MPI_STATUS_IGNORE);
}

void Control::receive() {
  check_mpi(MPI_Irecv(in_.data(), static_cast<int>(in_.size()), MPI_BYTE, MPI_ANY_SOURCE, kTag,
                      comm_, &receiving_),
            "MPI_Irecv");
}

void Control::send(int to, std::vector<std::byte> message) {
  assert(message.size() <= kBytes);
  auto& outgoing = sending_.emplace_back(Outgoing{.message = std::move(message)});
  check_mpi(MPI_Isend(outgoing.message.data(), static_cast<int>(outgoing.message.size()), MPI_BYTE,
                      to, kTag, comm_, &outgoing.request),
            "MPI_Isend");
}

bool Control::poll(const std::function<void(int from, std::span<const std::byte>)>& hear) {
  bool progress = false;
  while (true) {
    int flag = 0;
    MPI_Status status;
    check_mpi(MPI_Test(&receiving_, &flag, &status), "MPI_Test");
    if (flag == 0) break;
    int size = 0;
    MPI_Get_count(&status, MPI_BYTE, &size);
    const std::vector<std::byte> message(in_.begin(), in_.begin() + size);
    receive();
    hear(status.MPI_SOURCE, message);
    progress = true;
  }
  all_sent();
  return progress;
}

bool Control::all_sent() {
  for (auto outgoing = sending_.begin(); outgoing != sending_.end();) {
    int flag = 0;
    check_mpi(MPI_Test(&outgoing->request, &flag, MPI_STATUS_IGNORE), "MPI_Test");
    outgoing = flag != 0 ? sending_.erase(outgoing) : std::next(outgoing);
  }
  return sending_.empty();
}

}  // namespace moegrad::mpi
