// SPDX-License-Identifier: Apache-2.0
#include "tools/check_golden/golden_ranks.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "framework/distributed/launch.h"
#include "tests/testing.h"
#include "tests/tools/check_golden/golden_samples.h"

namespace moegrad::tools::golden_ranks_test {
namespace {

using test::message_of;

GoldenResults sample_results() {
  auto results = golden_sample().results;
  results.packed = results.batch;
  results.alone = {results.batch, results.batch};
  results.generations = {{.prompt = {1}, .tokens = {2, 3}, .smallest_margin = 0.5}};
  results.variants.push_back({.lr = {0.1, 0.2},
                              .loss = {3, 2},
                              .ce = {2, 1},
                              .aux = {1, 1},
                              .grad_norm = {5, 4},
                              .routing = {results.batch.routing, results.batch.routing},
                              .final_eval = results.batch,
                              .parameters = {}});
  return results;
}

/// What three ranks say if one of them has changed its results.
std::string message_after(const std::function<void(GoldenResults&)>& change, int changed_rank) {
  return message_of<Error>([&] {
    launch(3, [&](RankContext& context) {
      auto results = sample_results();
      if (context.rank() == changed_rank) change(results);
      check_same_on_all_ranks(*context.group(), results);
    });
  });
}

TEST(GoldenRanks, MustHaveTheSameResults) {
  const auto shift = [](Tensor& tensor) { tensor = shifted(tensor, 1e-15); };
  const std::vector<std::function<void(GoldenResults&)>> changes = {
      [](auto& r) { r.batch.loss += 1e-15; },
      [](auto& r) { r.batch.ce += 1e-15; },
      [](auto& r) { r.batch.aux += 1e-15; },
      [&](auto& r) { shift(r.batch.logits); },
      [&](auto& r) { shift(r.batch.hidden[1]); },
      [&](auto& r) { shift(r.batch.routing.logits[0]); },
      [](auto& r) {
        r.batch.routing.experts[0] = Tensor::from(std::vector<std::int64_t>{0, 2}, {2, 1});
      },
      [&](auto& r) { shift(r.batch.routing.weights[0]); },
      [](auto& r) { r.batch.routing.tokens_per_expert[0][2] = 1; },
      [](auto& r) { r.packed->loss = 4; },
      [](auto& r) { r.packed.reset(); },
      [](auto& r) { r.alone[1].ce = 4; },
      [](auto& r) { r.generations[0].tokens[1] = 4; },
      [](auto& r) { r.generations[0].smallest_margin = 0.25; },
      [](auto& r) { r.variants[0].lr[1] = 4; },
      [](auto& r) { r.variants[0].loss[1] = 4; },
      [](auto& r) { r.variants[0].ce[1] = 4; },
      [](auto& r) { r.variants[0].aux[1] = 4; },
      [](auto& r) { r.variants[0].grad_norm[1] = 6; },
      [](auto& r) { r.variants[0].routing[1].tokens_per_expert[0][0] = 4; },
      [](auto& r) { r.variants[0].final_eval.loss = 4; },
  };
  for (std::size_t i = 0; i < changes.size(); ++i) {
    EXPECT_EQ(message_after(changes[i], 2),
              "check_golden: all ranks must have the same results, got others on rank 2 than on "
              "rank 0")
        << i;
  }
}

TEST(GoldenRanks, NeedNotHaveWhatTheFirstAloneHas) {
  launch(3, [](RankContext& context) {
    auto results = sample_results();
    if (context.rank() > 0) results.batch.gradients.clear();
    EXPECT_NO_THROW(check_same_on_all_ranks(*context.group(), results));
  });
}

}  // namespace
}  // namespace moegrad::tools::golden_ranks_test
