// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/mpi/control.h"

#include <cassert>
#include <utility>

#include "framework/distributed/engine/transport.h"

namespace moegrad::mpi {
namespace {

constexpr int kTag = 0;

}  // namespace

bool all_done(std::list<Buffer>& buffers) {
  std::erase_if(buffers, [](Buffer& buffer) {
    int flag = 0;
    check_mpi(MPI_Test(&buffer.request, &flag, MPI_STATUS_IGNORE), "MPI_Test");
    return flag != 0;
  });
  return buffers.empty();
}

Control::Control(MPI_Comm comm) : comm_(comm), in_(Transport::kLongestMessage) { receive(); }

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
  assert(message.size() <= Transport::kLongestMessage);
  auto& outgoing = sending_.emplace_back(Buffer{.bytes = std::move(message)});
  check_mpi(MPI_Isend(outgoing.bytes.data(), static_cast<int>(outgoing.bytes.size()), MPI_BYTE, to,
                      kTag, comm_, &outgoing.request),
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

}  // namespace moegrad::mpi
