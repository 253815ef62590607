// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "fsdp/unit.h"

namespace moegrad::fsdp {

class ForwardOrder;

/// In which order an iteration has reached the units below one root.
struct IterationOrder {
  /// The forward that is running. CPU compute is synchronous, so nothing runs ahead by itself:
  /// forward prefetch issues what came next last time.
  std::vector<ForwardOrder*> forward;
  /// One entry per forward call that backward will come back to; null where a later module of the
  /// same call took over.
  std::vector<ForwardOrder*> post_forward;
};

/// The place of one unit in the order of forwards: which of its modules have run in the forward
/// call under way, which calls backward has yet to come back to, and whom to gather ahead.
class ForwardOrder {
 public:
  struct Call {
    std::optional<std::size_t> index;  // in IterationOrder::post_forward
    std::size_t first_module = 0;      // that it began with, and that backward leaves last
  };

  ForwardOrder(Unit& unit, std::size_t num_modules) : unit_(unit), ran_(num_modules) {}
  ForwardOrder(const ForwardOrder&) = delete;
  ForwardOrder& operator=(const ForwardOrder&) = delete;

  // --- one forward call, which calls each module of the state
  bool none_ran() const;
  bool all_ran() const;
  void begin_call(IterationOrder& iteration, std::size_t module);
  void end_module(std::size_t module) { ran_[module] = true; }
  /// Backward comes back first to the module that ran last, so the last of several takes the place
  /// in IterationOrder::post_forward.
  void note_for_backward(IterationOrder& iteration);
  void end_call();
  /// Forgets the call under way, which an exception has ended.
  void abandon_call();

  // --- calls that backward comes back to
  /// The last of them, which is no longer one then; without an index where there is none.
  Call take_call();
  void forget_calls() { calls_.clear(); }

  // --- prefetch
  /// What to gather when a forward or a backward begins here, instead of the default.
  void set_forward_prefetch(std::vector<ForwardOrder*> next) {
    forward_prefetch_ = std::move(next);
  }
  void set_backward_prefetch(std::vector<ForwardOrder*> next) {
    backward_prefetch_ = std::move(next);
  }
  /// The iteration that began here has reached the units in this order.
  void end_iteration(std::vector<ForwardOrder*> order) { last_order_ = std::move(order); }
  /// By default the `ahead` units that came next in the last iteration that began as this one.
  void prefetch_forward(const IterationOrder& iteration, int ahead) const;
  /// By default what backward reaches after the call at `index`.
  void prefetch_backward(const IterationOrder& iteration, std::optional<std::size_t> index) const;

  /// Called for a unit that ends before this one.
  void forget(const ForwardOrder* other);

 private:
  void gather(GatheredFor use) const;

  Unit& unit_;
  std::vector<bool> ran_;                  // modules whose forward has run in this forward call
  std::size_t first_module_ = 0;           // that the forward call began with
  std::optional<std::size_t> noted_;       // its index in IterationOrder::post_forward
  std::vector<Call> calls_;                // that backward has not come back to
  std::vector<ForwardOrder*> last_order_;  // of the last iteration that began here
  std::optional<std::vector<ForwardOrder*>> forward_prefetch_, backward_prefetch_;
};

}  // namespace moegrad::fsdp
