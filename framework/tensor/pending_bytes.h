// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace moegrad {

/// What fills the bytes of a storage, such as a collective. When it is destroyed it blocks until
/// that has ended.
class PendingBytes {
 public:
  virtual ~PendingBytes() = default;
  /// Blocks until that has ended. Throws what went wrong, each time. May be called from any thread
  /// of the rank.
  virtual void wait() = 0;
};

/// What reads the bytes of a storage. It holds no handle of that storage.
class ReaderOfBytes {
 public:
  virtual ~ReaderOfBytes() = default;
  /// Blocks until that has ended, well or not. May be called from any thread. Error where nothing
  /// may block, as in the consumer of a collective.
  virtual void await_end() = 0;
  virtual bool has_ended() const = 0;
};

}  // namespace moegrad
