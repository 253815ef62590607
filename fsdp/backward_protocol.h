// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "framework/tensor/tensor.h"
#include "fsdp/unit.h"

namespace moegrad::fsdp {

class CommContext;
class ForwardOrder;
struct IterationOrder;

/// What one unit does while a backward passes through it (Note [FSDP and autograd]): gathers when
/// the tape enters its first module, frees and reduces when the tape has left its last.
class BackwardProtocol {
 public:
  explicit BackwardProtocol(Unit& unit) : unit_(unit) {}
  BackwardProtocol(const BackwardProtocol&) = delete;
  BackwardProtocol& operator=(const BackwardProtocol&) = delete;

  /// Before the next backward, or after an exception in one.
  void reset() { entered_ = left_ = waits_ = false; }

  /// The tape enters a module: unshard, wait; with the first one, issue the backward prefetch.
  void enter(const IterationOrder& iteration, ForwardOrder& order);
  // `round` is the number of the root's forward.

  /// The tape has left a module: with the last one, reshard, then reduce or keep the gradients.
  /// Not yet if a parameter is still without the gradient that this backward brings it: the module
  /// ran in parts, of which backward comes to others later, or for several micro-batches. A
  /// parameter whose grad() has a part of its gradient is not waited for: the module may as well
  /// have run twice, and each run is reduced by itself. True if that has happened.
  ///
  /// If all that is still to come waits in a WeightGradientQueue, the gradients are reduced when
  /// the last has come: by arrive(). If something waits and more will come, it is computed now, so
  /// that what is reduced together does not depend on the queue.
  bool leave(std::size_t module, std::int64_t round, CommContext& comm);
  /// A backward has brought a parameter all its gradients: passes them on if they were the last
  /// that leave() has left waiting.
  void arrive(std::int64_t round, CommContext& comm);
  /// The outermost backward has ended: does what leave() has not, because the tape never left or
  /// more gradients came after that, such as from a use outside the modules. True if there was
  /// anything.
  bool finish(std::int64_t round, CommContext& comm, bool is_last_backward);

 private:
  bool awaits_gradients() const;
  void compute_waiting(bool (*of)(const Tensor& parameter));
  void pass_on_gradients(std::int64_t round, CommContext& comm);

  Unit& unit_;
  bool entered_ = false;           // by a backward that has not left yet
  bool left_ = false;              // by this backward
  bool waits_ = false;             // left, but some gradients wait in a queue
  std::size_t last_to_leave_ = 0;  // the module whose end is the end of that
};

}  // namespace moegrad::fsdp
