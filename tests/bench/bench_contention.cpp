// SPDX-License-Identifier: Apache-2.0

// How much copies slow down what computes beside them. In each round a thread computes, and as many
// bytes are copied as take half of that time alone: by the same thread between its ops, or by one
// to four others. Then how long a copy takes that others give way to.
//
//     build/release/tests/bench_contention --rounds 100
//
// Prints medians of the rounds, in which all ways take turns, over the time of the computing alone:
// until the ops are through, and until the copies are, too.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <iomanip>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "framework/autograd/copy_queue.h"
#include "framework/distributed/launch.h"
#include "framework/runtime/program.h"
#include "framework/runtime/random.h"
#include "framework/tensor/fill.h"
#include "ops/elementwise.h"
#include "ops/linear.h"
#include "tests/bench/quantile.h"
#include "train/config/command_line.h"
#include "train/config/common_options.h"

namespace moegrad::bench {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

constexpr int kMostStreams = 4;
constexpr std::int64_t kBuffer = std::int64_t{256} << 20;  // bytes, which no cache holds

class Bench {
 public:
  explicit Bench(std::int64_t rounds) : rounds_(rounds) {
    for (int i = 0; i < kMostStreams; ++i) {
      streams_.push_back(std::make_unique<CopyQueue>(LinkModel{}, Jitter{}));
    }
  }

  /// Prints when `ops` calls of `op` are through, and when these and the copies are, over the time
  /// of the calls alone.
  void measure(const std::string& name, int ops, const std::function<void()>& op) {
    struct Way {
      std::string name;
      int others = 0;
      bool copies_itself = false;
      std::vector<double> computed = {}, all = {};  // seconds until then
    };
    std::vector<Way> ways = {{"nothing"}, {"the same thread", 0, true}};
    for (int i = 1; i <= kMostStreams; ++i) ways.push_back({std::to_string(i) + " others", i});
    const auto bytes = bytes_of_half(ops, op);
    for (std::int64_t round = 0; round < rounds_; ++round) {
      for (auto& way : ways) {
        const auto begin = Clock::now();
        std::vector<CopyQueue::CopyPtr> under_way;
        for (int i = 0; i < way.others; ++i) {
          under_way.push_back(copy_part(*streams_[i], i, way.others, bytes, CopyPriority::kOut));
        }
        for (int i = 0; i < ops; ++i) {
          op();
          if (way.copies_itself) copy(i * (bytes / ops), bytes / ops);
        }
        way.computed.push_back(seconds_since(begin));
        for (const auto& copy : under_way) copy->wait();
        way.all.push_back(seconds_since(begin));
      }
    }
    const double alone = median(ways[0].all);
    std::cout << name << std::fixed << std::setprecision(1) << ", " << 1e3 * alone
              << " ms alone, beside copies of " << static_cast<double>(bytes) / 1e6 << " MB by\n";
    for (const auto& way : ways) {
      std::cout << "  " << std::left << std::setw(18) << way.name << std::right
                << std::setprecision(3) << std::setw(7) << median(way.computed) / alone
                << std::setw(8) << median(way.all) / alone << std::endl;
    }
  }

  /// Prints how long a copy takes that others give way to, or not.
  void measure_priority() {
    constexpr int kOthers = 8;
    constexpr std::int64_t kBytes = (kOthers + 1) * 8 * CopyQueue::kPiece;
    std::vector<double> seconds[2];
    for (std::int64_t round = 0; round < rounds_; ++round) {
      for (const bool give_way : {false, true}) {
        auto& stream = *streams_[0];
        std::vector<CopyQueue::CopyPtr> others;
        for (int i = 0; i < kOthers; ++i) {
          others.push_back(copy_part(stream, i, kOthers + 1, kBytes, CopyPriority::kOut));
        }
        const auto begin = Clock::now();
        const auto priority = give_way ? CopyPriority::kNow : CopyPriority::kOut;
        copy_part(stream, kOthers, kOthers + 1, kBytes, priority)->wait();
        seconds[give_way ? 1 : 0].push_back(seconds_since(begin));
        for (const auto& other : others) other->wait();
      }
    }
    std::cout << "a copy of 8 MiB that is asked for after 64 MiB of others: "
              << std::setprecision(2) << 1e3 * median(seconds[0]) << " ms, "
              << 1e3 * median(seconds[1]) << " ms where they give way" << std::endl;
  }

 private:
  CopyQueue::CopyPtr copy_part(CopyQueue& stream, int i, int parts, std::int64_t bytes,
                               CopyPriority priority) {
    const auto part = bytes / parts;
    const auto at = static_cast<std::size_t>(i * part);
    return stream.begin([from = source_.data() + at] { return from; }, target_.data() + at, part,
                        priority);
  }

  // In pieces, as a CopyQueue does.
  void copy(std::int64_t at, std::int64_t bytes) {
    for (const auto end = at + bytes; at < end; at += CopyQueue::kPiece) {
      const auto piece = static_cast<std::size_t>(std::min(end - at, CopyQueue::kPiece));
      std::memcpy(target_.data() + at, source_.data() + at, piece);
    }
  }

  // Copying so many takes half as long as the calls.
  std::int64_t bytes_of_half(int ops, const std::function<void()>& op) {
    std::vector<double> calls, copies;
    for (int i = 0; i < 10; ++i) {
      auto begin = Clock::now();
      for (int j = 0; j < ops; ++j) op();
      calls.push_back(seconds_since(begin));
      begin = Clock::now();
      copy(0, kBuffer);
      copies.push_back(seconds_since(begin));
    }
    const double share = std::min(1.0, 0.5 * median(calls) / median(copies));
    return static_cast<std::int64_t>(share * static_cast<double>(kBuffer));
  }

  std::int64_t rounds_;
  std::vector<std::byte> source_ = std::vector<std::byte>(kBuffer, std::byte{1});
  std::vector<std::byte> target_ = std::vector<std::byte>(kBuffer);
  std::vector<std::unique_ptr<CopyQueue>> streams_;
};

int parse_and_run(int argc, char** argv) {
  std::int64_t rounds = 100;
  int threads = 1;
  using namespace training;
  CommandLine line("Measures how much copies slow down what computes beside them.",
                   {number_option("rounds", rounds, {1, 1 << 20}, "in which all ways take turns"),
                    threads_option(threads)});
  if (const auto exit_code = line.parse(argc, argv)) return *exit_code;
  LaunchOptions options;
  options.threads_per_rank = threads;
  launch(
      1,
      [&](RankContext& /*context*/) {
        Bench bench(rounds);
        const auto random = [](const Shape& shape, std::uint64_t seed) {
          return Tensor::randn(shape, Random(seed, "bench_contention"));
        };
        const Tensor x = random({256, 512}, 1), w = random({512, 512}, 2);
        bench.measure("16 products [256, 512] x [512, 512]", 16, [&] { ops::linear(x, w); });
        const Tensor a = random({1 << 22}, 3), b = random({1 << 22}, 4);
        bench.measure("4 sums of two tensors of 16 MiB", 4, [&] { ops::add(a, b); });
        bench.measure_priority();
      },
      options);
  return 0;
}

}  // namespace
}  // namespace moegrad::bench

int main(int argc, char** argv) {
  return moegrad::run_program_once("bench_contention",
                                   [&] { return moegrad::bench::parse_and_run(argc, argv); });
}
