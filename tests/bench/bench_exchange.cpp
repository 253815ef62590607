// SPDX-License-Identifier: Apache-2.0
// Tokens that travel to experts on other hosts, directly and in two levels, in turns in one run:
//
//     mpirun -H a:2,b:2 build/release/tests/bench_exchange [PAIRS [TOKENS [HIDDEN [HOSTS]]]]
//
// Each rank sends TOKENS tokens of HIDDEN float32 to 8 of 48 experts, and back, and in backward the
// same once more. HOSTS: as if neighbours were on so many hosts, wherever they are. Prints what
// each way sends to other hosts, and medians over PAIRS pairs. Fails if a bit differs, or if other
// bytes than those of the rows go to other hosts.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "framework/distributed/collectives.h"
#include "framework/distributed/device_mesh.h"
#include "framework/distributed/mpi/launch_mpi.h"
#include "framework/runtime/parse_number.h"
#include "framework/runtime/program.h"
#include "framework/runtime/random.h"
#include "framework/tensor/tensor.h"
#include "parallel/expert/all_to_all_dispatcher.h"
#include "tests/bench/quantile.h"

namespace moegrad {
namespace {

using parallel::AllToAllDispatcher;
using parallel::RowExchange;

constexpr std::int64_t kExperts = 48, kTopK = 8;

struct Options {
  int pairs = 30;
  std::int64_t tokens = 512;
  std::int64_t hidden = 256;
  int hosts = 0;
};

// T x 8 different experts.
Tensor choose(std::int64_t tokens, int rank) {
  const Random random(static_cast<std::uint64_t>(rank) + 1, "experts");
  std::vector<std::int64_t> experts;
  for (std::int64_t t = 0; t < tokens; ++t) {
    const auto first = static_cast<std::int64_t>(random.uniform(static_cast<std::uint64_t>(t)) *
                                                 static_cast<double>(kExperts));
    for (std::int64_t j = 0; j < kTopK; ++j) {
      experts.push_back((first + j * (1 + t % 7)) % kExperts);
    }
  }
  return Tensor::from(experts, {tokens, kTopK});
}

Tensor uniform(const Shape& shape, std::uint64_t seed) {
  const Random random(seed, "x");
  Tensor x = Tensor::empty(shape, Dtype::kFloat32);
  std::uint64_t i = 0;
  for (auto& value : x.mutable_data<float>()) {
    value = static_cast<float>(random.uniform(i++)) - 0.5F;
  }
  return x;
}

/// What one way costs, and what it brings.
struct Way {
  std::string name;
  AllToAllDispatcher dispatcher;
  std::vector<double> seconds = {};
  std::int64_t messages = 0, bytes = 0;  // of all ranks to other hosts, once
  std::vector<float> bits = {};          // of the tokens that come back, and of their gradient
};

void exchange(RankContext& rank, Way& way, const Options& options) {
  const auto seed = static_cast<std::uint64_t>(rank.rank());
  Tensor x = uniform({options.tokens, options.hidden}, 2 * seed);
  x.set_requires_grad(true);
  const Tensor cotangent = uniform(x.shape(), 2 * seed + 1);
  const Tensor weights = uniform({options.tokens, kTopK}, 1000 + seed);
  const Tensor experts = choose(options.tokens, rank.rank());
  auto& group = *rank.group();
  const auto& counters = rank.counters();
  group.barrier()->wait();
  const std::int64_t messages = counters.messages_to_hosts, bytes = counters.bytes_to_hosts;
  const auto begin = std::chrono::steady_clock::now();
  const auto dispatched =
      way.dispatcher.dispatch(x, {.logits = {}, .weights = weights, .indices = experts});
  const Tensor y = way.dispatcher.combine(dispatched.rows, dispatched);
  y.backward(cotangent);
  const Tensor grad = x.grad();
  const auto gradient = grad.data<float>();
  // What an exchange has sent is counted when somebody has waited for it.
  const Tensor there = y.detach();
  const auto result = there.data<float>();
  dispatched.weights.bytes();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  const auto own_messages = counters.messages_to_hosts - messages;
  const auto own_bytes = counters.bytes_to_hosts - bytes;
  way.seconds.push_back(all_reduce(group, took.count(), ReduceOp::kMax));
  way.messages = all_reduce(group, own_messages);
  way.bytes = all_reduce(group, own_bytes);
  way.bits.assign(result.begin(), result.end());
  way.bits.insert(way.bits.end(), gradient.begin(), gradient.end());
}

// What all ranks together must send to other hosts: rows there and back, in forward and backward,
// their weights, and how many there are for each expert.
std::int64_t bytes_to_hosts(RankContext& rank, const Options& options) {
  const auto hosts = rank.group()->hosts();
  const auto own = hosts[static_cast<std::size_t>(rank.rank())];
  const auto experts_of_a_rank = kExperts / rank.world_size();
  std::int64_t rows = 0;
  const Tensor experts = choose(options.tokens, rank.rank());
  for (const auto e : experts.data<std::int64_t>()) {
    rows += hosts[static_cast<std::size_t>(e / experts_of_a_rank)] == own ? 0 : 1;
  }
  const auto elsewhere = std::ssize(hosts) - std::ranges::count(hosts, own);
  const auto bytes = rows * (4 * options.hidden + 1) * size_of(Dtype::kFloat32) +
                     elsewhere * experts_of_a_rank * size_of(Dtype::kInt64);
  return all_reduce(*rank.group(), bytes);
}

std::optional<DeviceMesh> grid_of(RankContext& rank, int hosts) {
  const DeviceMesh mesh(rank.group(), {{"ep", rank.world_size()}});
  if (hosts == 0) return mesh.unflatten_by_host("ep");
  return mesh.unflatten("ep", {{"ep_host", hosts}, {"ep_local", rank.world_size() / hosts}});
}

void bench(RankContext& rank, const Options& options) {
  const auto& group = rank.group();
  const auto grid = grid_of(rank, options.hosts);
  check<UsageError>(
      grid.has_value(),
      "the ranks must be on several hosts, several neighbours on each; or name HOSTS");
  Way direct{.name = "directly", .dispatcher = {group, kExperts}};
  Way levels{.name = "in two levels",
             .dispatcher = {RowExchange(group, grid->group("ep_local"), grid->group("ep_host")),
                            kExperts}};
  const auto bytes = bytes_to_hosts(rank, options);
  std::vector<double> ratios;
  for (int pair = -1; pair < options.pairs; ++pair) {
    if (pair == 0) direct.seconds = levels.seconds = {};  // memory was touched for the first time
    exchange(rank, pair % 2 == 0 ? direct : levels, options);
    exchange(rank, pair % 2 == 0 ? levels : direct, options);
    check(direct.bits == levels.bits, "rank ", rank.rank(), ": the two ways' bits must be equal");
    for (const auto* way : {&direct, &levels}) {
      check(way->bytes == bytes, way->name, ": must send ", bytes, " bytes to other hosts, got ",
            way->bytes);
    }
  }
  for (std::size_t i = 0; i < direct.seconds.size(); ++i) {
    ratios.push_back(direct.seconds[i] / levels.seconds[i]);
  }
  if (rank.rank() != 0) return;
  std::printf("%d ranks on %d hosts, %lld tokens of %lld float32 each to %d of %d experts\n",
              rank.world_size(), grid->size("ep_host"), static_cast<long long>(options.tokens),
              static_cast<long long>(options.hidden), static_cast<int>(kTopK),
              static_cast<int>(kExperts));
  for (const auto* way : {&direct, &levels}) {
    std::printf("%-14s %9.2f ms   to other hosts: %lld messages, %lld bytes\n", way->name.c_str(),
                1e3 * bench::median(way->seconds), static_cast<long long>(way->messages),
                static_cast<long long>(way->bytes));
  }
  std::printf("two levels are %.2f times as fast (%.2f - %.2f); the bits are equal\n",
              bench::median(ratios), bench::quantile(ratios, 0.25), bench::quantile(ratios, 0.75));
}

int run(int argc, char** argv) {
  check<UsageError>(argc <= 5, "usage: bench_exchange [PAIRS [TOKENS [HIDDEN [HOSTS]]]]");
  Options options;
  if (argc > 1) options.pairs = parse_number<int>("PAIRS", argv[1], {1, 1000});
  if (argc > 2) options.tokens = parse_number<std::int64_t>("TOKENS", argv[2], {1, 1 << 20});
  if (argc > 3) options.hidden = parse_number<std::int64_t>("HIDDEN", argv[3], {1, 1 << 20});
  if (argc > 4) options.hosts = parse_number<int>("HOSTS", argv[4], {1, 1024});
  launch_mpi([&](RankContext& rank) { bench(rank, options); });
  return 0;
}

}  // namespace
}  // namespace moegrad

int main(int argc, char** argv) {
  return moegrad::run_program("bench_exchange", [&] { return moegrad::run(argc, argv); });
}
