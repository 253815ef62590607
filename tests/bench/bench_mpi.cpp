// SPDX-License-Identifier: Apache-2.0
// Collectives over MPI against MPI's own, in turns in one run:
//
//     mpirun -n 2 build/release/tests/bench_mpi [PAIRS]
//
// Prints the medians of each and of their ratios, over 30 pairs by default. MPI's calls block, and
// run on the thread that serves the library's calls otherwise. MPI_Reduce_scatter sums in an order
// of its own; the library's sums run along one tree.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <vector>

#include "framework/distributed/collectives.h"
#include "framework/distributed/mpi/launch_mpi.h"
#include "framework/distributed/mpi/mpi_process.h"
#include "framework/runtime/parse_number.h"
#include "framework/runtime/program.h"

namespace moegrad {
namespace {

using Clock = std::chrono::steady_clock;

double median(std::vector<double> values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::ranges::nth_element(values, middle);
  return *middle;
}

/// What one exchange is, in both ways. `repeats`: in one measurement.
struct Exchange {
  std::string name;
  int repeats = 1;
  std::function<void()> of_library;
  std::function<void()> of_mpi;
};

void compare(RankContext& context, const Exchange& exchange, int pairs) {
  auto& group = *context.group();
  const auto seconds = [&](const std::function<void()>& call) {
    group.barrier()->wait();
    const auto start = Clock::now();
    for (int i = 0; i < exchange.repeats; ++i) call();
    const std::chrono::duration<double> took = Clock::now() - start;
    return all_reduce(group, took.count() / exchange.repeats, ReduceOp::kMax);
  };
  const auto mpi = [&] {
    mpi::MpiProcess::instance().run([&] {
      exchange.of_mpi();
      return true;
    });
  };
  std::vector<double> own, theirs, ratios;
  for (int pair = -2; pair < pairs; ++pair) {
    double a = 0, b = 0;
    if (pair % 2 == 0) a = seconds(exchange.of_library);
    b = seconds(mpi);
    if (pair % 2 != 0) a = seconds(exchange.of_library);
    if (pair < 0) continue;  // memory is touched for the first time
    own.push_back(a);
    theirs.push_back(b);
    ratios.push_back(a / b);
  }
  if (context.rank() != 0) return;
  std::printf("%-44s %10.1f us   MPI %10.1f us   ratio %.2f\n", exchange.name.c_str(),
              1e6 * median(own), 1e6 * median(theirs), median(ratios));
  std::fflush(stdout);
}

void bench(RankContext& context, int pairs) {
  auto& group = *context.group();
  const auto ranks = static_cast<std::size_t>(context.world_size());
  constexpr std::size_t kFloats = (std::size_t{64} << 20) / sizeof(float);
  const auto share = static_cast<int>(kFloats / ranks);
  std::vector<float> one(1), input(kFloats, 1.0F), output(kFloats), all(kFloats * ranks);
  const std::vector<int> counts(ranks, share);

  compare(context,
          {"all_reduce of 4 bytes", 200, [&] { all_reduce(group, std::span(one)); },
           [&] {
             float sum = 0;
             MPI_Allreduce(one.data(), &sum, 1, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
           }},
          pairs);
  compare(context,
          {"barrier", 200, [&] { group.barrier()->wait(); }, [] { MPI_Barrier(MPI_COMM_WORLD); }},
          pairs);
  const auto mpi_gather = [&](std::vector<float>& to, int count) {
    MPI_Allgather(input.data(), count, MPI_FLOAT, to.data(), count, MPI_FLOAT, MPI_COMM_WORLD);
  };
  const auto gather = [&](int count, const GatherConsumer& consume) {
    const auto own = std::span(input).first(static_cast<std::size_t>(count));
    group.all_gather(std::as_bytes(own), Dtype::kFloat32, consume)->wait();
  };
  const GatherConsumer ignore = [](PeerSpans) {};
  compare(context,
          {"all_gather to 64 MB, handed over", 1, [&] { gather(share, ignore); },
           [&] { mpi_gather(output, share); }},
          pairs);
  compare(context,
          {"all_gather to 64 MB, into one buffer", 1,
           [&] {
             all_gather(group, std::span(input).first(static_cast<std::size_t>(share)),
                        std::span(output));
           },
           [&] { mpi_gather(output, share); }},
          pairs);
  compare(context,
          {"all_gather of 64 MB a rank, handed over", 1,
           [&] { gather(static_cast<int>(kFloats), ignore); },
           [&] { mpi_gather(all, static_cast<int>(kFloats)); }},
          pairs);
  compare(context,
          {"all_gather of 64 MB a rank, into one buffer", 1,
           [&] { all_gather(group, input, std::span(all)); },
           [&] { mpi_gather(all, static_cast<int>(kFloats)); }},
          pairs);
  compare(context,
          {"reduce_scatter of 64 MB", 1,
           [&] {
             reduce_scatter(group, input, std::span(output).first(static_cast<std::size_t>(share)));
           },
           [&] {
             MPI_Reduce_scatter(input.data(), output.data(), counts.data(), MPI_FLOAT, MPI_SUM,
                                MPI_COMM_WORLD);
           }},
          pairs);
  compare(context,
          {"all_reduce of 64 MB", 1, [&] { all_reduce(group, std::span(output)); },
           [&] {
             MPI_Allreduce(input.data(), output.data(), static_cast<int>(kFloats), MPI_FLOAT,
                           MPI_SUM, MPI_COMM_WORLD);
           }},
          pairs);
}

int run(int argc, char** argv) {
  const int pairs = argc == 2 ? parse_number<int>("PAIRS", argv[1], {1, 1000}) : 30;
  launch_mpi([&](RankContext& context) { bench(context, pairs); });
  return 0;
}

}  // namespace
}  // namespace moegrad

int main(int argc, char** argv) {
  return moegrad::run_program("bench_mpi", [&] { return moegrad::run(argc, argv); });
}
