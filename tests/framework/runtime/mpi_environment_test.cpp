// SPDX-License-Identifier: Apache-2.0
#include "framework/runtime/mpi_environment.h"

#include <cstdlib>
#include <map>
#include <string>

#include "framework/distributed/launch.h"
#include "tests/testing.h"

namespace moegrad::mpi_environment_test {
namespace {

/// Sets environment variables until it goes out of scope.
class Variables {
 public:
  explicit Variables(std::map<std::string, std::string> values) : values_(std::move(values)) {
    for (const auto& [name, value] : values_) setenv(name.c_str(), value.c_str(), 1);
  }
  ~Variables() {
    for (const auto& [name, value] : values_) unsetenv(name.c_str());
  }
  Variables(const Variables&) = delete;
  Variables& operator=(const Variables&) = delete;

 private:
  std::map<std::string, std::string> values_;
};

TEST(MpiEnvironment, IsNoneWhereNothingHasStartedTheProgram) {
  EXPECT_FALSE(mpi_environment().has_value());
  EXPECT_TRUE(is_first_process());
  EXPECT_EQ(default_world_size(3), 3);
}

TEST(MpiEnvironment, ComesFromMpirunOrSrun) {
  const std::map<std::string, std::string> started[] = {
      {{"OMPI_COMM_WORLD_RANK", "2"}, {"OMPI_COMM_WORLD_SIZE", "4"}},
      {{"PMIX_RANK", "2"}, {"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_NTASKS", "8"}},
      {{"PMIX_RANK", "2"}, {"SLURM_NTASKS", "4"}},
      {{"PMI_RANK", "2"}, {"PMI_SIZE", "4"}},  // of MPICH
      // mpirun within a job of Slurm
      {{"OMPI_COMM_WORLD_RANK", "2"},
       {"OMPI_COMM_WORLD_SIZE", "4"},
       {"PMIX_RANK", "2"},
       {"SLURM_NTASKS", "8"}}};
  for (const auto& variables : started) {
    const Variables set(variables);
    const auto found = mpi_environment();
    ASSERT_TRUE(found.has_value());
    EXPECT_EQ(found->rank, 2);
    EXPECT_EQ(found->size, 4);
    EXPECT_FALSE(is_first_process());
    EXPECT_EQ(default_world_size(3), 4);
    EXPECT_EQ(variables.at(found->rank_variable), "2");
    EXPECT_EQ(variables.at(found->size_variable), "4");
  }
}

TEST(MpiEnvironment, IsNoneWhereVariablesAreNotNumbersThatFit) {
  const std::map<std::string, std::string> not_started[] = {
      {{"OMPI_COMM_WORLD_RANK", "4"}, {"OMPI_COMM_WORLD_SIZE", "4"}},
      {{"OMPI_COMM_WORLD_RANK", "x"}, {"OMPI_COMM_WORLD_SIZE", "4"}},
      {{"OMPI_COMM_WORLD_SIZE", "4"}},
      {{"SLURM_NTASKS", "4"}}};
  for (const auto& variables : not_started) {
    const Variables set(variables);
    EXPECT_FALSE(mpi_environment().has_value());
  }
}

TEST(MpiEnvironment, OfSeveralProcessesAllowsNoRanksAsThreads) {
  const Variables set({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "2"}});
  EXPECT_EQ(
      test::message_of<Error>([] { launch(2, [](RankContext&) {}); }),
      "launch: its ranks are threads of one process, but mpirun has started this program as 2 "
      "processes; link moegrad::mpi and call launch_mpi(), or start the program without "
      "mpirun");
}

TEST(MpiEnvironment, OfOneProcessAllowsRanksAsThreads) {
  const Variables set({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}});
  int ran = 0;
  launch(1, [&](RankContext&) { ++ran; });
  EXPECT_EQ(ran, 1);
}

}  // namespace
}  // namespace moegrad::mpi_environment_test
