// SPDX-License-Identifier: Apache-2.0
// Every collective at every world size and count against a plain reference, bit for bit.
#include <algorithm>
#include <cmath>
#include <limits>

#include "framework/distributed/collectives.h"
#include "tests/framework/distributed/collective_testing.h"
#include "tests/testing.h"

namespace moegrad::collective_results_test {
namespace {

using namespace test;

template <class T>
class Collectives : public ::testing::Test {};
using ElementTypes = ::testing::Types<float, double, BFloat16, std::int64_t, std::int32_t>;
TYPED_TEST_SUITE(Collectives, ElementTypes);

// Runs body(group, rank, world size, count) for all of them.
void for_all_sizes(const std::function<void(ProcessGroup&, int, int, std::size_t)>& body) {
  for (const int world : kWorldSizes) {
    launch(world, [&](RankContext& context) {
      for (const auto count : kCounts) {
        SCOPED_TRACE(::testing::Message() << context.rank() << '/' << world << ", " << count);
        body(*context.group(), context.rank(), world, count);
      }
    });
  }
}

TYPED_TEST(Collectives, AllGatherHandsOverTheInputsInRankOrder) {
  for_all_sizes([](ProcessGroup& group, int rank, int world, std::size_t count) {
    const auto input = numbers<TypeParam>(rank, count);
    std::vector<TypeParam> output(count * static_cast<std::size_t>(world));
    all_gather(group, input, std::span(output));
    std::vector<TypeParam> expected;
    for (int peer = 0; peer < world; ++peer) {
      const auto values = numbers<TypeParam>(peer, count);
      expected.insert(expected.end(), values.begin(), values.end());
    }
    EXPECT_EQ(output, expected);
  });
}

TYPED_TEST(Collectives, ReduceScatterSumsAlongTheTree) {
  for_all_sizes([](ProcessGroup& group, int rank, int world, std::size_t count) {
    for (const auto op : {ReduceOp::kSum, ReduceOp::kMax}) {
      const auto total = count * static_cast<std::size_t>(world);
      std::vector<TypeParam> output(count);
      reduce_scatter(group, numbers<TypeParam>(rank, total), std::span(output), op);
      const auto all = reduced<TypeParam>(world, total, op);
      const auto chunk = std::span(all).subspan(count * static_cast<std::size_t>(rank), count);
      EXPECT_TRUE(std::ranges::equal(output, chunk));
    }
  });
}

// Every rank in pieces of its own length, so that a run ends wherever some rank's piece does, and
// with empty ones between.
TYPED_TEST(Collectives, ReduceScatterReadsPartsThatEachRankCutsForItself) {
  for_all_sizes([](ProcessGroup& group, int rank, int world, std::size_t count) {
    const auto total = count * static_cast<std::size_t>(world);
    const auto values = numbers<TypeParam>(rank, total);
    const std::size_t length = 5 + 300 * static_cast<std::size_t>(rank);
    ByteParts parts;
    for (std::size_t begin = 0; begin < total; begin += length) {
      const auto rest = std::span(values).subspan(begin);
      parts.push_back(std::as_bytes(rest.first(std::min(length, rest.size()))));
      parts.push_back({});
    }
    std::vector<TypeParam> output(count);
    group
        .reduce_scatter(std::move(parts), std::as_writable_bytes(std::span(output)),
                        dtype_of<TypeParam>, ReduceOp::kSum)
        ->wait();
    const auto all = reduced<TypeParam>(world, total, ReduceOp::kSum);
    const auto chunk = std::span(all).subspan(count * static_cast<std::size_t>(rank), count);
    EXPECT_TRUE(std::ranges::equal(output, chunk));
  });
}

TYPED_TEST(Collectives, AllReduceSumsAlongTheTreeOnEveryRank) {
  for_all_sizes([](ProcessGroup& group, int rank, int world, std::size_t count) {
    for (const auto op : {ReduceOp::kSum, ReduceOp::kMax}) {
      auto values = numbers<TypeParam>(rank, count);
      all_reduce(group, std::span(values), op);
      EXPECT_EQ(values, reduced<TypeParam>(world, count, op));
    }
  });
}

TEST(CollectiveOverloads, ANumberIsReducedOverTheRanks) {
  for (const int world : kWorldSizes) {
    launch(world, [&](RankContext& context) {
      auto& group = *context.group();
      const auto own = numbers<double>(context.rank(), 1)[0];
      EXPECT_EQ(all_reduce(group, own), reduced<double>(world, 1, ReduceOp::kSum)[0]);
      EXPECT_EQ(all_reduce(group, own, ReduceOp::kMax),
                reduced<double>(world, 1, ReduceOp::kMax)[0]);
      const auto count = numbers<std::int64_t>(context.rank(), 1)[0];
      EXPECT_EQ(all_reduce(group, count), reduced<std::int64_t>(world, 1, ReduceOp::kSum)[0]);
    });
  }
}

template <class T>
class TensorCollectives : public ::testing::Test {};
using TensorTypes = ::testing::Types<float, double, std::int64_t>;
TYPED_TEST_SUITE(TensorCollectives, TensorTypes);

TYPED_TEST(TensorCollectives, ATensorIsReducedAndBroadcastInPlace) {
  for_all_sizes([](ProcessGroup& group, int rank, int world, std::size_t count) {
    // The second half of a storage, whose first half stays.
    const auto n = static_cast<std::int64_t>(count);
    const Tensor both = Tensor::zeros({2, n}, dtype_of<TypeParam>);
    Tensor own = Tensor::as_strided(both, {n}, {1}, n);
    const auto holds = [&](const std::vector<TypeParam>& values) {
      const auto found = both.data<TypeParam>();
      return std::ranges::equal(found.subspan(count), values) &&
             std::ranges::count(found.first(count), TypeParam(0)) == n;
    };
    for (const auto op : {ReduceOp::kSum, ReduceOp::kMax}) {
      std::ranges::copy(numbers<TypeParam>(rank, count), own.mutable_data<TypeParam>().begin());
      const auto version = own.storage().version();
      all_reduce(group, own, op);
      EXPECT_TRUE(holds(reduced<TypeParam>(world, count, op)));
      EXPECT_EQ(own.storage().version(), version + 1);
    }
    for (int root = 0; root < world; ++root) {
      std::ranges::copy(numbers<TypeParam>(rank, count), own.mutable_data<TypeParam>().begin());
      const auto version = own.storage().version();
      broadcast(group, own, root);
      EXPECT_TRUE(holds(numbers<TypeParam>(root, count)));
      EXPECT_EQ(own.storage().version(), version + 1);
    }
  });
}

TEST(CollectiveOverloads, ATensorMustBeContiguousAndOfAnArithmeticType) {
  launch(1, [&](RankContext& context) {
    auto& group = *context.group();
    Tensor narrow = Tensor::zeros({2}, Dtype::kBFloat16);
    EXPECT_EQ(test::message_of<DtypeError>([&] { all_reduce(group, narrow); }),
              "all_reduce: tensor must be float32, float64 or int64, got bfloat16");
    EXPECT_EQ(test::message_of<DtypeError>([&] { broadcast(group, narrow, 0); }),
              "broadcast: tensor must be float32, float64 or int64, got bfloat16");
    Tensor strided = Tensor::as_strided(Tensor::zeros({2, 3}), {3, 2}, {1, 3}, 0);
    EXPECT_EQ(test::message_of<LayoutError>([&] { all_reduce(group, strided); }),
              "all_reduce: tensor must be contiguous, got shape [3, 2] with strides [1, 3]");
    Tensor nz = Tensor::empty_nz({2, 3}, {1, 2, 3}, Dtype::kFloat32);
    EXPECT_EQ(test::message_of<LayoutError>([&] { broadcast(group, nz, 0); }),
              "broadcast: tensor must be row-major ND, got FRACTAL_NZ");
  });
}

TYPED_TEST(Collectives, BroadcastCopiesTheRootsValues) {
  for_all_sizes([](ProcessGroup& group, int rank, int world, std::size_t count) {
    for (int root = 0; root < world; ++root) {
      auto values = numbers<TypeParam>(rank, count);
      broadcast(group, std::span(values), root);
      EXPECT_EQ(values, numbers<TypeParam>(root, count));
    }
  });
}

TYPED_TEST(Collectives, AllToAllDeliversUnequalCounts) {
  // Rank r sends (3 r + s) % 4 elements to rank s: the numbers that belong to (r, s).
  const auto block = [](int from, int to) {
    return numbers<TypeParam>(100 * from + to, static_cast<std::size_t>(3 * from + to) % 4);
  };
  for (const int world : kWorldSizes) {
    launch(world, [&](RankContext& context) {
      std::vector<TypeParam> input, expected;
      std::vector<std::int64_t> send_counts, recv_counts;
      for (int peer = 0; peer < world; ++peer) {
        const auto to = block(context.rank(), peer);
        const auto from = block(peer, context.rank());
        input.insert(input.end(), to.begin(), to.end());
        expected.insert(expected.end(), from.begin(), from.end());
        send_counts.push_back(std::ssize(to));
        recv_counts.push_back(std::ssize(from));
      }
      std::vector<TypeParam> output(expected.size());
      context.group()
          ->all_to_all(std::as_bytes(std::span(input)), send_counts,
                       std::as_writable_bytes(std::span(output)), recv_counts, dtype_of<TypeParam>)
          ->wait();
      EXPECT_EQ(output, expected);
    });
  }
}

TYPED_TEST(Collectives, AllToAllReadsAndFillsBuffersInParts) {
  // For each rank: none, few, or more than fit into a header, in two parts of which the second
  // comes first in memory. A part of the input is sent to several ranks.
  const auto count = [](int from, int to) {
    return std::vector<std::size_t>{4, 0, 7000}[static_cast<std::size_t>(from + 2 * to) % 3];
  };
  for (const int world : kWorldSizes) {
    launch(world, [&](RankContext& context) {
      const int own = context.rank();
      const auto values = numbers<TypeParam>(own, 7000);
      const auto all = std::as_bytes(std::span(values));
      std::vector<std::int64_t> send_counts, recv_counts;
      std::vector<std::vector<TypeParam>> received(static_cast<std::size_t>(world));
      ByteParts input(1);  // the first part is empty
      MutableByteParts output(1);
      for (int peer = 0; peer < world; ++peer) {
        const auto sent = count(own, peer), half = sent / 4 * sizeof(TypeParam);
        const auto bytes = all.first(sent * sizeof(TypeParam));
        input.insert(input.end(), {bytes.subspan(half), bytes.first(half)});
        send_counts.push_back(static_cast<std::int64_t>(sent));
        auto& from_peer = received[static_cast<std::size_t>(peer)];
        from_peer.resize(count(peer, own));
        const auto place = std::as_writable_bytes(std::span(from_peer));
        const auto cut = from_peer.size() / 2 * sizeof(TypeParam);
        output.insert(output.end(), {place.subspan(cut), place.first(cut)});
        recv_counts.push_back(std::ssize(from_peer));
      }
      context.group()
          ->all_to_all(input, send_counts, output, recv_counts, dtype_of<TypeParam>)
          ->wait();
      for (int peer = 0; peer < world; ++peer) {
        auto expected = numbers<TypeParam>(peer, 7000);
        expected.resize(count(peer, own));
        const auto quarter = static_cast<std::ptrdiff_t>(expected.size() / 4);
        std::rotate(expected.begin(), expected.begin() + quarter, expected.end());
        // The first half of what arrives lies in the second half of the memory.
        const auto rest = std::ssize(expected) - std::ssize(expected) / 2;
        std::rotate(expected.begin(), expected.begin() + rest, expected.end());
        EXPECT_EQ(received[static_cast<std::size_t>(peer)], expected) << "from rank " << peer;
      }
    });
  }
}

// Ranks with a consumer and ranks with an output meet in one call.
TYPED_TEST(Collectives, AllToAllPassesWhatArrivesToAConsumer) {
  const auto count = [](int from, int to) {
    return std::vector<std::size_t>{7000, 4, 0}[static_cast<std::size_t>(from + 2 * to) % 3];
  };
  for (const int world : kWorldSizes) {
    launch(world, [&](RankContext& context) {
      const int own = context.rank();
      std::vector<TypeParam> input, expected;
      std::vector<std::int64_t> send_counts, recv_counts;
      for (int peer = 0; peer < world; ++peer) {
        const auto to = numbers<TypeParam>(100 * own + peer, count(own, peer));
        const auto from = numbers<TypeParam>(100 * peer + own, count(peer, own));
        input.insert(input.end(), to.begin(), to.end());
        expected.insert(expected.end(), from.begin(), from.end());
        send_counts.push_back(std::ssize(to));
        recv_counts.push_back(std::ssize(from));
      }
      const auto bytes = std::as_bytes(std::span(input));
      const auto cut = input.size() / 3 * sizeof(TypeParam);
      const ByteParts parts = {bytes.first(cut), bytes.subspan(cut)};
      std::vector<TypeParam> output(expected.size());
      const auto room = std::as_writable_bytes(std::span(output));
      auto& group = *context.group();
      constexpr auto kDtype = dtype_of<TypeParam>;
      const auto collect = [room](PeerSpans arrived) {
        auto* out = room.data();
        for (const auto& part : arrived) out = std::copy(part.begin(), part.end(), out);
      };
      if (own % 2 == 0) {
        group.all_to_all(parts, send_counts, collect, recv_counts, kDtype)->wait();
      } else {
        group.all_to_all(parts, send_counts, MutableByteParts{room}, recv_counts, kDtype)->wait();
      }
      EXPECT_EQ(output, expected);
    });
  }
}

TYPED_TEST(Collectives, SendsAroundARingMeetTheirRecvs) {
  for_all_sizes([](ProcessGroup& group, int rank, int world, std::size_t count) {
    const auto input = numbers<TypeParam>(rank, count);
    std::vector<TypeParam> output(count);
    const int next = (rank + 1) % world;
    const int previous = (rank + world - 1) % world;
    const auto dtype = dtype_of<TypeParam>;
    const auto sent = group.send(std::as_bytes(std::span(input)), next, 7, dtype);
    group.recv(std::as_writable_bytes(std::span(output)), previous, 7, dtype)->wait();
    sent->wait();
    EXPECT_EQ(output, numbers<TypeParam>(previous, count));
  });
}

TEST(CollectiveOrder, TheReferenceTreeIsNotALeftToRightSum) {
  constexpr std::size_t kCount = 64;
  for (const int world : {4, 8}) {
    auto sum = numbers<float>(0, kCount);
    for (int rank = 1; rank < world; ++rank) {
      const auto values = numbers<float>(rank, kCount);
      for (std::size_t i = 0; i < kCount; ++i) sum[i] += values[i];
    }
    EXPECT_NE(sum, reduced<float>(world, kCount, ReduceOp::kSum));
  }
}

TEST(CollectiveOrder, EveryBFloat16NodeIsRounded) {
  // 256 + 1 rounds to 256 (ties to even), so the tree (256 + 1) + (1 + 0) ends at 256 and not at
  // the 258 of one rounding at the end.
  const float inputs[] = {256, 1, 1, 0};
  launch(4, [&](RankContext& context) {
    std::vector<BFloat16> value = {BFloat16(inputs[context.rank()])};
    all_reduce(*context.group(), std::span(value));
    EXPECT_EQ(static_cast<float>(value[0]), 256.0F);
  });
}

TEST(CollectiveOrder, NaNWinsAMaximumOnWhicheverSideItStands) {
  for (int holder = 0; holder < 3; ++holder) {
    launch(3, [&](RankContext& context) {
      const auto nan = std::numeric_limits<float>::quiet_NaN();
      std::vector<float> value = {context.rank() == holder ? nan : 1.0F};
      all_reduce(*context.group(), std::span(value), ReduceOp::kMax);
      EXPECT_TRUE(std::isnan(value[0]));
    });
  }
}

TEST(CollectiveOrder, ReduceScatterMayWriteIntoItsOwnChunk) {
  launch(3, [](RankContext& context) {
    constexpr std::size_t kCount = 4099;
    auto values = numbers<float>(context.rank(), 3 * kCount);
    const auto begin = kCount * static_cast<std::size_t>(context.rank());
    const auto chunk = std::span(values).subspan(begin, kCount);
    reduce_scatter(*context.group(), values, chunk);
    const auto all = reduced<float>(3, 3 * kCount, ReduceOp::kSum);
    EXPECT_TRUE(std::ranges::equal(chunk, std::span(all).subspan(begin, kCount)));
  });
}

}  // namespace
}  // namespace moegrad::collective_results_test
