// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "framework/tensor/tensor.h"

namespace moegrad {

/// Note [Dropout masks]
/// Whether dropout keeps an element is a pure function of the seed, the path of the module, the
/// optimizer step, the token's global id and the channel; in attention, of the head and the global
/// ids of query and key instead of token and channel. No mask is stored: backward, and a layer that
/// is recomputed, find the same one again. Nor does it depend on how many ranks and threads there
/// are, or on how tokens are divided into micro-batches. What is not in the module's arguments is
/// in DropoutIds:
///
///     const DropoutIdsGuard guard({.seed = 1, .step = step, .token_ids = ids});
///     const Tensor y = model(x);
///
/// Give each token of a step, over all micro-batches and ranks, an id of its own, such as its
/// position in the step's batch. Tokens with the same id lose the same channels.
struct DropoutIds {
  std::uint64_t seed = 0;
  std::int64_t step = 0;
  /// int64 [T], of the rows of what is dropped from. Undefined: rows count from 0, which is right
  /// as long as a step has one micro-batch and one rank.
  Tensor token_ids = {};
};

/// Gives this thread ids for dropout until the guard goes out of scope. The backward of a
/// checkpoint runs its body with the ids that forward had.
class [[nodiscard]] DropoutIdsGuard {
 public:
  explicit DropoutIdsGuard(const DropoutIds& ids)
      : DropoutIdsGuard(std::make_shared<const DropoutIds>(ids)) {}
  explicit DropoutIdsGuard(std::shared_ptr<const DropoutIds> ids);
  ~DropoutIdsGuard();
  DropoutIdsGuard(const DropoutIdsGuard&) = delete;
  DropoutIdsGuard& operator=(const DropoutIdsGuard&) = delete;

  /// The ids of this thread; null outside any guard.
  static const std::shared_ptr<const DropoutIds>& current();

 private:
  std::shared_ptr<const DropoutIds> previous_;
};

}  // namespace moegrad
