// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "framework/runtime/thread_state.h"
#include "framework/tensor/tensor.h"

namespace moegrad {

/// Note [Dropout masks]
/// Whether dropout keeps an element is a pure function of the seed, the path of the module, the
/// optimizer step, the draw, the token's global id and the channel; in attention, of the head and
/// the global ids of query and key instead of token and channel. No mask is stored: backward, and a
/// layer that is recomputed, find the same one again. Nor does it depend on how many ranks and
/// threads there are, or on how tokens are divided into micro-batches. What is not in the module's
/// arguments is in DropoutIds:
///
///     const DropoutIdsGuard guard({.seed = 1, .step = step, .token_ids = ids});
///     const Tensor y = model(x);
///
/// Give each token of a step, over all micro-batches and ranks, an id of its own, such as its
/// position in the step's batch. Tokens with the same id lose the same channels.
///
/// So a second forward of the same tokens in the same step has the masks of the first, where
/// PyTorch draws others. If others are wanted, as by R-Drop or to sample predictions, count the
/// forwards in `draw`:
///
///     const DropoutIdsGuard guard({.seed = 1, .step = step, .draw = 1});
///     const Tensor again = model(x);
///
/// A module that drops a second time under one guard logs a warning, once for the model, unless a
/// backward has run it again. So does one that drops on one of several ranks without token_ids.
struct DropoutIds {
  /// Has no default: with one step for all, a run would train with one mask.
  class Step {
   public:
    Step(std::int64_t value) : value_(value) {}       // NOLINT(google-explicit-constructor)
    operator std::int64_t() const { return value_; }  // NOLINT(google-explicit-constructor)

   private:
    std::int64_t value_;
  };

  std::uint64_t seed = 0;
  Step step;
  /// int64 [T], of the rows of what is dropped from. Undefined: rows count from 0, which is right
  /// as long as a step has one micro-batch and one rank.
  Tensor token_ids = {};
  /// Another one gives the same tokens of the same step other masks.
  std::int64_t draw = 0;
};

/// Gives this thread ids for dropout until the guard goes out of scope. The backward of a
/// checkpoint runs its body with the ids that forward had.
class [[nodiscard]] DropoutIdsGuard {
 public:
  explicit DropoutIdsGuard(const DropoutIds& ids)
      : DropoutIdsGuard(std::make_shared<const DropoutIds>(ids)) {}
  explicit DropoutIdsGuard(std::shared_ptr<const DropoutIds> ids)
      : ids_(std::move(ids)), guard_(this) {}

  /// The ids of this thread; null outside any guard.
  static const std::shared_ptr<const DropoutIds>& current() {
    return ThreadState::current().dropout_ids;
  }
  /// Whether what draws for `purpose` does so for the first time under the innermost guard.
  static bool is_first_draw(const std::string& purpose);

 private:
  ThreadValueGuard<&ThreadState::dropout_ids> ids_;
  ThreadValueGuard<&ThreadState::dropout_guard> guard_;
  std::mutex mutex_;  // guards drawn_: several threads may share a ThreadState
  std::set<std::string> drawn_;
};

}  // namespace moegrad
