// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <list>
#include <span>
#include <vector>

#include "framework/distributed/mpi/mpi_calls.h"

namespace moegrad::mpi {

/// Bytes of a message under way.
struct Buffer {
  std::vector<std::byte> bytes = {};
  MPI_Request request = MPI_REQUEST_NULL;
};
/// Forgets those that have gone, or come; true if none is left.
bool all_done(std::list<Buffer>& buffers);

/// Short messages between the ranks of a launch, beside its collectives: failures, questions. Each
/// can come at any time and from any rank. Belongs to the thread that calls MPI.
class Control {
 public:
  explicit Control(MPI_Comm comm);
  ~Control();
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;

  void send(int to, std::vector<std::byte> message);
  /// Passes on what has come; true if something has.
  bool poll(const std::function<void(int from, std::span<const std::byte>)>& hear);
  /// Whether everything has been sent.
  bool all_sent() { return all_done(sending_); }
  /// This process calls MPI no more, so nothing is written into the buffers any more.
  void abandon() { receiving_ = MPI_REQUEST_NULL; }

 private:
  void receive();

  MPI_Comm comm_;
  std::vector<std::byte> in_;
  MPI_Request receiving_ = MPI_REQUEST_NULL;
  std::list<Buffer> sending_;
};

}  // namespace moegrad::mpi
