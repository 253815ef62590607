// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "tests/testing.h"
#include "tools/nz_ablation/nz_ablation_report.h"
#include "tools/nz_ablation/nz_ablation_run.h"

namespace moegrad::tools::nz_ablation_test {
namespace {

using test::message_of;

constexpr double kLayers = 4;  // of the preset "tiny", two expert weights in each

std::vector<double> column(const Ladder& ladder, double DataMovement::*field) {
  std::vector<double> values;
  for (const auto& rung : ladder.rungs) values.push_back(rung.moved.*field);
  return values;
}

TEST(NzLadder, EachRungMovesWhatItsNameSaysAndKeepsTheLoss) {
  for (const int ranks : {1, 2}) {
    const auto ladder = run_ladder("tiny", {.ranks = ranks, .threads = 3 - ranks, .rounds = 2});
    EXPECT_EQ(ladder.tokens, 64 / ranks);
    ASSERT_EQ(ladder.rungs.size(), 7U);
    check_losses_agree(ladder);
    for (const auto& rung : ladder.rungs) {
      ASSERT_EQ(rung.loss.size(), 3U);
      EXPECT_EQ(rung.seconds.size(), 2U);
      EXPECT_NEAR(rung.loss[0], std::log(256), 0.2);
      EXPECT_LT(rung.loss[2], rung.loss[0]);
    }
    // Whatever reads FRACTAL_NZ needs it after each gather: in forward and in backward.
    const double weights = 2 * 2 * kLayers;
    EXPECT_EQ(column(ladder, &DataMovement::nz_conversions),
              (std::vector<double>{0, 0, 0, weights, 0, 0, 0}));
    EXPECT_EQ(column(ladder, &DataMovement::nz_copy_outs),
              (std::vector<double>{0, 0, 0, 0, weights, weights, weights}));
    // The weight in forward, its gradient in backward.
    EXPECT_EQ(column(ladder, &DataMovement::materialized_transposes),
              (std::vector<double>{0, weights, 0, weights, 0, 0, 0}));
    // Outside the experts all rungs pack alike: q, k, v, o and the router of each layer, and the
    // head, in forward and in backward.
    const double rest = 5 * kLayers + 1;
    const auto packs = column(ladder, &DataMovement::packed_panels);
    const auto in_turn = packs[0];  // by a product of a weight that is not transposed
    EXPECT_GT(in_turn, rest + 2 * kLayers);
    EXPECT_EQ(packs,
              (std::vector<double>{in_turn, 2 * in_turn - rest, in_turn, rest, rest, rest, rest}));
    // One of forward and input gradient reads a row-major weight as its transpose, unless there is
    // a transpose of it; NZ is read in place either way.
    EXPECT_EQ(column(ladder, &DataMovement::transposed_packs),
              (std::vector<double>{in_turn, rest, in_turn, rest, rest, rest, rest}));

    const auto packed = column(ladder, &DataMovement::packed_bytes);
    EXPECT_EQ(packed[0], packed[2]);
    EXPECT_LT(packed[4], packed[2]);
    // Hidden size 64, experts of 32, eight of them, in float32.
    const double twice = 4 * 2 * kLayers * 8 * 3 * 64 * 32;
    EXPECT_EQ(column(ladder, &DataMovement::converted_bytes),
              (std::vector<double>{0, twice, 0, 2 * twice, 0, 0, 0}));
    const auto copied = column(ladder, &DataMovement::copied_out_bytes);
    EXPECT_EQ(std::vector(copied.begin(), copied.begin() + 6), std::vector<double>(6, copied[0]));
    // Norms and router go with the root, which is gathered once, not twice.
    const double norms = 2 * 64 + 2 * 16, router = 8 * 64;
    EXPECT_EQ(copied[0] - copied[6], 4 * kLayers * (norms + router));
  }
}

TEST(NzLayer, TheCopyOutSavesTheConversion) {
  const auto layer = run_ways_to_nz("tiny", 2);
  EXPECT_EQ(layer.options.ranks, 8);
  EXPECT_EQ(layer.tokens, 8);
  check_losses_agree(layer);
  const double experts = 4 * 128 * 3 * 64 * 32, router = 4 * 128 * 64;
  EXPECT_EQ(column(layer, &DataMovement::nz_conversions), (std::vector<double>{2, 0}));
  EXPECT_EQ(column(layer, &DataMovement::nz_copy_outs), (std::vector<double>{0, 2}));
  EXPECT_EQ(column(layer, &DataMovement::converted_bytes), (std::vector<double>{experts, 0}));
  EXPECT_EQ(column(layer, &DataMovement::copied_out_bytes),
            std::vector<double>(2, experts + router));
}

TEST(NzLayer, ClimbsTheSameLadder) {
  const auto layer = run_layer_ladder("tiny", 2);
  EXPECT_EQ(layer.options.ranks, 8);
  EXPECT_EQ(layer.baselines, (std::vector<std::size_t>{0, 1}));
  check_losses_agree(layer);
  EXPECT_EQ(column(layer, &DataMovement::nz_conversions),
            (std::vector<double>{0, 0, 0, 2, 0, 0, 0}));
  EXPECT_EQ(column(layer, &DataMovement::nz_copy_outs), (std::vector<double>{0, 0, 0, 0, 2, 2, 2}));
  EXPECT_EQ(column(layer, &DataMovement::materialized_transposes),
            (std::vector<double>{0, 2, 0, 2, 0, 0, 0}));
  const double experts = 4 * 128 * 3 * 64 * 32, router = 4 * 128 * 64;
  const auto copied = column(layer, &DataMovement::copied_out_bytes);
  EXPECT_EQ(std::vector(copied.begin(), copied.begin() + 6),
            std::vector<double>(6, experts + router));
  EXPECT_EQ(copied[6], experts);
}

TEST(RunLadder, RefusesRanksThatDoNotDivideTheSequences) {
  EXPECT_EQ(message_of<ValueError>([] { run_ladder("main", {.ranks = 3}); }),
            "--world-size: must divide the 4 sequences of main, got 3");
}

Ladder some_ladder() {
  return {.title = "toy",
          .options = {.ranks = 2, .threads = 1, .rounds = 3},
          .tokens = 100,
          .rungs = {{.name = "a", .seconds = {0.4, 0.2, 0.3}, .loss = {3, 2.5, 2}},
                    {.name = "b",
                     .seconds = {0.5, 0.6, 0.1},
                     .loss = {3, 2.5, 2.25},
                     .moved = {.materialized_transposes = 1,
                               .transposed_packs = 2,
                               .packed_panels = 3,
                               .nz_conversions = 4,
                               .nz_copy_outs = 5,
                               .copied_out_bytes = 1e6,
                               .converted_bytes = 2e6,
                               .packed_bytes = 3e6}},
                    {.name = "c", .seconds = {0.25, 0.2, 0.05}, .loss = {3, 2.5, 2}}},
          .baselines = {1}};
}

TEST(AblationReport, ShowsTimesGainsAndCopiesOfEachRung) {
  const auto ladder = some_ladder();
  EXPECT_EQ(
      ladder_table(ladder),
      "toy: 2 ranks x 1 threads, 100 tokens per rank and step, 3 rounds\n"
      "milliseconds of a step, tokens per second and rank (TGS), and how many times as fast as\n"
      "another rung of the same round; medians and quartiles:\n"
      "rung                   TGS  step ms                  over b                   over a\n"
      "a                      333  300.0 (250.0 - 350.0)     1.25 (0.79 - 2.12)       1.00 (1.00 - "
      "1.00)\n"
      "b                      200  500.0 (300.0 - 550.0)     1.00 (1.00 - 1.00)       0.80 (0.57 - "
      "1.90)\n"
      "c                      500  200.0 (125.0 - 225.0)     2.00 (2.00 - 2.50)       1.60 (1.30 - "
      "3.80)\n"
      "copies per rank and step, and the largest difference of a loss from the first rung's:\n"
      "rung                  MB moved  transposes  packs  transposed  to NZ  copy-outs to NZ  "
      "loss difference\n"
      "a                          0.0           0      0           0      0                0  "
      "0 (bitwise)\n"
      "b                          6.0           1      5           2      4                5  "
      "2.5e-01\n"
      "c                          0.0           0      0           0      0                0  "
      "0 (bitwise)\n");
}

TEST(AblationReport, SpreadsAreMediansAndQuartiles) {
  const auto [median, lower, upper] = spread_of({4, 1, 3, 2, 10});
  EXPECT_EQ(median, 3);
  EXPECT_EQ(lower, 2);
  EXPECT_EQ(upper, 4);
  const auto even = spread_of({4, 1, 3, 2});
  EXPECT_EQ(even.median, 2.5);
  EXPECT_EQ(even.lower_quartile, 1.75);
  EXPECT_EQ(even.upper_quartile, 3.25);
  EXPECT_EQ(spread_of({7}).upper_quartile, 7);
  EXPECT_EQ(message_of<ValueError>([] { spread_of({}); }),
            "nz_ablation: a spread needs at least one value, got none");
}

TEST(AblationReport, GainsCompareTheStepsOfOneRound) {
  const auto ladder = some_ladder();
  const auto over_b = gain(ladder, 2, 1);  // of 2, 3 and 2
  EXPECT_DOUBLE_EQ(over_b.median, 2.0);
  EXPECT_DOUBLE_EQ(over_b.lower_quartile, 2.0);
  EXPECT_DOUBLE_EQ(over_b.upper_quartile, 2.5);
  EXPECT_DOUBLE_EQ(gain(ladder, 1, 0).median, 0.8);  // of 0.8, 1/3 and 3
}

TEST(AblationReport, ComparesWithTheFastestRungThatMakesNoNzAndWithTheRungBefore) {
  auto ladder = some_ladder();
  EXPECT_EQ(all_baselines(ladder), (std::vector<std::size_t>{1, 0}));
  EXPECT_EQ(gain_lines(ladder),
            "toy: 'c' is 2.00 times (quartiles 2.00 to 2.50) as fast as 'b'\n"
            "toy: 'c' is 1.60 times (quartiles 1.30 to 3.80) as fast as 'a', the fastest "
            "row-major rung\n");
  // Faster than 'a' as soon as it makes none either.
  ladder.rungs[1].moved = {};
  ladder.rungs[1].seconds = {0.25, 0.2, 0.1};
  EXPECT_EQ(fastest_row_major(ladder), 1U);
  EXPECT_EQ(all_baselines(ladder), std::vector<std::size_t>{1});
  ladder.rungs[0].moved.nz_copy_outs = ladder.rungs[1].moved.nz_conversions = 1;
  EXPECT_EQ(fastest_row_major(ladder), std::nullopt);
  ladder.baselines = {0};
  EXPECT_EQ(gain_lines(ladder),
            "toy: 'c' is 1.60 times (quartiles 1.30 to 3.80) as fast as 'a'\n"
            "toy: 'c' is 1.00 times (quartiles 1.00 to 1.50) as fast as 'b', the rung before it\n");
}

TEST(AblationReport, RefusesLossesWithOtherBits) {
  auto ladder = some_ladder();
  EXPECT_EQ(message_of<Error>([&] { check_losses_agree(ladder); }),
            "toy: losses must agree to the bit, got 2 and 2.25 of 'a' and 'b' at step 2");
  ladder.rungs[1].loss = ladder.rungs[0].loss;
  check_losses_agree(ladder);
}

}  // namespace
}  // namespace moegrad::tools::nz_ablation_test
