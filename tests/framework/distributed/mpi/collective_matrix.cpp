// SPDX-License-Identifier: Apache-2.0
// Runs every collective on worlds of several sizes, with all dtypes, counts that are empty, single,
// odd and large, and uneven counts with zeros. Prints a line with a checksum of all ranks' results
// for each, so that backends can be compared:
//
//     collective_matrix                 ranks as threads
//     mpirun -n 8 collective_matrix     ranks as processes, with the lines for up to 8
//     mpirun -n 8 collective_matrix small     without the largest count
//     mpirun -n 2 collective_matrix large     one exchange of more than 2^31 bytes instead
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <iomanip>
#include <iostream>
#include <numeric>
#include <span>
#include <string_view>
#include <vector>

#include "framework/distributed/collectives.h"
#include "framework/distributed/mpi/launch_mpi.h"
#include "framework/runtime/crc32c.h"
#include "framework/runtime/error.h"
#include "framework/runtime/mpi_environment.h"
#include "framework/runtime/program.h"
#include "framework/runtime/random.h"

namespace moegrad {
namespace {

constexpr int kWorlds[] = {1, 2, 3, 4, 8};
constexpr std::size_t kCounts[] = {0, 1, 7, 4099, 250'000};

/// Element `i` of what `rank` has for `purpose`. Magnitudes vary, so that sums depend on their
/// order.
template <class T>
std::vector<T> numbers(int rank, std::size_t count, std::uint64_t purpose) {
  std::vector<T> values(count);
  std::uint64_t state = (purpose * 1'000 + static_cast<std::uint64_t>(rank) + 1) * 2'654'435'761;
  for (auto& value : values) {
    state = state * 6'364'136'223'846'793'005 + 1'442'695'040'888'963'407;  // Knuth's MMIX
    if constexpr (std::is_same_v<T, std::int64_t>) {
      value = static_cast<T>(state);
    } else {
      const auto mantissa = static_cast<float>(static_cast<std::int64_t>(state >> 44) - (1 << 19));
      value = static_cast<T>(mantissa / static_cast<float>(1U << (state >> 32) % 12));
    }
  }
  return values;
}

template <class T>
std::uint32_t checksum(const std::vector<T>& values) {
  return crc32c(std::as_bytes(std::span(values)));
}

/// Rank 0 prints a checksum of what all ranks have.
class Printer {
 public:
  explicit Printer(RankContext& context) : context_(context) {}

  template <class T>
  void print(std::string_view what, std::size_t count, const std::vector<T>& result) {
    std::vector<std::int64_t> own = {checksum(result)};
    std::vector<std::int64_t> all(static_cast<std::size_t>(context_.world_size()));
    all_gather(*context_.group(), own, std::span(all));
    if (context_.rank() != 0) return;
    std::cout << "world " << context_.world_size() << "  " << what << "  " << dtype_of<T> << "  "
              << count << "  " << std::hex << checksum(all) << std::dec << '\n';
  }

 private:
  RankContext& context_;
};

// Rank r has (3 r + s) % 4 quarters of `count` for rank s: some have none.
std::size_t uneven(int from, int to, std::size_t count) {
  return static_cast<std::size_t>(3 * from + to) % 4 * count / 4;
}

template <class T>
void run_all(RankContext& context, std::size_t count) {
  auto& group = *context.group();
  const int rank = context.rank(), world = context.world_size();
  const auto ranks = static_cast<std::size_t>(world);
  Printer printer(context);
  const auto bytes = [](std::vector<T>& values) {
    return std::as_writable_bytes(std::span(values));
  };

  std::vector<T> all(count * ranks);
  auto input = numbers<T>(rank, count, 1);
  all_gather(group, input, std::span(all));
  printer.print("all_gather into a buffer", count, all);
  std::vector<T> handed_over;
  group
      .all_gather(bytes(input), dtype_of<T>,
                  [&](PeerSpans inputs) {
                    for (const auto& peer : inputs) {
                      const auto* const begin = reinterpret_cast<const T*>(peer.data());
                      handed_over.insert(handed_over.end(), begin, begin + count);
                    }
                  })
      ->wait();
  printer.print("all_gather to a consumer", count, handed_over);

  for (const auto op : {ReduceOp::kSum, ReduceOp::kMax}) {
    const auto name = op == ReduceOp::kSum ? "(sum)" : "(max)";
    const auto whole = numbers<T>(rank, count * ranks, 2);
    std::vector<T> chunk(count);
    reduce_scatter(group, whole, std::span(chunk), op);
    printer.print(std::string("reduce_scatter") + name, count, chunk);
    // The same from parts that each rank cuts for itself.
    ByteParts parts;
    const std::size_t length = 25'003 + 250 * static_cast<std::size_t>(rank);
    for (std::size_t begin = 0; begin < whole.size(); begin += length) {
      const auto rest = std::span(whole).subspan(begin);
      parts.push_back(std::as_bytes(rest.first(std::min(length, rest.size()))));
    }
    group.reduce_scatter(std::move(parts), bytes(chunk), dtype_of<T>, op)->wait();
    printer.print(std::string("reduce_scatter of parts") + name, count, chunk);
    auto values = numbers<T>(rank, count, 3);
    all_reduce(group, std::span(values), op);
    printer.print(std::string("all_reduce") + name, count, values);
  }
  for (const int root : {0, world - 1}) {
    auto values = numbers<T>(rank, count, 4);
    broadcast(group, std::span(values), root);
    printer.print("broadcast", count, values);
  }

  std::vector<std::int64_t> send_counts, recv_counts;
  for (int peer = 0; peer < world; ++peer) {
    send_counts.push_back(static_cast<std::int64_t>(uneven(rank, peer, count)));
    recv_counts.push_back(static_cast<std::int64_t>(uneven(peer, rank, count)));
  }
  const auto sum = [](const std::vector<std::int64_t>& counts) {
    return static_cast<std::size_t>(std::accumulate(counts.begin(), counts.end(), std::int64_t{0}));
  };
  auto sent = numbers<T>(rank, sum(send_counts), 5);
  std::vector<T> received(sum(recv_counts));
  group.all_to_all(bytes(sent), send_counts, bytes(received), recv_counts, dtype_of<T>)->wait();
  printer.print("all_to_all", count, received);

  std::vector<T> from_previous(count);
  const auto sending = group.send(bytes(input), (rank + 1) % world, 7, dtype_of<T>);
  group.recv(bytes(from_previous), (rank + world - 1) % world, 7, dtype_of<T>)->wait();
  sending->wait();
  printer.print("send and recv around a ring", count, from_previous);
  group.barrier()->wait();
}

/// Rank 0 sends rank 1 somewhat more than 2^31 bytes, of which each 8 name their place.
void run_large(RankContext& context) {
  constexpr std::int64_t kCount = (std::int64_t{1} << 28) + 1'001;
  auto& group = *context.group();
  const bool first = context.rank() == 0;
  std::vector<std::int64_t> values(static_cast<std::size_t>(kCount));
  if (first) std::iota(values.begin(), values.end(), 1);
  const auto own = std::as_writable_bytes(std::span(values));
  const std::vector<std::int64_t> none = {0, 0}, to_1 = {0, kCount}, from_0 = {kCount, 0};
  group
      .all_to_all(first ? own : own.first(0), first ? to_1 : none, first ? own.first(0) : own,
                  first ? none : from_0, Dtype::kInt64)
      ->wait();
  for (std::int64_t i = 0; i < kCount; ++i) {
    check(values[static_cast<std::size_t>(i)] == i + 1, "element ", i, " must be ", i + 1, ", got ",
          values[static_cast<std::size_t>(i)]);
  }
  group.barrier()->wait();
  if (first) std::cout << "sent " << own.size() << " bytes from rank 0 to rank 1\n";
}

int run(int argc, char** argv) {
  LaunchOptions options;
  options.piece_bytes = std::size_t{256} << 10;
  options.deadline = std::chrono::seconds(300);
  const std::string_view sizes = argc == 2 ? argv[1] : "";
  check<UsageError>(argc == 1 || sizes == "small" || sizes == "large",
                    "usage: collective_matrix [small | large]");
  if (sizes == "large") {
    launch_ranks(2, run_large, options);
    return 0;
  }
  const auto counts = std::span(kCounts).first(std::size(kCounts) - (sizes == "small" ? 1 : 0));
  for (const int world : kWorlds) {
    if (world > default_world_size(8)) continue;
    launch_ranks(
        world,
        [counts](RankContext& context) {
          for (const auto count : counts) {
            run_all<float>(context, count);
            run_all<double>(context, count);
            run_all<BFloat16>(context, count);
            run_all<std::int64_t>(context, count);
          }
        },
        options);
  }
  return 0;
}

}  // namespace
}  // namespace moegrad

int main(int argc, char** argv) {
  return moegrad::run_program("collective_matrix", [&] { return moegrad::run(argc, argv); });
}
