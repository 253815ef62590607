// SPDX-License-Identifier: Apache-2.0
#include "train/data/step_loader.h"

#include <string>
#include <system_error>
#include <utility>

#include "framework/distributed/slow_storage.h"
#include "framework/runtime/error.h"
#include "framework/runtime/rank_context.h"
#include "framework/runtime/work_time.h"

namespace moegrad::training {

StepLoader::StepLoader(const StepData& data, std::vector<std::int64_t> indices)
    : data_(data), indices_(std::move(indices)) {
  auto& rank = RankContext::current();
  const RankContext::Options same_rank = {
      .rank = rank.rank(), .world_size = rank.world_size(), .log_level = rank.log_level()};
  try {
    thread_ = std::thread([this, same_rank] {
      // The tensors have memory of their own: the arena of a rank counts what the rank computes.
      RankContext context(same_rank);
      const RankContextGuard guard(context);
      make_steps();
    });
  } catch (const std::system_error& error) {
    throw too_few_threads("data", "thread that makes batches", 1, 0, error);
  }
}

StepLoader::~StepLoader() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

std::vector<MicroBatch> StepLoader::batches(std::int64_t step) {
  std::unique_lock lock(mutex_);
  const auto want = [&](std::int64_t wanted) {
    wanted_ = wanted;
    made_.reset();
    failure_ = nullptr;
    changed_.notify_all();
  };
  if (wanted_ != step) want(step);
  {
    // A rank that waits for its disk does not count as stuck, and one that waits for its data is
    // slow in that.
    const SlowStorage storage("reading the batches of step " + std::to_string(step));
    const WorkGuard work(WorkClass::kData);
    changed_.wait(lock, [this] { return made_.has_value() || failure_ != nullptr; });
  }
  if (failure_ != nullptr) std::rethrow_exception(failure_);
  auto batches = std::move(*made_);
  want(step + 1);
  return batches;
}

void StepLoader::make_steps() {
  std::unique_lock lock(mutex_);
  const auto work_is_left = [this] {
    return wanted_.has_value() && !made_.has_value() && failure_ == nullptr;
  };
  while (true) {
    changed_.wait(lock, [&] { return ending_ || work_is_left(); });
    if (ending_) return;
    const auto step = *wanted_;
    lock.unlock();
    std::vector<MicroBatch> batches;
    std::exception_ptr failure;
    try {
      for (const auto index : indices_) batches.push_back(data_.micro_batch(step, index));
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    if (wanted_ != step) continue;  // another one has been asked for meanwhile
    failure_ = failure;
    if (failure == nullptr) made_ = std::move(batches);
    changed_.notify_all();
  }
}

}  // namespace moegrad::training
