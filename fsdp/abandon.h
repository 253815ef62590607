// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>

#include "framework/distributed/process_group.h"

namespace moegrad::fsdp {

/// Waits until `work`, which may be null, has ended or failed. For a call whose result is no longer
/// wanted. If it failed, the next call in its group reports the failure.
inline void abandon(WorkPtr work) {
  try {
    if (work) work->wait();
  } catch (const std::exception&) {
  }
}

}  // namespace moegrad::fsdp
