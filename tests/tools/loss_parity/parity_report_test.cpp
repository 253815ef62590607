// SPDX-License-Identifier: Apache-2.0
#include "tools/loss_parity/parity_report.h"

#include <cmath>
#include <fstream>
#include <sstream>

#include "tests/framework/io/files.h"
#include "tests/testing.h"

namespace moegrad::tools::parity_report_test {
namespace {

using namespace training;

Choices choices_of(std::vector<std::vector<std::int64_t>> steps) {
  Choices choices;
  for (const auto& step : steps) {
    choices.push_back({{Tensor::from(step, {std::ssize(step), 1})}});
  }
  return choices;
}

Run run_of(std::vector<double> loss) {
  return {.name = "run",
          .loss = loss,
          .grad_norm = loss,
          .choices = choices_of({{0, 1}, {1, 1}, {0, 0}}),
          .parameters = {{1.0, 2.0}}};
}

TEST(ParityReport, BitwiseCheckCountsEveryDifferingValue) {
  const auto a = run_of({3, 2, 1});
  EXPECT_TRUE(check_bitwise(a, a).holds);
  auto b = a;
  b.loss[1] = std::nextafter(2.0, 3.0);
  b.parameters[0][0] = -1.0;
  EXPECT_FALSE(check_bitwise(a, b).holds);
  EXPECT_EQ(check_bitwise(a, b).worst, 2);
  b = a;
  b.parameters.clear();
  EXPECT_FALSE(check_bitwise(a, b).holds);
}

TEST(ParityReport, CloseCheckIsRelativeAndRefusesNaN) {
  EXPECT_TRUE(check_close("x", run_of({2, 2, 2}), run_of({2, 2.002, 2}), 1.1e-3).holds);
  EXPECT_FALSE(check_close("x", run_of({2, 2, 2}), run_of({2, 2.002, 2}), 0.9e-3).holds);
  EXPECT_FALSE(check_close("x", run_of({2, 2, 2}), run_of({2, NAN, 2}), 1.0).holds);
}

TEST(ParityReport, FreeRunningBoundLoosensAtTheFirstDifferentChoice) {
  const auto a = run_of({1, 1, 1});
  auto b = run_of({1, 1.001, 1.001});
  EXPECT_EQ(first_different_choice(a, b), std::nullopt);
  EXPECT_FALSE(check_free_running(a, b, 1e-5, 1e-2)[0].holds);
  b.choices = choices_of({{0, 1}, {1, 0}, {0, 0}});
  EXPECT_EQ(first_different_choice(a, b), 1);
  const auto checks = check_free_running(a, b, 1e-5, 1e-2);
  ASSERT_EQ(checks.size(), 2U);
  EXPECT_TRUE(checks[0].holds);
  EXPECT_TRUE(checks[1].holds);
  EXPECT_FALSE(check_free_running(a, b, 1e-5, 1e-4)[1].holds);
}

TEST(ParityReport, RunsWithEqualLossesAreOneCurve) {
  const std::vector runs = {run_of({3, 2}), run_of({3, 2.1}), run_of({3, 2}),
                            run_of({3, std::nextafter(2.1, 3.0)})};
  const auto curves = distinct_curves(runs);
  ASSERT_EQ(curves.size(), 3U);
  EXPECT_EQ(curves[0].run, &runs[0]);
  EXPECT_EQ(curves[1].run, &runs[1]);
  EXPECT_EQ(curves[2].run, &runs[3]);
  EXPECT_EQ(curves[0].name(), "run (and 1 with the same bits)");
  EXPECT_EQ(curves[1].name(), "run");
}

TEST(ParityLayout, IsNamedByWhatDistinguishesIt) {
  EXPECT_EQ(ParityLayout{}.name(), "float32, 1 rank");
  const ParityLayout layout = {.ranks = {.dp_replicate = 2, .dp_shard = 4},
                               .experts = ParallelDims{.dp_shard = 8},
                               .accumulation = fsdp::Accumulation::kReduceEach,
                               .reshard_after_forward = false,
                               .bf16_wire = true};
  EXPECT_EQ(layout.name(),
            "bf16 wire, 2x4 ranks, experts on 8, each micro-batch reduced, kept gathered");
}

TEST(ParityReport, WritesOneCurvePerDistinctRunAndTheirDifferences) {
  const test::TemporaryFolder folder;
  const auto path = (folder / "parity.svg").string();
  write_parity_svg(path, {run_of({3, 2, 1}), run_of({3, 2.1, 1}), run_of({3, 2.1, 1})});
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  const auto count = [svg = text.str()](const std::string& part) {
    int found = 0;
    for (auto at = svg.find(part); at != std::string::npos; at = svg.find(part, at + 1)) ++found;
    return found;
  };
  EXPECT_EQ(count("<g "), 2);
  // In each of the two charts a line and its entry in the legend.
  EXPECT_EQ(count("class=\"line0\""), 4);
  EXPECT_EQ(count("class=\"line1\""), 4);
  EXPECT_EQ(count("class=\"line2\""), 0);
  EXPECT_EQ(count(">run (and 1 with the same bits)<"), 2);
  EXPECT_EQ(test::message_of<ValueError>([] { write_parity_json("/nowhere/x", {}, {}); }),
            "cannot write file '/nowhere/x': No such file or directory");
}

}  // namespace
}  // namespace moegrad::tools::parity_report_test
