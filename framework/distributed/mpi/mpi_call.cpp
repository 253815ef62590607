// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/mpi/mpi_call.h"

namespace moegrad::mpi {

const char* to_string(CallState state) {
  switch (state) {
    case CallState::kIssued:
      return "issued";
    case CallState::kJoined:
      return "joined";
    case CallState::kRunning:
      return "running";
    case CallState::kDone:
      return "done";
    case CallState::kFailed:
      return "failed";
    case CallState::kGivenUp:
      break;
  }
  return "given up";
}

LineKey across(LineKey key) {
  if (key.from >= 0) key.side = 1 - key.side;
  return key;
}

}  // namespace moegrad::mpi
