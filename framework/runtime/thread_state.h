// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include "framework/runtime/cpu_kernels.h"
#include "framework/runtime/memory_tag.h"

namespace moegrad {

class RankContext;
class DropoutIdsGuard;
struct WaitingGradients;
struct DropoutIds;
struct SavedTensorHooks;
struct Scope;
namespace detail {
class LeafRecorder;
struct PolicyInForce;
}  // namespace detail

/// A part of the tokens of a micro-batch (Note [Micro-batches in one backward]).
struct MicroBatchPart {
  int number = 0;  // of the micro-batch
  int part = 0;
  int use = 0;  // of a weight whose uses are summed apart (Note [Uses of a tied weight])
};

/// What the code that a thread runs works under. The guards set it: RankContextGuard, NoGradGuard,
/// MetaGuard, MemoryTagGuard and the others.
///
/// A new thread has a state of its own, without a rank. To go on in another thread with the work of
/// this one, carry its state over:
///
///     std::thread([state = ThreadState::capture()] {
///       const ThreadStateGuard guard(state);
///       ...
///     })
///
/// The guards that have set the state must live as long as the other thread uses it. The threads
/// that share a state share the count of a tape: numbers rise in each of them. To have the same
/// order of backward each time, let one of them at a time record. A backward that is running is not
/// part of the state: it stays in its thread.
struct ThreadState {
  /// The state of the calling thread, for guards to change.
  static ThreadState& current();
  /// A copy of it, with the rank of the main thread, too, and with the count of its tape.
  static ThreadState capture();

  RankContext* rank = nullptr;
  std::optional<CpuKernels> kernels = {};  // of the rank, on a thread of its pool
  bool grad_mode = true;
  bool meta_mode = false;
  bool anomaly_detection = false;
  MemoryTag memory_tag = MemoryTag::kActivations;
  MicroBatchPart micro_batch = {};  // of those that one backward will go through
  std::shared_ptr<WaitingGradients> weight_gradients = nullptr;
  const SavedTensorHooks* saved_tensor_hooks = nullptr;
  std::shared_ptr<const detail::PolicyInForce> checkpoint_policy = nullptr;
  std::shared_ptr<const Scope> scope = nullptr;
  std::shared_ptr<const DropoutIds> dropout_ids = nullptr;
  DropoutIdsGuard* dropout_guard = nullptr;  // the one that has set them
  bool checkpoint_forward = false;           // in_checkpoint_forward()
  detail::LeafRecorder* leaf_recorder = nullptr;
  std::uint64_t body_begin = 0;  // on the tape, of the body that a checkpoint runs again
  /// How many entries the tape has had; null: none yet.
  std::shared_ptr<std::atomic<std::uint64_t>> tape_entries = nullptr;
};

/// Sets one value of the calling thread's state until the guard goes out of scope.
template <auto kMember>
class [[nodiscard]] ThreadValueGuard {
 public:
  using Value = std::remove_reference_t<decltype(std::declval<ThreadState&>().*kMember)>;

  explicit ThreadValueGuard(Value value)
      : previous_(std::exchange(ThreadState::current().*kMember, std::move(value))) {}
  ~ThreadValueGuard() { ThreadState::current().*kMember = std::move(previous_); }
  ThreadValueGuard(const ThreadValueGuard&) = delete;
  ThreadValueGuard& operator=(const ThreadValueGuard&) = delete;

 private:
  Value previous_;
};

/// Gives the calling thread a state until the guard goes out of scope.
class [[nodiscard]] ThreadStateGuard {
 public:
  explicit ThreadStateGuard(const ThreadState& state) : previous_(ThreadState::current()) {
    ThreadState::current() = state;
  }
  ~ThreadStateGuard() { ThreadState::current() = previous_; }
  ThreadStateGuard(const ThreadStateGuard&) = delete;
  ThreadStateGuard& operator=(const ThreadStateGuard&) = delete;

 private:
  ThreadState previous_;
};

}  // namespace moegrad
