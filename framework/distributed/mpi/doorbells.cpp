// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/mpi/doorbells.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <string>
#include <utility>

namespace moegrad::mpi {
namespace {

long futex(std::atomic<std::uint32_t>& word, int operation, std::uint32_t value,
           const timespec* until) {
  return syscall(SYS_futex, &word, operation, value, until, nullptr, FUTEX_BITSET_MATCH_ANY);
}

timespec to_timespec(CollectiveClock::time_point time) {
  const auto since = time.time_since_epoch();
  const auto seconds = std::chrono::floor<std::chrono::seconds>(since);
  return {.tv_sec = seconds.count(), .tv_nsec = std::chrono::nanoseconds(since - seconds).count()};
}

// Null where the system refuses.
void* map_shared(const std::string& name, std::size_t bytes, int flags) {
  const int descriptor = shm_open(name.c_str(), O_RDWR | flags, 0600);
  if (descriptor < 0) return nullptr;
  // Takes the memory at once: later, a lack of it would be a signal.
  const bool has_room = posix_fallocate(descriptor, 0, static_cast<off_t>(bytes)) == 0;
  void* const memory = has_room
                           ? mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0)
                           : MAP_FAILED;
  close(descriptor);
  if (memory != MAP_FAILED) return memory;
  if ((flags & O_CREAT) != 0) shm_unlink(name.c_str());
  return nullptr;
}

}  // namespace

Doorbells::Doorbells(MPI_Comm all) {
  int rank = 0, size = 0;
  MPI_Comm_rank(all, &rank);
  MPI_Comm_size(all, &size);
  bells_.resize(static_cast<std::size_t>(size));
  MPI_Comm host = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split_type(all, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &host),
            "MPI_Comm_split_type");
  int own = 0, neighbours = 0;
  MPI_Comm_rank(host, &own);
  MPI_Comm_size(host, &neighbours);
  std::vector<int> ranks(static_cast<std::size_t>(neighbours));
  check_mpi(MPI_Allgather(&rank, 1, MPI_INT, ranks.data(), 1, MPI_INT, host), "MPI_Allgather");
  // A host is known by its lowest rank.
  hosts_.resize(bells_.size());
  check_mpi(MPI_Allgather(ranks.data(), 1, MPI_INT, hosts_.data(), 1, MPI_INT, all),
            "MPI_Allgather");

  // The first makes the memory, under a name that is gone when all have opened it.
  std::uint32_t token = std::random_device()();
  check_mpi(MPI_Bcast(&token, 1, MPI_UINT32_T, 0, host), "MPI_Bcast");
  const auto name = "/moegrad.doorbells." + std::to_string(token);
  const auto bytes = ranks.size() * sizeof(Bell);
  const auto agreed = [&](bool well) {
    int one = well, all_well = 0;
    check_mpi(MPI_Allreduce(&one, &all_well, 1, MPI_INT, MPI_MIN, host), "MPI_Allreduce");
    return all_well != 0;
  };
  void* memory = own == 0 ? map_shared(name, bytes, O_CREAT | O_EXCL) : nullptr;
  if (agreed(own != 0 || memory != nullptr)) {
    if (own != 0) memory = map_shared(name, bytes, 0);
    if (!agreed(memory != nullptr) && memory != nullptr) {
      munmap(std::exchange(memory, nullptr), bytes);
    }
    if (own == 0) shm_unlink(name.c_str());
  }
  MPI_Comm_free(&host);
  if (memory == nullptr) return;
  memory_ = std::shared_ptr<void>(memory, [bytes](void* mapped) { munmap(mapped, bytes); });
  auto* const bells = static_cast<Bell*>(memory);
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    bells_[static_cast<std::size_t>(ranks[i])] = &bells[i];
  }
  own_ = &bells[own];
}

bool Doorbells::reach_all() const {
  return std::ranges::all_of(bells_, [](const Bell* bell) { return bell != nullptr; });
}

void Doorbells::ring_all() {
  for (auto* const bell : bells_) {
    if (bell != nullptr && bell != own_) ring(*bell);
  }
}

void Doorbells::ring(int rank) {
  if (reach(rank)) ring(*bells_[static_cast<std::size_t>(rank)]);
}

void Doorbells::ring(Bell& bell) {
  ++bell.rings;
  if (bell.sleeps != 0) futex(bell.rings, FUTEX_WAKE_BITSET, 1, nullptr);
}

void Doorbells::sleep(std::uint32_t rings, CollectiveClock::time_point until) {
  const auto time = to_timespec(until);
  own_->sleeps = 1;
  // Returns at once if it has rung since.
  futex(own_->rings, FUTEX_WAIT_BITSET, rings, &time);
  own_->sleeps = 0;
}

}  // namespace moegrad::mpi
