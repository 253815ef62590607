// SPDX-License-Identifier: Apache-2.0
#include <functional>
#include <string>
#include <vector>

#include "tests/tools/check_golden/golden_samples.h"

namespace moegrad::tools::golden_training_checks_test {
namespace {

using test::message_of;

/// Two steps and one parameter afterwards.
GoldenSample trained(bool clipped) {
  auto made = golden_sample();
  GoldenVariant variant;
  variant.name = "v";
  variant.lr = {0.1, 0.05};
  variant.optimizer.lr = 0.1;
  variant.optimizer.cosine = clipped;
  if (clipped) variant.optimizer.clip = 1.0;
  variant.loss = {5.0, 4.0};
  variant.ce = {4.5, 3.5};
  variant.aux = {0.5, 0.5};
  variant.grad_norm = {2.0, 8.0};
  variant.final_eval = {.loss = 3.0, .ce = 2.5, .aux = 0.5};
  const Tensor parameter = golden_values({3.0, -4.0}, {2});
  variant.final_parameters = {{"w", to_dtype(parameter, Dtype::kFloat32)}};
  variant.final_stats = {{"w", stats_of(parameter)}};
  GoldenTrained result{.lr = variant.lr,
                       .loss = variant.loss,
                       .ce = variant.ce,
                       .aux = variant.aux,
                       .grad_norm = variant.grad_norm,
                       .routing = {},
                       .replayed = false,
                       .final_eval = {.loss = 3.0, .ce = 2.5, .aux = 0.5},
                       .parameters = {{"w", parameter}}};
  made.golden.variants = {variant};
  made.results.variants = {result};
  return made;
}

TEST(GoldenTraining, HoldsEachQuantityToItsLimit) {
  const auto expect = [](Dtype dtype, bool clipped, const std::string& quantity, double limit,
                         const std::function<void(GoldenTrained&, double)>& shift) {
    auto within = trained(clipped), beyond = trained(clipped);
    shift(within.results.variants[0], 0.9 * limit);
    shift(beyond.results.variants[0], 1.1 * limit);
    EXPECT_EQ(failures(within, dtype), Names{}) << quantity;
    EXPECT_EQ(failures(beyond, dtype), Names{"v: " + quantity});
  };
  for (const bool clipped : {false, true}) {
    for (const auto dtype : {Dtype::kFloat64, Dtype::kFloat32}) {
      const bool narrow = dtype == Dtype::kFloat32;
      const double loss = !narrow ? 1e-10 : clipped ? 2e-5 : 1e-4;
      const double norm = !narrow ? 1e-10 : clipped ? 3e-5 : 2e-4;
      expect(dtype, clipped, "loss", loss, [](auto& t, double by) { t.loss[1] += by; });
      expect(dtype, clipped, "cross-entropy", loss, [](auto& t, double by) { t.ce[0] -= by; });
      expect(dtype, clipped, "auxiliary loss", loss, [](auto& t, double by) { t.aux[1] += by; });
      expect(dtype, clipped, "gradient norm", norm,
             [](auto& t, double by) { t.grad_norm[1] += 8.0 * by; });
      expect(dtype, clipped, "learning rate", 1e-15,
             [](auto& t, double by) { t.lr[1] += 0.1 * by; });
      expect(dtype, clipped, "afterwards, loss", loss,
             [](auto& t, double by) { t.final_eval.loss += by; });
      expect(dtype, clipped, "afterwards, auxiliary loss", loss,
             [](auto& t, double by) { t.final_eval.aux += by; });
    }
  }
}

TEST(GoldenTraining, HoldsParametersToTheirLimits) {
  const auto shift = [](GoldenSample made, double by) {
    auto& tensor = made.results.variants[0].parameters[0].tensor;
    tensor = shifted(tensor, by);
    return made;
  };
  const std::string after = "v: afterwards, ";
  // The norm is 5: relative limits 4.2e-5 and 8.5e-6. The figures move by sqrt(1/2) of the shift.
  EXPECT_EQ(failures(shift(trained(false), 5 * 4.0e-5), Dtype::kFloat32), Names{});
  EXPECT_EQ(failures(shift(trained(false), 5 * 4.4e-5), Dtype::kFloat32),
            Names{after + "parameters together"});
  EXPECT_EQ(failures(shift(trained(false), 5 * 6.1e-5), Dtype::kFloat32),
            (Names{after + "parameters together", after + "parameters' figures"}));
  EXPECT_EQ(
      failures(shift(trained(false), 9e-4), Dtype::kFloat32),
      (Names{after + "parameters", after + "parameters together", after + "parameters' figures"}));
  EXPECT_EQ(failures(shift(trained(true), 5 * 8.8e-6), Dtype::kFloat32),
            Names{after + "parameters together"});
  // In float64 1e-10, and 6e-8 where the folder's values are rounded.
  EXPECT_EQ(failures(shift(trained(true), 5 * 1.3e-10)), Names{});
  EXPECT_EQ(failures(shift(trained(true), 5 * 1.5e-10)), Names{after + "parameters' figures"});
  EXPECT_EQ(failures(shift(trained(true), 5 * 0.7e-7)),
            (Names{after + "parameters", after + "parameters' figures"}));
}

TEST(GoldenTraining, AllowsTenTimesWhatAnotherFloat32RunDid) {
  const auto fails = [](const GoldenOtherRun& other, Dtype dtype, double by = 1.8e-4) {
    auto made = trained(true);
    made.golden.variants[0].other_run = other;
    auto& result = made.results.variants[0];
    result.loss[1] += by;
    result.ce[0] += by;
    result.aux[0] += by;
    result.grad_norm[0] += 2.0 * by;
    result.final_eval.loss += by;
    return failures(made, dtype);
  };
  const Names all = {"v: loss", "v: cross-entropy", "v: auxiliary loss", "v: gradient norm",
                     "v: afterwards, loss"};
  EXPECT_EQ(fails({}, Dtype::kFloat32), all);
  EXPECT_EQ(fails({.loss = {5.0, 4.0 + 1e-4}, .grad_norm = {2.0, 8.0}}, Dtype::kFloat32),
            Names{"v: gradient norm"});
  EXPECT_EQ(fails({.loss = {5.0, 4.0}, .grad_norm = {2.0 + 2e-4, 8.0}}, Dtype::kFloat32),
            (Names{"v: loss", "v: cross-entropy", "v: auxiliary loss", "v: afterwards, loss"}));
  EXPECT_EQ(fails({.loss = {}, .grad_norm = {}, .aux_error = 1e-4}, Dtype::kFloat32),
            (Names{"v: loss", "v: cross-entropy", "v: gradient norm", "v: afterwards, loss"}));
  EXPECT_EQ(fails({.loss = {6.0, 9.0}, .grad_norm = {3.0, 3.0}, .aux_error = 1}, Dtype::kFloat64),
            all);
  // But no more than ten times the limits without it.
  EXPECT_EQ(fails({.loss = {5.0, 4.0 + 1e-4}, .grad_norm = {2.0, 8.0}}, Dtype::kFloat32, 2.1e-4),
            all);
  const std::string refused =
      "v: another float32 run must be within 0.0002 of the float64 run, got ";
  EXPECT_EQ(message_of<ValueError>(
                [&] { fails({.loss = {}, .grad_norm = {}, .aux_error = 1}, Dtype::kFloat32); }),
            refused + "1");
  EXPECT_EQ(message_of<ValueError>([&] {
              fails({.loss = {6.0, 4.0}, .grad_norm = {}}, Dtype::kFloat32);
            }),
            refused + "1");
}

}  // namespace
}  // namespace moegrad::tools::golden_training_checks_test
