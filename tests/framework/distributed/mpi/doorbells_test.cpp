// SPDX-License-Identifier: Apache-2.0
// Runs on eight processes of one host.
#include "framework/distributed/mpi/doorbells.h"

#include <gmock/gmock.h>
#include <signal.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>

#include "framework/distributed/collectives.h"
#include "framework/distributed/mpi/launch_mpi.h"
#include "framework/distributed/mpi/mpi_process.h"
#include "tests/testing.h"

namespace moegrad::doorbells_test {
namespace {

using mpi::Doorbells;

// Longer than any test takes: a ring that is missed is a timeout of the test.
constexpr auto kForever = std::chrono::hours(1);

/// Doorbells of the processes of a launch, or of this one alone.
class OnTheThreadOfMpi {
 public:
  explicit OnTheThreadOfMpi(MPI_Comm comm) {
    mpi::MpiProcess::instance().run([&] {
      bells_.emplace(comm);
      return true;
    });
  }
  Doorbells& operator*() { return *bells_; }
  Doorbells* operator->() { return &*bells_; }

 private:
  std::optional<Doorbells> bells_;
};

void expect_rung_after(Doorbells& bells, std::uint32_t rings) {
  bells.sleep(rings, CollectiveClock::now() + kForever);
  EXPECT_EQ(bells.rings(), rings + 1);
}

TEST(Doorbells, WakeEachOther) {
  launch_mpi([](RankContext& context) {
    OnTheThreadOfMpi bells(MPI_COMM_WORLD);
    const int rank = context.rank(), next = (rank + 1) % context.world_size();
    EXPECT_TRUE(bells->reach_all());
    for (int round = 0; round < 100; ++round) {
      const auto rings = static_cast<std::uint32_t>(round);
      if (rank == 0) bells->ring(next);
      expect_rung_after(*bells, rings);
      if (rank != 0) bells->ring(next);
    }
    context.group()->barrier()->wait();
    if (rank == 0) bells->ring_all();
    if (rank != 0) expect_rung_after(*bells, 100);
    EXPECT_EQ(bells->rings(), rank == 0 ? 100U : 101U);
    context.group()->barrier()->wait();
  });
}

TEST(Doorbells, RingAtTheirOwnProcess) {
  OnTheThreadOfMpi bells(MPI_COMM_SELF);
  // A ring before the sleep is heard as well.
  bells->ring_own();
  expect_rung_after(*bells, 0);
  std::atomic<bool> sleeps = false;
  std::thread other([&] {
    sleeps.wait(false);
    bells->ring_own();
  });
  sleeps = true;
  sleeps.notify_one();
  expect_rung_after(*bells, 1);
  other.join();
}

TEST(Doorbells, SleepUntilAPointInTime) {
  OnTheThreadOfMpi bells(MPI_COMM_SELF);
  const auto until = CollectiveClock::now() + std::chrono::milliseconds(20);
  while (CollectiveClock::now() < until) bells->sleep(0, until);
  bells->sleep(0, CollectiveClock::time_point());  // long past
  EXPECT_EQ(bells->rings(), 0U);
}

/// While it lives, this process cannot make files longer, as where a file system is full.
class NoRoomForFiles {
 public:
  NoRoomForFiles() {
    getrlimit(RLIMIT_FSIZE, &before_);
    auto none = before_;
    none.rlim_cur = 0;
    handler_ = signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &none);
  }
  ~NoRoomForFiles() {
    setrlimit(RLIMIT_FSIZE, &before_);
    signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_ = {};
  sighandler_t handler_ = SIG_DFL;
};

TEST(Doorbells, RingAtTheirOwnProcessAloneWhereThereIsNoMemoryToShare) {
  launch_mpi([](RankContext& context) {
    std::optional<NoRoomForFiles> full;
    if (context.rank() == 0) full.emplace();
    OnTheThreadOfMpi bells(MPI_COMM_WORLD);
    full.reset();
    EXPECT_FALSE(bells->reach_all());
    bells->ring_all();
    for (int each = 0; each < context.world_size(); ++each) {
      EXPECT_FALSE(bells->reach(each));
      bells->ring(each);
    }
    context.group()->barrier()->wait();
    EXPECT_EQ(bells->rings(), 0U);
    bells->ring_own();
    expect_rung_after(*bells, 0);
  });
}

TEST(Doorbells, LeaveNoFile) {
  launch_mpi([](RankContext& context) {
    const OnTheThreadOfMpi bells(MPI_COMM_WORLD);
    context.group()->barrier()->wait();
    for (const auto& file : std::filesystem::directory_iterator("/dev/shm")) {
      EXPECT_THAT(file.path().filename().string(),
                  ::testing::Not(::testing::StartsWith("moegrad.doorbells.")));
    }
    context.group()->barrier()->wait();
  });
}

}  // namespace
}  // namespace moegrad::doorbells_test
