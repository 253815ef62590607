// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "framework/distributed/engine/transport.h"

namespace moegrad {

/// What a rank shows the others of its call where all can read its memory. Guarded by the launch's
/// mutex. What is shown stays as it is while others read it, without the mutex.
struct MemorySide {
  std::shared_ptr<EngineCall> call;
  CallHeader header = {};
  std::vector<std::byte> inlined = {};  // a copy of the input, where all sum it at once
  std::size_t begun = 0;                // others that have begun their exchange
  std::size_t reading = 0;              // others that read at the moment
  std::size_t unread = 0;               // others that will read, or do
  bool has_sum = false;                 // of its part, in its output
  CollectiveClock::time_point has_sum_since = {};
  bool executed = false;
  bool withdrawn = false;
};

/// Begins to show `call`, whose slot is `own` of `ranks`.
void show(MemorySide& side, std::shared_ptr<EngineCall> call, std::size_t own, std::size_t ranks);

/// Reads the other ranks' memory in place; nothing is staged. Sums run along the tree over all
/// inputs: each rank sums its part of a long all_reduce into its own buffer, where no other reads
/// it, and then copies the other parts from their owners.
class MemoryExchange final : public Exchange {
 public:
  /// `sides`: by slot. `wake`: called with a slot that may go on.
  MemoryExchange(std::vector<MemorySide*> sides, std::size_t own, std::size_t piece_bytes,
                 std::function<void(std::size_t)> wake);

  bool poll(EngineLock& lock, bool delivered, bool may_send) override;
  bool done() const override;
  bool done_with(std::size_t slot) const override;
  bool has_work() const override;
  void cancel() override { cancelled_ = true; }

 private:
  const EngineCall& call() const { return *sides_[own_]->call; }
  bool is_light() const;
  bool can_go_on() const;
  void sum_at_once();
  void step();
  void consume();
  void reduce();
  void copy();
  void pass_on_sum();
  void finish();
  template <class Function>
  void for_others(const Function& function) const;

  std::vector<MemorySide*> sides_;
  std::size_t own_;
  std::size_t piece_bytes_;
  std::function<void(std::size_t)> wake_;
  std::vector<std::byte> scratch_;
  std::size_t reduced_ = 0;  // bytes of this rank's part
  bool hands_out_ = false;   // the second half of a long all_reduce
  std::size_t from_ = 0;     // the slot that is being copied
  std::size_t copied_ = 0;   // bytes of it
  bool all_read_ = false;
  CollectiveClock::time_point summed_at_;
  bool cancelled_ = false;
};

}  // namespace moegrad
