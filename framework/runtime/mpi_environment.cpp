// SPDX-License-Identifier: Apache-2.0
#include "framework/runtime/mpi_environment.h"

#include <charconv>
#include <cstdlib>
#include <string_view>

namespace moegrad {
namespace {

std::optional<int> number_in(const char* name) {
  const char* const value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): never written
  if (value == nullptr) return std::nullopt;
  const std::string_view text = value;
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

}  // namespace

std::optional<MpiEnvironment> mpi_environment() {
  struct Names {
    const char* rank;
    const char* size;
  };
  // Set by mpirun; by srun with PMIx, in a step of a job and in a job of one step; by the mpirun of
  // MPICH and its kin, of whose processes each would else be a run of its own, on the same files.
  constexpr Names kLaunchers[] = {{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                                  {"PMIX_RANK", "SLURM_STEP_NUM_TASKS"},
                                  {"PMIX_RANK", "SLURM_NTASKS"},
                                  {"PMI_RANK", "PMI_SIZE"}};
  for (const auto& names : kLaunchers) {
    const auto rank = number_in(names.rank);
    const auto size = number_in(names.size);
    if (rank && size && 0 <= *rank && *rank < *size) {
      return MpiEnvironment{
          .rank = *rank, .size = *size, .rank_variable = names.rank, .size_variable = names.size};
    }
  }
  return std::nullopt;
}

int default_world_size(int otherwise) {
  const auto started = mpi_environment();
  return started ? started->size : otherwise;
}

bool is_first_process() {
  const auto started = mpi_environment();
  return !started || started->rank == 0;
}

}  // namespace moegrad
