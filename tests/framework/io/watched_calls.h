// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <map>
#include <string>

namespace moegrad::test {

/// While in scope, records the calls that change the disk which this program makes, and lets them
/// fail on demand: write, pwrite, fsync, rename, mkdir, symlink, unlink. One at a time, of one
/// thread at a time.
class WatchedCalls {
 public:
  WatchedCalls();
  ~WatchedCalls();
  WatchedCalls(const WatchedCalls&) = delete;
  WatchedCalls& operator=(const WatchedCalls&) = delete;

  /// Such as "write write fsync(file) rename fsync(folder)".
  const std::string& calls() const { return calls_; }
  /// Lets call number `call`, counted from 0, fail with that errno.
  void fail(int call, int error);
  /// Lets every call of that name fail with that errno.
  void refuse(const std::string& call, int error) { refused_[call] = error; }
  /// Whether the call of fail() has come.
  bool failed() const { return count_ > failing_; }
  /// Lets every write or pwrite write at most `bytes`.
  void shorten_writes(std::size_t bytes) { most_written_ = bytes; }

  // --- for the replaced functions
  static WatchedCalls* current();
  /// Notes a call; returns the errno with which it shall fail, else 0.
  int note(const std::string& call);
  std::size_t most_written() const { return most_written_; }

 private:
  std::string calls_;
  int count_ = 0;
  int failing_ = -1;
  int error_ = 0;
  std::map<std::string, int> refused_;
  std::size_t most_written_ = static_cast<std::size_t>(-1);
};

}  // namespace moegrad::test
