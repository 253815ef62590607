// SPDX-License-Identifier: Apache-2.0
#include "ops/expert_choice.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <vector>

#include "framework/runtime/random.h"
#include "ops/router.h"
#include "tests/testing.h"

namespace moegrad::ops::expert_choice_test {
namespace {

using namespace test;

/// The first position of the largest of `values` that is not in `taken`.
std::int64_t best_of(const std::vector<double>& values, const std::set<std::int64_t>& taken) {
  std::int64_t best = -1;
  for (std::int64_t i = 0; i < std::ssize(values); ++i) {
    if (taken.contains(i)) continue;
    if (best < 0 || values[static_cast<std::size_t>(i)] > values[static_cast<std::size_t>(best)]) {
      best = i;
    }
  }
  return best;
}

/// One token's experts, by scanning again for each of them.
std::vector<std::int64_t> naive(const std::vector<double>& choice, const ExpertChoice& how) {
  const auto in_group = std::ssize(choice) / how.num_groups;
  std::vector<double> sums;
  for (std::int64_t g = 0; g < how.num_groups; ++g) {
    const std::vector<double> own(choice.begin() + g * in_group,
                                  choice.begin() + (g + 1) * in_group);
    const auto first = best_of(own, {});
    const auto second = best_of(own, {first});
    sums.push_back(own[static_cast<std::size_t>(first)] +
                   (second < 0 ? 0 : own[static_cast<std::size_t>(second)]));
  }
  std::set<std::int64_t> groups, out_of_reach;
  for (std::int64_t i = 0; i < how.topk_groups; ++i) groups.insert(best_of(sums, groups));
  for (std::int64_t e = 0; e < std::ssize(choice); ++e) {
    if (!groups.contains(e / in_group)) out_of_reach.insert(e);
  }
  std::vector<std::int64_t> experts;
  for (std::int64_t j = 0; j < how.k; ++j) {
    experts.push_back(best_of(choice, out_of_reach));
    out_of_reach.insert(experts.back());
  }
  return experts;
}

TEST(ExpertChoice, IsThatOfANaiveSearchInAThousandCasesWithTies) {
  const Random random(1, "expert_choice_test");
  std::uint64_t drawn = 0;
  int ties = 0, grouped = 0;
  for (int round = 0; round < 1000; ++round) {
    const auto groups = 1 + random.integer(drawn++, 6), in_group = 1 + random.integer(drawn++, 5);
    const auto experts = groups * in_group;
    ExpertChoice how{.num_groups = groups, .topk_groups = 1 + random.integer(drawn++, groups)};
    how.k = 1 + random.integer(drawn++, how.topk_groups * in_group);
    const auto tokens = 1 + random.integer(drawn++, 4);
    std::vector<double> scores, bias;
    for (std::int64_t i = 0; i < tokens * experts; ++i) {
      scores.push_back(static_cast<double>(random.integer(drawn++, 6)) / 4);
    }
    for (std::int64_t e = 0; e < experts; ++e) {
      bias.push_back(static_cast<double>(random.integer(drawn++, 5) - 2) / 4);
    }
    std::vector<std::int64_t> expected;
    for (std::int64_t t = 0; t < tokens; ++t) {
      std::vector<double> choice;
      for (std::int64_t e = 0; e < experts; ++e) {
        choice.push_back(scores[static_cast<std::size_t>(t * experts + e)] +
                         bias[static_cast<std::size_t>(e)]);
      }
      for (const auto e : naive(choice, how)) expected.push_back(e);
      ties += std::set<double>(choice.begin(), choice.end()).size() < choice.size() ? 1 : 0;
    }
    grouped += how.topk_groups < how.num_groups ? 1 : 0;
    for (const auto dtype : {Dtype::kFloat32, Dtype::kFloat64}) {
      const auto chosen = choose_experts(to_dtype(Tensor::from(scores, {tokens, experts}), dtype),
                                         how, to_dtype(Tensor::from(bias, {experts}), dtype));
      ASSERT_EQ(integers(chosen), expected) << "round " << round;
    }
  }
  EXPECT_GT(ties, 1000);
  EXPECT_GT(grouped, 300);
}

TEST(ExpertChoice, TakesNoExpertOfAnotherGroupForANegativeChoice) {
  const Tensor scores = Tensor::from(std::vector<double>{0.9, 0.8, 0.1, 0.2, 0.3, 0.4}, {1, 6});
  const Tensor bias = Tensor::from(std::vector<double>{0, -1, -2, -3, -3, -3}, {6});
  EXPECT_EQ(integers(choose_experts(scores, {.k = 3, .num_groups = 2, .topk_groups = 1}, bias)),
            (std::vector<std::int64_t>{0, 1, 2}));
}

TEST(ExpertChoice, OfNanIsAnExpertThatIsNoticed) {
  Tensor logits = randn({3, 8});
  logits.mutable_data<double>()[8 + 5] = std::nan("");
  const ExpertChoice how{.k = 2, .num_groups = 4, .topk_groups = 2};
  const auto [weights, indices] = topk_sigmoid(logits, how, /*normalize=*/true);
  for (std::size_t slot = 0; slot < 6; ++slot) {
    EXPECT_EQ(std::isnan(weights.data<double>()[slot]), slot / 2 == 1) << slot;
  }
  EXPECT_EQ(integers(indices)[2], 5);
}

TEST(TopKSigmoid, BiasMovesTheChoiceAndNotTheWeights) {
  const Tensor logits = Tensor::from(std::vector<double>{2, 1, 0, -1}, {1, 4});
  const Tensor bias = Tensor::from(std::vector<double>{-1, 0, 0, 1}, {4});
  const auto [weights, indices] = topk_sigmoid(logits, {.k = 2}, /*normalize=*/false, bias);
  EXPECT_EQ(integers(indices), (std::vector<std::int64_t>{3, 1}));
  EXPECT_NEAR(weights.data<double>()[0], 1 / (1 + std::exp(1.0)), 1e-15);
  EXPECT_NEAR(weights.data<double>()[1], 1 / (1 + std::exp(-1.0)), 1e-15);
}

TEST(TopKSigmoid, OfScoresThatAreAllZeroHasWeightsOfZero) {
  const Tensor logits = Tensor::full({1, 3}, -1e5, Dtype::kFloat64);
  const auto [weights, indices] = topk_sigmoid(logits, {.k = 2}, /*normalize=*/true);
  EXPECT_TRUE(bitwise_equal(weights, Tensor::zeros({1, 2}, Dtype::kFloat64)));
  EXPECT_EQ(integers(indices), (std::vector<std::int64_t>{0, 1}));
}

TEST(TopKSigmoid, GradientsMatchFiniteDifferences) {
  const Tensor replay = Tensor::from(std::vector<std::int64_t>{4, 0, 2, 3}, {2, 2});
  for (const bool normalize : {false, true}) {
    const auto f = [=](const TensorList& in) {
      return TensorList{topk_sigmoid(in[0], {.k = 2}, normalize, {}, replay).weights};
    };
    EXPECT_TRUE(gradients_agree(f, {test::variable({2, 5})})) << "normalize " << normalize;
  }
}

}  // namespace
}  // namespace moegrad::ops::expert_choice_test
