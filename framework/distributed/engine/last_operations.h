// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

#include "framework/distributed/collective_request.h"

namespace moegrad {

/// What a rank of this process did last, in a form that a signal handler can write, in memory that
/// never moves.
///
/// Note [SIGTERM]
/// When a rank dies, mpirun sends SIGTERM to all others soon after; and who finds a run that stands
/// still sends it, too. So a process that gets SIGTERM first says what its ranks were doing, from
/// the signal handler, since their own threads may be stuck: with open, write and close alone,
/// to standard error and to a file for each rank. Where the ranks are threads and the program has a
/// handler, the file is enough if it can be written: nobody is about to kill it. After that comes
/// what the program does on SIGTERM: whatever handler it had installed before the launch, or the
/// end of the process. mpirun waits before it kills what is left: Open MPI 5.0 for a quarter of a
/// second, 4.1 for a second, but only until one process of its host has ended (seen with 4.1.4: 1.6
/// ms later). So a process that would end at once waits for half a second more, in which the others
/// write, too.
class LastOperations {
 public:
  static constexpr int kLength = 32;

  /// `file`: where it is written beside standard error; empty for nowhere. `is_process`: the rank
  /// has a process of its own.
  LastOperations(int rank, std::string file, bool is_process = true);
  LastOperations(const LastOperations&) = delete;
  LastOperations& operator=(const LastOperations&) = delete;

  /// Notes an operation that begins, and returns its number. By one thread at a time.
  std::uint64_t add(std::string_view text);
  std::uint64_t add(const CollectiveRequest& request);
  /// `state` must be a literal. Nothing where more than kLength operations have begun since.
  void set_state(std::uint64_t number, const char* state);
  /// Writes everything to standard error and to the file; `reason` says why. Async-signal-safe, as
  /// are all that follow.
  void write(const char* reason) const;
  /// On SIGTERM; `is_handled`: by the program, too.
  void write_on_sigterm(bool is_handled) const;
  /// To the file alone. False where that does not succeed; errno says why.
  bool write_file(const char* reason) const;
  const std::string& file() const { return file_; }

  /// While an object lives, SIGTERM is handled as the Note says, unless it is ignored.
  class SignalGuard {
   public:
    explicit SignalGuard(LastOperations& operations);
    ~SignalGuard();
    SignalGuard(const SignalGuard&) = delete;
    SignalGuard& operator=(const SignalGuard&) = delete;

   private:
    LastOperations& operations_;
  };

 private:
  /// Read while it changes, so of words that are read and written as wholes.
  struct Slot {
    std::atomic<std::uint64_t> number = kNone;  // of the operation; kNone while `text` changes
    std::array<std::atomic<std::uint64_t>, 30> text{};
    std::atomic<const char*> state = "";
  };
  using Line = std::array<char, sizeof(Slot::text)>;  // ends with a 0
  static Line read(const Slot& slot);
  static constexpr std::uint64_t kNone = ~std::uint64_t{0};

  Slot& slot_of(std::uint64_t number) { return slots_[number % kLength]; }
  const Slot& slot_of(std::uint64_t number) const { return slots_[number % kLength]; }
  class Text;
  void describe(const char* reason, Text& text) const;
  bool write_file(const Text& text) const;

  std::string title_;  // "rank 3 on host mt2 (process 17, "
  std::string file_;
  bool is_process_;
  std::array<Slot, kLength> slots_;
  std::atomic<std::uint64_t> added_ = 0;
};

}  // namespace moegrad
