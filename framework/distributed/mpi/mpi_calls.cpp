// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/mpi/mpi_calls.h"

#include <array>
#include <string>

#include "framework/runtime/error.h"

namespace moegrad::mpi {

void check_mpi(int code, const char* call) {
  if (code == MPI_SUCCESS) [[likely]]
    return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  throw Error(std::string(call) + ": " +
              std::string(text.data(), static_cast<std::size_t>(length)));
}

}  // namespace moegrad::mpi
