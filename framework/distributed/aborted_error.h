// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "framework/distributed/process_group.h"

namespace moegrad {

/// A collective that failed only because something else failed before it: another rank, or another
/// collective. launch() reports the original failure instead.
class AbortedError final : public CollectiveError {
 public:
  using CollectiveError::CollectiveError;
};

}  // namespace moegrad
