// SPDX-License-Identifier: Apache-2.0
// Expert parallelism without fully_shard: each token gets to its experts and back, to the bit.
#include "parallel/expert/all_to_all_dispatcher.h"

#include <cmath>
#include <functional>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "framework/distributed/collectives.h"
#include "framework/runtime/grad_mode.h"
#include "framework/runtime/random.h"
#include "ops/elementwise.h"
#include "ops/reduce.h"
#include "tests/parallel/expert/mixture_on_ranks.h"

namespace moegrad::parallel::all_to_all_dispatcher_test {
namespace {

using namespace test;

struct Forced {
  std::string name;
  /// The experts of token t of a rank; an empty list: no such token.
  std::function<std::vector<std::int64_t>(int rank, std::int64_t token)> experts;
};

// Expert e with probability proportional to 1 / (e + 1).
std::int64_t zipf(double u) {
  double total = 0, sum = 0;
  for (std::int64_t e = 0; e < kMixtureExperts; ++e) total += 1.0 / static_cast<double>(e + 1);
  for (std::int64_t e = 0; e < kMixtureExperts; ++e) {
    sum += 1.0 / static_cast<double>(e + 1) / total;
    if (u < sum) return e;
  }
  return kMixtureExperts - 1;
}

std::vector<std::int64_t> two_different(std::int64_t first, std::int64_t second) {
  return {first, first == second ? (second + 1) % kMixtureExperts : second};
}

const std::vector<Forced>& forced_routings() {
  static const std::vector<Forced> all = {
      {"all to the experts of one rank",
       [](int, std::int64_t t) { return two_different(7, t % 2 == 0 ? 6 : 7); }},
      {"all to two experts", [](int, std::int64_t) { return two_different(3, 4); }},
      {"Zipf",
       [](int rank, std::int64_t t) {
         const Random random(static_cast<std::uint64_t>(rank) + 1, "zipf");
         const auto at = static_cast<std::uint64_t>(2 * t);
         return two_different(zipf(random.uniform(at)), zipf(random.uniform(at + 1)));
       }},
      {"uniform",
       [](int rank, std::int64_t t) {
         return two_different((rank + t) % kMixtureExperts, (rank + 3 * t + 1) % kMixtureExperts);
       }},
      {"one token per rank",
       [](int rank, std::int64_t t) {
         return t > 0 ? std::vector<std::int64_t>() : two_different(rank % kMixtureExperts, 0);
       }},
      {"ranks without tokens",
       [](int rank, std::int64_t t) {
         return rank % 2 == 0 ? std::vector<std::int64_t>() : two_different(t % 3, 5);
       }},
      {"one rank alone has tokens",
       [](int rank, std::int64_t t) {
         return rank != 0 ? std::vector<std::int64_t>() : two_different(t % 8, (t + 2) % 8);
       }},
      {"no tokens", [](int, std::int64_t) { return std::vector<std::int64_t>(); }}};
  return all;
}

Routing make_routing(const Forced& forced, int ranks) {
  Routing routing(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    for (std::int64_t t = 0; t < 5 + rank % 3; ++t) {
      auto experts = forced.experts(rank, t);
      if (!experts.empty()) routing[static_cast<std::size_t>(rank)].push_back(std::move(experts));
    }
  }
  return routing;
}

/// Ranks, and how many hosts they are on as far as the exchange knows.
struct Grid {
  int ranks = 1;
  int hosts = 0;  // 0: it goes directly
};

std::string name_of(const ::testing::TestParamInfo<Grid>& info) {
  const auto& [ranks, hosts] = info.param;
  return std::to_string(ranks) + (hosts == 0 ? "" : "_on_" + std::to_string(hosts) + "_hosts");
}

RowExchange exchange_on(RankContext& rank, const Grid& grid) {
  if (grid.hosts == 0) return RowExchange(rank.group());
  const DeviceMesh mesh(rank.group(), {{"host", grid.hosts}, {"local", grid.ranks / grid.hosts}});
  return {rank.group(), mesh.group("local"), mesh.group("host")};
}

// Divides the experts, and lets the rows travel over the grid.
void divide(nn::MoE& mixture, RankContext& rank, const Grid& grid) {
  EXPECT_EQ(expert_parallel(mixture, expert_mesh(rank)), 1);
  if (grid.hosts == 0) return;
  mixture.set_dispatcher(
      std::make_shared<AllToAllDispatcher>(exchange_on(rank, grid), kMixtureExperts));
}

class ForcedRouting : public ::testing::TestWithParam<Grid> {};

TEST_P(ForcedRouting, GivesTheBitsOfOneRankWithAllExperts) {
  const auto grid = GetParam();
  for (const auto& forced : forced_routings()) {
    SCOPED_TRACE(forced.name);
    const auto routing = make_routing(forced, grid.ranks);
    for (const auto dtype : {Dtype::kFloat32, Dtype::kFloat64}) {
      for (const auto weights :
           {nn::ExpertWeights::kPretransposed, nn::ExpertWeights::kHuggingFace}) {
        launch(grid.ranks, [&](RankContext& rank) {
          const auto whole = make_mixture(dtype, weights), divided = make_mixture(dtype, weights);
          divide(*divided, rank, grid);
          const auto expected = test::run_mixture(*whole, routing, rank.rank(), dtype);
          const auto got = test::run_mixture(*divided, routing, rank.rank(), dtype);
          EXPECT_TRUE(bitwise_equal(got.y, expected.y));
          EXPECT_TRUE(bitwise_equal(got.grad_x, expected.grad_x));
          const auto sums = test::sum_over_ranks(routing, dtype, weights);
          const auto parameters = divided->named_parameters();
          ASSERT_EQ(parameters.size(), sums.size());
          for (std::size_t i = 0; i < sums.size(); ++i) {
            const auto& [name, parameter] = parameters[i];
            const auto& spec = parameter.shard_spec();
            const Tensor own = spec == nullptr ? expected.gradients[i].tensor
                                               : clone(shard_view(sums[i].tensor, *spec));
            EXPECT_EQ(spec != nullptr, grid.ranks > 1 && name.starts_with("experts")) << name;
            EXPECT_TRUE(bitwise_equal(parameter.grad(), own)) << name;
          }
        });
      }
    }
  }
}

// Each token is a number of its own. At the experts each row is there once, and in the order of
// (expert, source rank, slot); on the way back each is at its place.
TEST_P(ForcedRouting, TakesEachRowOnceToItsExpertAndBack) {
  for (const auto& forced : forced_routings()) {
    SCOPED_TRACE(forced.name);
    const auto grid = GetParam();
    const int ranks = grid.ranks;
    const auto routing = make_routing(forced, ranks);
    launch(ranks, [&](RankContext& rank) {
      const auto number = [](int source, std::size_t token) {
        return static_cast<double>(source) * 1000 + static_cast<double>(token);
      };
      const auto& own = routing[static_cast<std::size_t>(rank.rank())];
      std::vector<double> numbers, by_choice;
      for (std::size_t t = 0; t < own.size(); ++t) {
        numbers.push_back(number(rank.rank(), t));
        for (std::int64_t j = 0; j < kMixtureTopK; ++j) {
          by_choice.push_back(numbers.back() + 0.25 * static_cast<double>(j));
        }
      }
      const Tensor x = Tensor::from(numbers, {std::ssize(own), 1});
      AllToAllDispatcher dispatcher(exchange_on(rank, grid), kMixtureExperts);
      const nn::Router::Output routed{
          .logits = {},
          .weights = Tensor::from(by_choice, {std::ssize(own), kMixtureTopK}),
          .indices = test::indices_of(routing, rank.rank())};
      const auto dispatched = dispatcher(x, routed);

      std::vector<double> rows, weights;
      std::vector<std::int64_t> counts;
      const auto here = kMixtureExperts / ranks;
      for (auto e = rank.rank() * here; e < (rank.rank() + 1) * here; ++e) {
        const auto before = rows.size();
        for (int source = 0; source < ranks; ++source) {
          const auto& tokens = routing[static_cast<std::size_t>(source)];
          for (std::size_t t = 0; t < tokens.size(); ++t) {
            for (std::size_t j = 0; j < tokens[t].size(); ++j) {
              if (tokens[t][j] != e) continue;
              rows.push_back(number(source, t));
              weights.push_back(rows.back() + 0.25 * static_cast<double>(j));
            }
          }
        }
        counts.push_back(static_cast<std::int64_t>(rows.size() - before));
      }
      EXPECT_EQ(dispatched.groups.counts(), counts);
      EXPECT_TRUE(bitwise_equal(dispatched.rows, Tensor::from(rows, {std::ssize(rows), 1})));
      EXPECT_TRUE(bitwise_equal(dispatched.weights, Tensor::from(weights, {std::ssize(weights)})));
      std::vector<std::int64_t> chosen(static_cast<std::size_t>(kMixtureExperts));
      for (const auto& token : own) {
        for (const auto e : token) ++chosen[static_cast<std::size_t>(e)];
      }
      EXPECT_EQ(dispatched.tokens_per_expert, chosen);
      EXPECT_TRUE(bitwise_equal(dispatcher.combine(dispatched.rows, dispatched),
                                x * static_cast<double>(kMixtureTopK)));
    });
  }
}

INSTANTIATE_TEST_SUITE_P(OnRanks, ForcedRouting,
                         ::testing::Values(Grid{1}, Grid{2}, Grid{4}, Grid{8}, Grid{4, 2},
                                           Grid{8, 2}, Grid{8, 4}, Grid{4, 4}, Grid{4, 1}),
                         name_of);

double value_of(const Tensor& tensor, std::size_t i) {
  const Tensor values = clone(tensor.detach());
  return values.data<double>()[i];
}

/// The objective of all ranks, summed, and its gradient by central differences in the elements of
/// this rank's tensor.
class DispatchedGradients : public ::testing::TestWithParam<Grid> {};

TEST_P(DispatchedGradients, GradientsMatchFiniteDifferences) {
  const auto grid = GetParam();
  const int ranks = grid.ranks;
  launch(ranks, [&](RankContext& rank) {
    const auto mixture = make_mixture(Dtype::kFloat64);
    divide(*mixture, rank, grid);
    const auto seed = static_cast<std::uint64_t>(rank.rank());
    const Tensor x = randn({3, test::kMixtureHidden}, 20 + seed, Dtype::kFloat64, true);
    const Tensor cotangent = randn(x.shape(), 40 + seed);
    const Tensor indices = (*mixture)(x).expert_indices;  // the choice stays while elements move
    const auto objective = [&] { return ops::sum((*mixture)(x, indices).hidden * cotangent); };
    mixture->zero_grad();
    Tensor(x).set_grad({});
    objective().backward();

    std::vector<std::pair<std::string, Tensor>> leaves = {{"x", x}};
    for (const auto& [name, parameter] : mixture->named_parameters()) {
      leaves.emplace_back(name, parameter);
    }
    const NoGradGuard no_grad;
    constexpr double kStep = 1e-5;
    for (auto& [name, leaf] : leaves) {
      // The ranks take turns; the elements are a sample of the larger tensors.
      const auto step = std::max<std::int64_t>(1, leaf.numel() / 12);
      for (int mover = 0; mover < ranks; ++mover) {
        for (std::int64_t i = 0; i < leaf.numel(); i += step) {
          const auto at = static_cast<std::size_t>(i);
          const auto value_at = [&, &leaf = leaf](double offset) {
            if (mover == rank.rank()) leaf.mutable_data<double>()[at] += offset;
            return all_reduce(*rank.group(), objective().item());
          };
          const double before = value_of(leaf, at);
          const double above = value_at(kStep);
          const double below = value_at(-2 * kStep);
          if (mover == rank.rank()) leaf.mutable_data<double>()[at] = before;
          if (mover != rank.rank()) continue;
          EXPECT_NEAR(value_of(leaf.grad(), at), (above - below) / (2 * kStep), 1e-7)
              << name << ' ' << i << " of rank " << mover;
        }
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(OnRanks, DispatchedGradients,
                         ::testing::Values(Grid{2}, Grid{4}, Grid{4, 2}), name_of);

TEST(AllToAllDispatcher, RefusesWhatDoesNotFit) {
  EXPECT_EQ(message_of<ValueError>([] { AllToAllDispatcher(nullptr, 4); }),
            "RowExchange: needs a process group, got null");
  launch(2, [](RankContext& rank) {
    EXPECT_EQ(message_of<ValueError>([&] { AllToAllDispatcher(rank.group(), 5); }),
              "AllToAllDispatcher: the 2 ranks of group 'world' must divide the experts, got 5");
    EXPECT_EQ(message_of<ValueError>([&] { AllToAllDispatcher(rank.group(), 0); }),
              "AllToAllDispatcher: the 2 ranks of group 'world' must divide the experts, got 0");
    AllToAllDispatcher dispatcher(rank.group(), 4);
    EXPECT_EQ(message_of<Error>([&] {
                dispatcher.combine(randn({2, 3}), {.rows = {}, .weights = {}, .groups = {}});
              }),
              "AllToAllDispatcher: must combine rows that it has dispatched, got those of another");
    // Rows of another kind of dispatcher.
    nn::LocalTokenDispatcher local(4);
    const nn::Router::Output routed{
        .logits = {},
        .weights = randn({1, 2}),
        .indices = Tensor::from(std::vector<std::int64_t>{0, 3}, {1, 2})};
    const auto others = local.dispatch(randn({1, 3}), routed);
    EXPECT_EQ(message_of<Error>([&] { dispatcher.combine(others.rows, others); }),
              "AllToAllDispatcher: must combine rows that it has dispatched, got those of another");
    const auto own = dispatcher.dispatch(randn({1, 3}), routed);
    EXPECT_EQ(
        message_of<Error>([&] { local.combine(own.rows, own); }),
        "LocalTokenDispatcher: must combine rows that it has dispatched, got those of another");
    EXPECT_EQ(message_of<ValueError>([&] { RowExchange(rank.group(), rank.group(), nullptr); }),
              "RowExchange: needs three process groups, got null");
    EXPECT_EQ(
        message_of<ValueError>([&] { RowExchange(rank.group(), rank.group(), rank.group()); }),
        rank.rank() == 0
            ? "RowExchange: rank 0 of 2 on host 0 of 2 must be rank 0 of 4, got rank 0 of 2"
            : "RowExchange: rank 1 of 2 on host 1 of 2 must be rank 3 of 4, got rank 1 of 2");
  });
  launch(4, [](RankContext& rank) {
    const DeviceMesh mesh(rank.group(), {{"host", 2}, {"local", 2}});
    const auto message = message_of<ValueError>([&] {
      RowExchange swapped(rank.group(), mesh.group("host"), mesh.group("local"));
      // Ranks 0 and 3 have the same place in both.
      check<ValueError>(rank.rank() % 3 != 0, "as it is");
    });
    EXPECT_EQ(message,
              rank.rank() == 1
                  ? "RowExchange: rank 0 of 2 on host 1 of 2 must be rank 2 of 4, got rank 1 of 4"
              : rank.rank() == 2
                  ? "RowExchange: rank 1 of 2 on host 0 of 2 must be rank 1 of 4, got rank 2 of 4"
                  : "as it is");
  });
}

}  // namespace
}  // namespace moegrad::parallel::all_to_all_dispatcher_test
