// SPDX-License-Identifier: Apache-2.0
// GoogleTest on several processes that run the same tests side by side.
#include <gmock/gmock.h>

#include <cstdlib>

#include "framework/runtime/mpi_environment.h"

int main(int argc, char** argv) {
  // One record of what passed is enough; a failure on any process fails the whole.
  const auto started = moegrad::mpi_environment();
  if (started && started->rank != 0) unsetenv("GTEST_OUTPUT");
  ::testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
