// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "framework/tensor/tensor.h"

namespace moegrad::fsdp {

class CommContext;
struct Context;
class ForwardOrder;
class State;

/// What one state does while a backward passes through it (Note [FSDP and autograd]): gathers when
/// the tape enters its first module, frees and reduces when the tape has left its last.
class BackwardProtocol {
 public:
  explicit BackwardProtocol(State& state) : state_(state) {}
  BackwardProtocol(const BackwardProtocol&) = delete;
  BackwardProtocol& operator=(const BackwardProtocol&) = delete;

  /// Before the next backward, or after an exception in one.
  void reset() { entered_ = left_ = waits_ = false; }

  /// The tape enters a module: unshard, wait; with the first one, issue the backward prefetch.
  void enter(const Context& context, ForwardOrder& order);
  /// The tape has left a module: with the last one, reshard, then reduce or keep the gradients.
  /// Not yet if a parameter is still without the gradient that this backward brings it: the module
  /// ran in parts, of which backward comes to others later, or for several micro-batches. A
  /// parameter whose grad() has a part of its gradient is not waited for: the module may as well
  /// have run twice, and each run is reduced by itself. True if that has happened.
  ///
  /// If all that is still to come waits in a WeightGradientQueue, the gradients are reduced when
  /// the last has come: by arrive(). If something waits and more will come, it is computed now, so
  /// that what is reduced together does not depend on the queue.
  bool leave(std::size_t module, const Context& context, CommContext& comm);
  /// A backward has brought a parameter all its gradients: passes them on if they were the last
  /// that leave() has left waiting.
  void arrive(const Context& context, CommContext& comm);
  /// The outermost backward has ended: does what leave() has not, because the tape never left or
  /// more gradients came after that, such as from a use outside the modules. True if there was
  /// anything.
  bool finish(const Context& context, CommContext& comm, bool is_last_backward);

 private:
  bool awaits_gradients() const;
  void compute_waiting(bool (*of)(const Tensor& parameter));
  void pass_on_gradients(const Context& context, CommContext& comm);

  State& state_;
  bool entered_ = false;           // by a backward that has not left yet
  bool left_ = false;              // by this backward
  bool waits_ = false;             // left, but some gradients wait in a queue
  std::size_t last_to_leave_ = 0;  // the module whose end is the end of that
};

}  // namespace moegrad::fsdp
