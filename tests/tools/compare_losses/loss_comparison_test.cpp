// SPDX-License-Identifier: Apache-2.0
#include "tools/compare_losses/loss_comparison.h"

#include <cmath>
#include <limits>

#include "tests/testing.h"

namespace moegrad::tools::loss_comparison_test {
namespace {

using test::message_of;

constexpr ComparisonOptions kBitwise = {.bitwise = true};

/// A step for each loss, from 0 on. ce is the same, grad_norm is 1.
MetricsRun run_of(const std::string& path, const std::vector<double>& losses) {
  MetricsRun run = {.path = path};
  for (const auto loss : losses) run.steps[std::ssize(run.steps)] = {loss, loss, 1};
  return run;
}

bool equal(double a, double b, const ComparisonOptions& options) {
  return compare_losses(run_of("a", {a}), run_of("b", {b}), options).equal;
}

TEST(CompareLosses, BitForBitIsToTheLastBitOfEachQuantity) {
  const auto a = run_of("a", {3, 2, 1});
  EXPECT_TRUE(compare_losses(a, a, kBitwise).equal);
  EXPECT_EQ(compare_losses(a, a, kBitwise).steps, 3);
  for (std::size_t i = 0; i < kComparedQuantities.size(); ++i) {
    auto b = a;
    b.steps[1][i] = std::nextafter(a.steps.at(1)[i], 9.0);
    const auto comparison = compare_losses(a, b, kBitwise);
    EXPECT_FALSE(comparison.equal);
    ASSERT_TRUE(comparison.first);
    EXPECT_EQ(comparison.first->step, 1);
    EXPECT_EQ(comparison.first->quantity, kComparedQuantities[i]);
    EXPECT_EQ(comparison.first->a, a.steps.at(1)[i]);
    EXPECT_EQ(comparison.first->b, b.steps[1][i]);
    for (std::size_t j = 0; j < kComparedQuantities.size(); ++j) {
      EXPECT_EQ(comparison.quantities[j].differing, i == j ? 1 : 0);
    }
  }
}

TEST(CompareLosses, BitForBitTellsZerosApartAndTakesNaNForNaN) {
  EXPECT_FALSE(equal(0.0, -0.0, kBitwise));
  EXPECT_TRUE(equal(0.0, -0.0, {}));
  EXPECT_TRUE(equal(NAN, NAN, kBitwise));
  EXPECT_TRUE(equal(NAN, NAN, {}));
  EXPECT_FALSE(equal(1, NAN, kBitwise));
  EXPECT_FALSE(equal(1, NAN, {.rtol = 1e9, .atol = 1e9}));
  EXPECT_FALSE(equal(NAN, 1, {.rtol = 1e9, .atol = 1e9}));
}

TEST(CompareLosses, WithinTheToleranceIsRelativeToTheFirst) {
  EXPECT_TRUE(equal(2, 2.5, {.rtol = 0.25}));
  EXPECT_FALSE(equal(2, 2.5, {.rtol = 0.24}));
  EXPECT_FALSE(equal(2.5, 2, {.rtol = 0.19}));
  EXPECT_TRUE(equal(2.5, 2, {.rtol = 0.21}));
  EXPECT_TRUE(equal(2, 2.5, {.atol = 0.5}));
  EXPECT_FALSE(equal(2, 2.5, {.atol = 0.49}));
  EXPECT_TRUE(equal(-2, -2.5, {.rtol = 0.125, .atol = 0.25}));
  EXPECT_FALSE(equal(2, 2.5, {}));
}

TEST(CompareLosses, FindsTheLargestDifferencesAndTheFirst) {
  const auto comparison = compare_losses(run_of("a", {8, 4, 1, 1, 0}),
                                         run_of("b", {8, 5, 1.5, 0.5, 0.25}), {.atol = 1});
  EXPECT_TRUE(comparison.equal);
  const auto& loss = comparison.quantities[0];
  EXPECT_EQ(loss.differing, 0);
  EXPECT_EQ(loss.absolute.value, 1);
  EXPECT_EQ(loss.absolute.step, 1);
  EXPECT_EQ(loss.relative.value, std::numeric_limits<double>::infinity());
  EXPECT_EQ(loss.relative.step, 4);
  EXPECT_EQ(comparison.quantities[2].absolute.step, std::nullopt);
  const auto tight =
      compare_losses(run_of("a", {8, 4, 1, 1}), run_of("b", {8, 5, 1.5, 0.5}), {.rtol = 0.25});
  EXPECT_EQ(tight.quantities[0].differing, 2);
  EXPECT_EQ(tight.quantities[0].relative.value, 0.5);
  EXPECT_EQ(tight.quantities[0].relative.step, 2);
  ASSERT_TRUE(tight.first);
  EXPECT_EQ(tight.first->step, 2);
  const auto nan = compare_losses(run_of("a", {1, NAN}), run_of("b", {1e9, 1}), {});
  EXPECT_EQ(nan.quantities[0].absolute.step, 1);
  EXPECT_EQ(nan.quantities[0].relative.value, std::numeric_limits<double>::infinity());
}

TEST(CompareLosses, StepsThatOneRunAloneHasAreADifferenceUnlessTheCommonOnesAreAskedFor) {
  auto a = run_of("a.jsonl", {3, 2, 1});
  auto b = a;
  b.path = "b.jsonl";
  a.steps[9] = {};
  b.steps.erase(0);
  const auto comparison = compare_losses(a, b, kBitwise);
  EXPECT_FALSE(comparison.equal);
  EXPECT_FALSE(comparison.first);
  EXPECT_EQ(comparison.steps, 2);
  EXPECT_EQ(comparison.only_a, (std::vector<std::int64_t>{0, 9}));
  EXPECT_EQ(comparison.only_b, std::vector<std::int64_t>{});
  EXPECT_EQ(compare_losses(b, a, kBitwise).only_b, (std::vector<std::int64_t>{0, 9}));
  EXPECT_FALSE(compare_losses(b, a, kBitwise).equal);
  EXPECT_TRUE(compare_losses(a, b, {.bitwise = true, .common = true}).equal);
  b.steps[2][0] = 7;
  EXPECT_FALSE(compare_losses(a, b, {.bitwise = true, .common = true}).equal);
  b.steps = {{5, {}}};
  EXPECT_FALSE(compare_losses(a, b, kBitwise).equal);
  EXPECT_EQ(message_of<ValueError>([&] { compare_losses(a, b, {.common = true}); }),
            "metrics: a.jsonl and b.jsonl must have a step in common, got none");
}

TEST(CompareLosses, ComparesValidationLossesAndTellsOfThoseThatOneRunAloneHas) {
  auto a = run_of("a", {3, 2, 1});
  a.validation_losses = {{0, 5}, {2, 4}, {3, NAN}};
  auto b = a;
  EXPECT_TRUE(compare_losses(a, b, kBitwise).equal);
  b.validation_losses[2] = 4.5;
  auto comparison = compare_losses(a, b, kBitwise);
  EXPECT_FALSE(comparison.equal);
  EXPECT_EQ(comparison.validation.differing, 1);
  EXPECT_EQ(comparison.validation.absolute.value, 0.5);
  EXPECT_EQ(comparison.validation.absolute.step, 2);
  ASSERT_TRUE(comparison.first);
  EXPECT_EQ(comparison.first->quantity, "validation");
  EXPECT_EQ(comparison.first->step, 2);
  EXPECT_TRUE(compare_losses(a, b, {.rtol = 0.125}).equal);
  b.steps[1][0] = 9;  // step 1 comes before the validation after two steps
  EXPECT_EQ(compare_losses(a, b, kBitwise).first->quantity, "loss");

  b = a;
  b.validation_losses.erase(3);
  b.validation_losses[1] = 4;
  comparison = compare_losses(a, b, kBitwise);
  EXPECT_FALSE(comparison.equal);
  EXPECT_EQ(comparison.validation_only_a, std::vector<std::int64_t>{3});
  EXPECT_EQ(comparison.validation_only_b, std::vector<std::int64_t>{1});
  EXPECT_TRUE(compare_losses(a, b, {.bitwise = true, .common = true}).equal);
  EXPECT_NE(to_string(a, b, kBitwise, comparison)
                .find("validation losses only in a, after steps: 3\n"
                      "validation losses only in b, after steps: 1\nDIFFERENT\n"),
            std::string::npos);
  b.validation_losses.clear();
  EXPECT_FALSE(compare_losses(a, b, kBitwise).equal);
}

std::string report(const MetricsRun& a, const MetricsRun& b, const ComparisonOptions& options) {
  return to_string(a, b, options, compare_losses(a, b, options));
}

TEST(LossComparison, SaysWhatWasComparedAndWhatDiffers) {
  const auto a = run_of("a.jsonl", {4, 3});
  auto b = a;
  b.path = "b.jsonl";
  b.steps[1][0] = std::nextafter(3.0, 4.0);
  b.steps[10] = b.steps[11] = b.steps[13] = {};
  b.bytes_left_out = 17;
  EXPECT_EQ(report(a, b, kBitwise),
            "a: a.jsonl, 2 steps from 0 to 1\n"
            "b: b.jsonl, 5 steps from 0 to 13; its last line is cut short, 17 bytes left out\n"
            "2 steps compared, bit for bit\n"
            "           differing    max |a - b|  at step  max |a - b| / |a|  at step\n"
            "loss               1       4.44e-16        1           1.48e-16        1\n"
            "ce                 0       0.00e+00        -           0.00e+00        -\n"
            "grad_norm          0       0.00e+00        -           0.00e+00        -\n"
            "validation         0       0.00e+00        -           0.00e+00        -\n"
            "first to differ: loss at step 1, a 3, b 3.0000000000000004\n"
            "steps only in b: 10 to 11, 13\n"
            "DIFFERENT\n");
  const auto within = report(b, a, {.rtol = 1e-3, .atol = 1e-6, .common = true});
  EXPECT_NE(within.find("2 steps compared, |a - b| <= 1e-06 + 0.001 * |a|\n"), std::string::npos);
  EXPECT_NE(within.find("steps only in a: 10 to 11, 13\nwithin the tolerance\n"),
            std::string::npos);
  EXPECT_EQ(within.find("first to differ"), std::string::npos);
  EXPECT_TRUE(report(a, a, kBitwise).ends_with("\nequal\n"));
}

TEST(LossComparison, NamesTheFirstFewStepsThatOneRunAloneHas) {
  auto a = run_of("a", {1});
  const auto b = a;
  for (std::int64_t step = 2; step <= 22; step += 2) a.steps[step] = {};
  EXPECT_NE(report(a, b, kBitwise).find("steps only in a: 2, 4, 6, 8, 10, 12, 14, 16 and 3 more\n"),
            std::string::npos);
}

}  // namespace
}  // namespace moegrad::tools::loss_comparison_test
