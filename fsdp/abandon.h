// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>

#include "framework/distributed/process_group.h"

namespace moegrad::fsdp {

/// Waits until `work`, which may be null, has ended one way or the other. For a call whose result
/// nobody wants any more: if it failed, whoever needs its group next will hear of that.
inline void abandon(WorkPtr work) {
  try {
    if (work) work->wait();
  } catch (const std::exception&) {
  }
}

}  // namespace moegrad::fsdp
