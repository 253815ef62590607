// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "train/data/step_data.h"

namespace moegrad::training {

/// Makes the micro-batches of a rank one step ahead, on a thread of its own, while the rank
/// computes. It makes only those that the rank runs.
///
///     StepLoader loader(data, plan.indices(), first_step);
///     for (...) train_step(model, plan, loader.next(), options, optimizer);
class StepLoader {
 public:
  /// For the steps from `first_step` on. `indices`: the micro-batches that this rank runs, in
  /// order. `data` must outlive it.
  StepLoader(const StepData& data, std::vector<std::int64_t> indices, std::int64_t first_step);
  StepLoader(const StepData&&, std::vector<std::int64_t>, std::int64_t) = delete;  // see `data`
  /// Waits for the step that is being made.
  ~StepLoader();
  StepLoader(const StepLoader&) = delete;
  StepLoader& operator=(const StepLoader&) = delete;

  /// The micro-batches of the next step. Waits until they are made; throws what stopped that.
  std::vector<MicroBatch> next();

 private:
  void make_steps();

  const StepData& data_;
  std::vector<std::int64_t> indices_;

  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::int64_t step_;  // the one to be taken next
  std::optional<std::vector<MicroBatch>> made_;
  std::exception_ptr failure_ = nullptr;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace moegrad::training
