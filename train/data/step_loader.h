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
///     StepLoader loader(data, plan.indices());
///     for (...) train_step(model, plan, loader.batches(step), options, optimizer);
class StepLoader {
 public:
  /// `indices`: the micro-batches that this rank runs, in order. `data` must outlive it.
  StepLoader(const StepData& data, std::vector<std::int64_t> indices);
  StepLoader(const StepData&&, std::vector<std::int64_t>) = delete;  // see `data`
  /// Waits for the step that is being made.
  ~StepLoader();
  StepLoader(const StepLoader&) = delete;
  StepLoader& operator=(const StepLoader&) = delete;

  /// The micro-batches of a step. Waits until they are made; throws what stopped that. From then on
  /// those of step + 1 are made.
  std::vector<MicroBatch> batches(std::int64_t step);

 private:
  void make_steps();

  const StepData& data_;
  std::vector<std::int64_t> indices_;

  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::optional<std::int64_t> wanted_;           // the step to make
  std::optional<std::vector<MicroBatch>> made_;  // of that step
  std::exception_ptr failure_ = nullptr;         // what stopped that
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace moegrad::training
