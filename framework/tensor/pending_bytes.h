// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace moegrad {

/// Somebody else, such as a collective, is reading or writing the bytes of a storage.
class PendingBytes {
 public:
  virtual ~PendingBytes() = default;
  /// Blocks until that has ended. Throws what went wrong, each time. May be called from any thread
  /// of the rank.
  virtual void wait() = 0;
};

}  // namespace moegrad
