// SPDX-License-Identifier: Apache-2.0
#include "framework/runtime/thread_pool.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "framework/runtime/error.h"
#include "tests/testing.h"

namespace moegrad::thread_pool_test {
namespace {

using test::message_of;

TEST(ThreadPool, RunsEveryTaskOnce) {
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (const std::int64_t tasks : {0, 1, 2, 3, 7, 100}) {
      std::vector<int> runs(static_cast<std::size_t>(tasks), 0);
      pool.run(tasks, [&](std::int64_t i) { ++runs[static_cast<std::size_t>(i)]; });
      for (const int count : runs) EXPECT_EQ(count, 1);
    }
  }
}

TEST(ThreadPool, ServesTwoThreadsAtTheSameTime) {
  ThreadPool pool(3);
  constexpr std::int64_t kRounds = 2000, kTasks = 7;
  const auto sum_of_rounds = [&pool] {
    std::atomic<std::int64_t> sum = 0;
    for (std::int64_t round = 0; round < kRounds; ++round) {
      pool.run(kTasks, [&](std::int64_t i) { sum += round * i; });
    }
    return sum.load();
  };
  std::int64_t other = 0;
  std::thread second([&] { other = sum_of_rounds(); });
  const auto own = sum_of_rounds();
  second.join();
  EXPECT_EQ(own, kRounds * (kRounds - 1) / 2 * kTasks * (kTasks - 1) / 2);
  EXPECT_EQ(other, own);
}

TEST(ThreadPool, ServesAnotherThreadWhileItsWorkersAreTaken) {
  ThreadPool pool(3);
  std::atomic<int> inside = 0;
  std::atomic<bool> other_served = false;
  std::thread other([&] {
    while (inside < 3) std::this_thread::yield();
    std::int64_t sum = 0;  // of tasks on this thread
    pool.run(5, [&](std::int64_t i) { sum += i; });
    EXPECT_EQ(sum, 10);
    EXPECT_EQ(message_of<ValueError>([&] {
                pool.run(5, [&](std::int64_t i) {
                  ++sum;
                  if (i < 2) throw ValueError("task " + std::to_string(i));
                });
              }),
              "task 0");
    EXPECT_EQ(sum, 15);
    other_served = true;
  });
  pool.run(3, [&](std::int64_t) {
    ++inside;
    while (!other_served) std::this_thread::yield();
  });
  other.join();
}

TEST(ThreadPool, HasTheWorkersAgainAfterATaskHasThrown) {
  ThreadPool pool(3);
  EXPECT_THROW(pool.run(3, [](std::int64_t) { throw ValueError("no"); }), ValueError);
  std::atomic<int> inside{0};
  pool.run(3, [&](std::int64_t) {
    ++inside;
    while (inside < 3) std::this_thread::yield();  // needs all three at once
  });
  EXPECT_EQ(inside, 3);
}

TEST(ThreadPool, WritesAreVisibleWhenRunReturns) {
  ThreadPool pool(4);
  std::vector<std::int64_t> values(64, 0);
  for (std::int64_t round = 1; round <= 300; ++round) {
    pool.run(64, [&](std::int64_t i) { values[static_cast<std::size_t>(i)] += i * round; });
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(values[i], static_cast<std::int64_t>(i) * 300 * 301 / 2);
  }
}

TEST(ThreadPool, RunsAgainAfterItsWorkersHaveGoneToSleep) {
  ThreadPool pool(3);
  for (int round = 0; round < 20; ++round) {
    std::atomic<int> inside{0};
    pool.run(3, [&](std::int64_t) {
      ++inside;
      while (inside < 3) std::this_thread::yield();  // needs all three at once
    });
    EXPECT_EQ(inside, 3);
    std::this_thread::sleep_for(std::chrono::milliseconds(round % 3));
  }
}

TEST(ThreadPool, WaitsForTheLastTaskHoweverLong) {
  ThreadPool pool(2);
  std::atomic<int> inside{0};
  std::atomic<bool> done = false;
  const auto caller = std::this_thread::get_id();
  pool.run(2, [&](std::int64_t) {
    ++inside;
    while (inside < 2) std::this_thread::yield();
    if (std::this_thread::get_id() == caller) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    done = true;
  });
  EXPECT_TRUE(done);
}

TEST(ThreadPool, WorkersTakePart) {
  ThreadPool pool(3);
  std::mutex mutex;
  std::set<std::thread::id> ids;
  std::atomic<int> inside{0};
  pool.run(3, [&](std::int64_t) {
    {
      const std::lock_guard lock(mutex);
      ids.insert(std::this_thread::get_id());
    }
    ++inside;
    while (inside < 3) std::this_thread::yield();  // needs all three at once
  });
  EXPECT_EQ(ids.size(), 3U);
  EXPECT_TRUE(ids.contains(std::this_thread::get_id()));
}

TEST(ThreadPool, SeveralPoolsWorkAtOnce) {
  std::vector<std::int64_t> sums(3, 0);
  {
    std::vector<std::jthread> ranks;
    for (std::size_t rank = 0; rank < 3; ++rank) {
      ranks.emplace_back([&sums, rank] {
        ThreadPool pool(2);
        std::atomic<std::int64_t> sum{0};
        for (int round = 0; round < 50; ++round) {
          pool.run(20, [&](std::int64_t i) { sum += i; });
        }
        sums[rank] = sum;
      });
    }
  }
  EXPECT_EQ(sums, (std::vector<std::int64_t>(3, 50 * 190)));
}

TEST(ThreadPool, StartsAndStopsWithoutWork) {
  for (int i = 0; i < 20; ++i) ThreadPool pool(4);
}

TEST(ThreadPool, NeedsAThread) {
  EXPECT_EQ(message_of<ValueError>([] { ThreadPool pool(0); }),
            "thread pool: threads must be at least 1, got 0");
}

TEST(ThreadPool, RethrowsTheFirstTasksExceptionWhenAllAreDone) {
  for (const int threads : {1, 2, 4}) {
    ThreadPool pool(threads);
    for (int round = 0; round < 50; ++round) {
      std::atomic<int> done = 0;
      const auto fail = [&](std::int64_t task) {
        if (task == 3 || task == 7) throw ValueError("task " + std::to_string(task));
        ++done;
      };
      EXPECT_EQ(message_of<ValueError>([&] { pool.run(10, fail); }), "task 3");
      EXPECT_EQ(done, 8);
    }
  }
}

// Sanitizers map more addresses than the limit allows.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(ThreadPool, SaysHowManyThreadsItDidNotGet) {
  // In a process of its own, since the limits stay.
  const auto make = [](std::size_t stack_bytes) {
    const rlimit limit = {.rlim_cur = 300'000'000, .rlim_max = 300'000'000};
    setrlimit(RLIMIT_AS, &limit);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, stack_bytes);
    pthread_setattr_default_np(&attributes);
    try {
      const ThreadPool pool(2000);
      std::_Exit(1);
    } catch (const Error& error) {
      std::fputs(error.what(), stderr);
      std::_Exit(7);
    }
  };
  const std::string needs = "^thread pool: needs 2000 threads, its caller's included, got ";
  const std::string reason = ": Resource temporarily unavailable$";
  EXPECT_EXIT(make(8'000'000), ::testing::ExitedWithCode(7), needs + "[0-9]+" + reason);
  EXPECT_EXIT(make(400'000'000), ::testing::ExitedWithCode(7), needs + "1" + reason);
}
#endif

}  // namespace
}  // namespace moegrad::thread_pool_test
