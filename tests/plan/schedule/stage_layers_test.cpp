// SPDX-License-Identifier: Apache-2.0
#include "plan/schedule/stage_layers.h"

#include <numeric>

#include "framework/runtime/error.h"
#include "plan/schedule/generators.h"
#include "plan/schedule/simulate.h"
#include "tests/testing.h"

namespace moegrad::stage_layers_test {
namespace {

using namespace plan;
using test::message_of;
using Layers = std::vector<int>;

TEST(StageLayers, DivideEquallyAndFirstStagesHaveTheRest) {
  EXPECT_EQ(layers_per_stage({.layers = 8, .stages = 4}), (Layers{2, 2, 2, 2}));
  EXPECT_EQ(layers_per_stage({.layers = 10, .stages = 4}), (Layers{3, 3, 2, 2}));
  EXPECT_EQ(layers_per_stage({.layers = 1}), (Layers{1}));
}

TEST(StageLayers, TheFirstAndLastStageMayHaveFewer) {
  EXPECT_EQ(layers_per_stage({.layers = 10, .stages = 4, .first_less = 1, .last_less = 1}),
            (Layers{2, 3, 3, 2}));
  EXPECT_EQ(layers_per_stage({.layers = 30, .stages = 4, .first_less = 1, .last_less = 1}),
            (Layers{7, 8, 8, 7}));
  EXPECT_EQ(layers_per_stage({.layers = 3, .stages = 1, .first_less = 1, .last_less = 1}),
            (Layers{3}));
}

TEST(StageLayers, EmptyLayersTakePlaces) {
  // 15 layers at 3 ranks with 2 stages each, as 18.
  EXPECT_EQ(layers_per_stage({.layers = 15, .stages = 6, .empty_layers = {3, 4, 5}}),
            (Layers{3, 3, 3, 2, 2, 2}));
  EXPECT_EQ(layers_per_stage({.layers = 15, .stages = 6, .empty_layers = {5, 5, 0}}),
            (Layers{2, 3, 3, 3, 3, 1}));
  EXPECT_EQ(layers_per_stage({.layers = 2, .stages = 3, .empty_layers = {1}}), (Layers{1, 0, 1}));
}

TEST(StageLayers, RefuseStagesWithoutLayers) {
  const auto refused = [](const LayerDivision& division) {
    return message_of<ValueError>([&] { layers_per_stage(division); });
  };
  EXPECT_EQ(
      refused({.layers = 2, .stages = 3}),
      "layers_per_stage: stage 2 of 3 must have one of the 2 layers, or an empty layer at its "
      "place, got neither");
  EXPECT_EQ(refused({.layers = 0, .stages = 3}),
            "layers_per_stage: needs at least 1 layer and 1 stage, got 0 and 3");
  EXPECT_EQ(refused({.layers = 3, .stages = 0}),
            "layers_per_stage: needs at least 1 layer and 1 stage, got 3 and 0");
  EXPECT_EQ(
      refused({.layers = 3, .stages = 2, .first_less = -1}),
      "layers_per_stage: the first and last stage cannot have more layers than the others: must "
      "be at least 0 less, got -1 and 0");
  EXPECT_EQ(
      refused({.layers = 3, .stages = 2, .last_less = -1}),
      "layers_per_stage: the first and last stage cannot have more layers than the others: must "
      "be at least 0 less, got 0 and -1");
  EXPECT_EQ(
      refused({.layers = 15, .stages = 6, .empty_layers = {0, 1}}),
      "layers_per_stage: 15 layers, 0 fewer and 2 empty ones must divide by 6 stages, got 17");
  EXPECT_EQ(
      refused({.layers = 15, .stages = 6, .first_less = 2, .last_less = 1, .empty_layers = {1}}),
      "layers_per_stage: 15 layers, 3 fewer and 1 empty ones must divide by 6 stages, got 19");
  EXPECT_EQ(refused({.layers = 15, .stages = 6, .empty_layers = {0, 1, 6}}),
            "layers_per_stage: the stage of an empty layer must be from 0 to 5, got 6");
  EXPECT_EQ(refused({.layers = 15, .stages = 6, .empty_layers = {-1, 1, 5}}),
            "layers_per_stage: the stage of an empty layer must be from 0 to 5, got -1");
  EXPECT_EQ(
      refused({.layers = 4, .stages = 2, .empty_layers = {0, 0, 0, 0, 0, 0}}),
      "layers_per_stage: stage 0 must lack at most the 5 layers that it has room for, got 1 more");
  EXPECT_EQ(
      refused({.layers = 4, .stages = 2, .first_less = 6}),
      "layers_per_stage: stage 0 must lack at most the 5 layers that it has room for, got 1 more");
  EXPECT_EQ(
      refused({.layers = 4, .stages = 2, .first_less = 7}),
      "layers_per_stage: stage 0 must lack at most the 6 layers that it has room for, got 1 more");
}

/// F takes 1 per layer, backward 2; the last stage has a head that takes as much as `head` layers.
double makespan(const Schedule& schedule, const Layers& layers, double head) {
  SimulationOptions options;
  options.stages.clear();
  for (const int count : layers) {
    const double own = count + (options.stages.size() + 1 == layers.size() ? head : 0);
    options.stages.push_back({.forward = own, .backward_input = own, .backward_weight = own});
  }
  return simulate(schedule, options).makespan;
}

TEST(StageLayers, InterleavedWithEmptyLayersBeatsUneven1F1B) {
  // 61 layers on 8 ranks: as 64 in 16 stages, against 5 stages of 8 and 3 of 7.
  const auto uneven = layers_per_stage({.layers = 61, .stages = 8});
  const auto gain = [&](const std::vector<int>& empty, double head) {
    const auto padded = layers_per_stage({.layers = 61, .stages = 16, .empty_layers = empty});
    EXPECT_EQ(std::accumulate(padded.begin(), padded.end(), 0), 61);
    return makespan(one_f_one_b(8, 64), uneven, head) /
               makespan(interleaved_1f1b(8, 64, 2), padded, head) -
           1;
  };
  EXPECT_NEAR(gain({13, 14, 15}, 0), 0.061, 0.002);
  EXPECT_NEAR(gain({14, 15, 15}, 1.5), 0.121, 0.002);
}

}  // namespace
}  // namespace moegrad::stage_layers_test
