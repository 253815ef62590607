// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the tests of the collectives share: numbers whose sum depends on its order, the reference
// reduction, and the errors that the ranks of a launch see.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <latch>
#include <random>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "framework/distributed/collectives.h"
#include "framework/distributed/launch.h"
#include "framework/distributed/process_group.h"
#include "framework/runtime/mpi_environment.h"

namespace moegrad::test {

inline const int kWorldSizes[] = {1, 2, 3, 4, 8};

/// Counts that are empty, single, fewer than ranks, odd, and longer than one piece of a reduction.
inline const std::size_t kCounts[] = {0, 1, 7, 64, 4099};

/// Different for each rank; magnitudes vary so that the order of a sum shows in its last bits.
template <class T>
std::vector<T> numbers(int rank, std::size_t count) {
  std::mt19937_64 bits(static_cast<std::uint64_t>(rank) + 1);
  std::vector<T> values(count);
  for (auto& value : values) {
    if constexpr (std::is_same_v<T, std::int64_t>) {
      value = static_cast<std::int64_t>(bits());
    } else {
      const auto mantissa = static_cast<float>(bits() % 2000001) - 1e6F;
      value = static_cast<T>(mantissa / static_cast<float>(1U << (bits() % 12)));
    }
  }
  return values;
}

template <class T>
T combine(T a, T b, ReduceOp op) {
  if (op == ReduceOp::kMax) {
    if constexpr (std::is_same_v<T, BFloat16>) {
      return static_cast<float>(a) > static_cast<float>(b) ? a : b;
    } else {
      return a > b ? a : b;
    }
  }
  if constexpr (std::is_same_v<T, BFloat16>) {
    return BFloat16(static_cast<float>(a) + static_cast<float>(b));
  } else if constexpr (std::is_same_v<T, std::int64_t>) {
    return static_cast<T>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
  } else {
    return a + b;
  }
}

/// Element `i` of ranks [lo, hi) combined as Note [Reduction order] says.
template <class T>
T tree(const std::vector<std::vector<T>>& inputs, std::size_t i, std::size_t lo, std::size_t hi,
       ReduceOp op) {
  if (hi - lo == 1) return inputs[lo][i];
  std::size_t left = 1;
  while (left * 2 < hi - lo) left *= 2;
  return combine(tree(inputs, i, lo, lo + left, op), tree(inputs, i, lo + left, hi, op), op);
}

template <class T>
std::vector<T> reduced(int ranks, std::size_t count, ReduceOp op) {
  std::vector<std::vector<T>> inputs;
  for (int rank = 0; rank < ranks; ++rank) inputs.push_back(numbers<T>(rank, count));
  std::vector<T> result(count);
  for (std::size_t i = 0; i < count; ++i) result[i] = tree(inputs, i, 0, inputs.size(), op);
  return result;
}

/// A latch that the ranks of a launch share. Ranks that are processes share no memory: there, who
/// waits goes on after `time`, which must be longer than the others need.
class RankLatch {
 public:
  explicit RankLatch(std::ptrdiff_t count,
                     std::chrono::milliseconds time = std::chrono::milliseconds(1'000))
      : latch_(count), time_(time) {}
  void count_down() { latch_.count_down(); }
  void wait() {
    if (!mpi_environment()) return latch_.wait();
    std::this_thread::sleep_for(time_);
  }

 private:
  std::latch latch_;
  std::chrono::milliseconds time_;
};

/// What each rank has written into its own entry. Where ranks are processes, each has seen its own
/// alone; now all have all, those without a rank, too.
inline std::vector<std::string> of_all_ranks(std::vector<std::string> own) {
  const auto started = mpi_environment();
  if (!started) return own;
  std::vector<std::string> all;
  launch(started->size, [&](RankContext& context) {
    const auto rank = static_cast<std::size_t>(context.rank());
    all = all_gather_texts(context.group(), rank < own.size() ? own[rank] : std::string());
  });
  all.resize(own.size());
  return all;
}

/// Runs `body` on every rank and returns the CollectiveError that each saw, "" where none.
inline std::vector<std::string> errors_of(
    int world_size, const std::function<void(RankContext&)>& body,
    std::chrono::milliseconds deadline = std::chrono::milliseconds(60'000)) {
  std::vector<std::string> errors(static_cast<std::size_t>(world_size));
  launch(world_size,
         [&](RankContext& context) {
           try {
             body(context);
           } catch (const CollectiveError& error) {
             errors[static_cast<std::size_t>(context.rank())] = error.what();
           }
         },
         {.deadline = deadline, .on_failure = [](const std::string&) {}});
  return of_all_ranks(std::move(errors));
}

/// The message of the E that `body` throws.
template <class E>
std::string error_message(const std::function<void()>& body) {
  try {
    body();
  } catch (const E& error) {
    return error.what();
  }
  ADD_FAILURE() << "no exception";
  return {};
}

}  // namespace moegrad::test
