// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

namespace moegrad::training {

/// Note [Length-grouped sampling]
/// Ranks wait for the slowest, so the packs of one step should take equally long. XTuner's
/// LengthGroupedSampler shuffles the packs, cuts that order into megabatches, sorts each by falling
/// work, cuts it into groups of one step each and shuffles the groups. So the packs of a step are
/// alike, the steps of an epoch are in random order, and each epoch is different.
///
/// Here a group is the M micro-batches of a step, whatever the number of ranks. The group is then
/// put into an order whose halves, quarters, ... weigh about the same. These are the ranks' shares
/// under kKeepUntilLast (Note [Who runs which micro-batch]).
///
/// Epochs follow each other without a gap. Each is a permutation of all packs. If M does not divide
/// their number, a step ends one epoch and begins the next, with packs that are not grouped.
/// Everything is a function of the seed and the step, so there is no state to save.
class LengthGroupedSampler {
 public:
  /// `work` of each pack. ValueError without packs or micro-batches.
  LengthGroupedSampler(std::vector<std::int64_t> work, std::int64_t micro_batches,
                       std::uint64_t seed);

  /// Packs [first, first + count) of the endless sequence of epochs. May be called from any thread.
  std::vector<std::int64_t> packs(std::int64_t first, std::int64_t count) const;
  /// The packs of the M micro-batches of `step`.
  std::vector<std::int64_t> packs_of_step(std::int64_t step) const;

  std::int64_t micro_batches() const { return micro_batches_; }

 private:
  std::vector<std::int64_t> order_of(std::int64_t epoch) const;
  // Sorts and shuffles whole steps.
  void group(std::span<std::int64_t> packs, std::int64_t epoch) const;

  std::vector<std::int64_t> work_;
  std::int64_t micro_batches_;
  std::uint64_t seed_;
  mutable std::mutex mutex_;  // guards the epoch that was asked for last
  mutable std::int64_t epoch_ = -1;
  mutable std::vector<std::int64_t> order_;
};

}  // namespace moegrad::training
