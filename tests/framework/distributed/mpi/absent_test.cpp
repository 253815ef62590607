// SPDX-License-Identifier: Apache-2.0
// A build without Open MPI: the program is linked with what is built in place of launch_mpi.cpp.
#include "framework/distributed/mpi/launch_mpi.h"
#include "tests/testing.h"

namespace moegrad::absent_test {
namespace {

TEST(LaunchMpiWithoutOpenMpi, SaysWhatToInstall) {
  const std::string message =
      "launch_mpi: moegrad was built without Open MPI; install libopenmpi-dev and openmpi-bin, and "
      "configure and build it again; ranks as threads need neither it nor mpirun";
  const auto body = [](RankContext&) { ADD_FAILURE() << "a rank ran"; };
  EXPECT_EQ(test::message_of<Error>([&] { launch_mpi(body); }), message);
  EXPECT_EQ(test::message_of<Error>([&] { launch_mpi(2, body); }), message);
  setenv("OMPI_COMM_WORLD_RANK", "0", 1);
  setenv("OMPI_COMM_WORLD_SIZE", "2", 1);
  EXPECT_EQ(test::message_of<Error>([&] { launch_ranks(2, body); }), message);
  unsetenv("OMPI_COMM_WORLD_RANK");
  unsetenv("OMPI_COMM_WORLD_SIZE");
}

TEST(LaunchMpiWithoutOpenMpi, LeavesRanksAsThreads) {
  std::atomic<int> ran = 0;
  launch_ranks(3, [&](RankContext& context) { ran += context.world_size(); });
  EXPECT_EQ(ran, 9);
}

}  // namespace
}  // namespace moegrad::absent_test
