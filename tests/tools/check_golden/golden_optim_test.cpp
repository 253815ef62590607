// SPDX-License-Identifier: Apache-2.0
#include "tools/check_golden/golden_optim.h"

#include <cmath>

#include "framework/io/safetensors.h"
#include "tests/framework/io/files.h"
#include "tests/testing.h"

namespace moegrad::tools::golden_optim_test {
namespace {

using test::message_of;

constexpr const char* kRates = R"({"base_lr": 2.0, "lr_of_steps_0_to_3": {)"
                               R"("hf_linear_w1_3": [0.0, 2.0, 1.0, 0.0],)"
                               R"("hf_constant_w2": [0.0, 1.0, 2.0, 2.0]}})";

/// What SGD makes of parameter `k` if its shape is [2], by its formulas.
Tensor after_steps(int k = 0) {
  std::vector<double> p, b(2);
  for (int i = 0; i < 2; ++i) p.push_back(std::cos(0.21 * i));
  for (int t = 0; t < 20; ++t) {
    for (std::size_t i = 0; i < 2; ++i) {
      const double g =
          std::sin((0.37 + 0.01 * k) * static_cast<double>(i) + 1.3 * t) * (1 + 0.1 * t) +
          0.1 * p[i];
      b[i] = 0.9 * b[i] + g;
      p[i] -= 0.01 * (g + 0.9 * b[i]);
    }
  }
  return Tensor::from(p, {2});
}

struct Folder {
  explicit Folder(const NamedTensors& tensors = {{"sgd_nesterov.0", after_steps()},
                                                 {"sgd_nesterov.1", after_steps(1)}},
                  const std::string& rates = kRates) {
    if (!tensors.empty()) save_safetensors(root / "after_20_steps.safetensors", tensors);
    if (!rates.empty()) test::write_file(root / "schedules.json", rates);
  }
  GoldenOptim check() const { return check_golden_optim(root / ""); }
  template <class E = ValueError>
  std::string refused() const {
    return message_of<E>([&] { check(); });
  }

  test::TemporaryFolder root;
};

TEST(GoldenOptim, ComparesWhatTheFolderExpectsAndNamesIt) {
  const auto [checks, missing] = Folder().check();
  std::vector<std::string> quantities;
  for (const auto& check : checks) {
    EXPECT_TRUE(check.holds()) << check.quantity << check.error;
    EXPECT_EQ(check.limit, 1e-12);
    quantities.push_back(check.quantity);
  }
  EXPECT_EQ(quantities, (std::vector<std::string>{"after 20 steps: sgd_nesterov.0, sgd_nesterov.1",
                                                  "learning rates: hf_constant_w2",
                                                  "learning rates: hf_linear_w1_3"}));
}

TEST(GoldenOptim, SaysWhatIsOffByMoreThanTheLimit) {
  Tensor off = after_steps();
  off.mutable_data<double>()[1] += 2e-12;
  const Folder folder(
      {{"sgd_nesterov.0", off}},
      R"({"base_lr": 2.0, "lr_of_steps_0_to_1": {"hf_linear_w1_2": [0, 2.00001]}})");
  const auto checks = folder.check().checks;
  ASSERT_EQ(checks.size(), 2U);
  EXPECT_FALSE(checks[0].holds());
  EXPECT_EQ(checks[0].worst, "sgd_nesterov.0");
  EXPECT_FALSE(checks[1].holds());
  EXPECT_EQ(checks[1].worst, "step 1");
  EXPECT_NEAR(checks[1].error, 5e-6, 1e-12);  // relative to the base rate
}

TEST(GoldenOptim, TellsWhatIsMissing) {
  const std::string tensors = "after_20_steps.safetensors", rates = "schedules.json";
  const std::vector<std::string> optimizers{tensors + ": adafactor",     tensors + ": adagrad",
                                            tensors + ": adam",          tensors + ": adamw",
                                            tensors + ": adamw_amsgrad", tensors + ": rmsprop"};
  const std::vector<std::string> schedules{rates + ": hf_cosine_min_lr_rate#_w#_#",
                                           rates + ": hf_cosine_restarts#_w#_#",
                                           rates + ": hf_cosine_w#_#",
                                           rates + ": hf_inverse_sqrt_w#",
                                           rates + ": hf_polynomial_w#_#_p#_end#",
                                           rates + ": hf_wsd_w#_d#_#"};
  const auto joined = [](std::vector<std::string> first, const std::vector<std::string>& second) {
    first.insert(first.end(), second.begin(), second.end());
    return first;
  };
  EXPECT_EQ(Folder().check().missing, joined(optimizers, schedules));
  EXPECT_EQ(Folder(NamedTensors()).check().missing, joined({tensors}, schedules));
  EXPECT_EQ(Folder({{"sgd_nesterov.0", after_steps()}}, "").check().missing,
            joined(optimizers, {rates}));
}

TEST(GoldenOptim, RefusesExpectationsThatHaveLostSomething) {
  const Tensor p = after_steps();
  EXPECT_EQ(Folder({{"adam.0", Tensor::zeros({0}, Dtype::kFloat64)}}).refused<ShapeError>(),
            "after_20_steps.safetensors: 'adam.0' must have elements, got [0]");
  EXPECT_EQ(Folder({{"adam.0", p}, {"adam.1", p}, {"adamw.0", p}}).refused(),
            "after_20_steps.safetensors: 'adamw.1' is missing");
  EXPECT_EQ(Folder({{"adam.0", p}, {"adamw.0", Tensor::zeros({1, 2}, Dtype::kFloat64)}})
                .refused<ShapeError>(),
            "after_20_steps.safetensors: 'adamw.0' must be [2] as with the other optimizers, got "
            "[1, 2]");
  for (const std::string number : {"00", "01", "-0", "+1", "", "99999999999999999999999"}) {
    EXPECT_EQ(Folder({{"adam." + number, p}}).refused(),
              "after_20_steps.safetensors: 'adam." + number +
                  "' must be an optimizer, a dot and a number");
    EXPECT_EQ(Folder(NamedTensors(), R"({"base_lr": 1.0, "lr_of_steps_0_to_)" + number +
                                         R"(": {"hf_constant_w0": []}})")
                  .refused(),
              "schedules.json: a key must be base_lr or lr_of_steps_0_to_N for a number N, got "
              "'lr_of_steps_0_to_" +
                  number + "'");
  }
}

TEST(GoldenOptim, RefusesOptimizersThatItDoesNotKnow) {
  const Tensor p = after_steps();
  EXPECT_EQ(Folder({{"adamax.0", p}}).refused(),
            "after_20_steps.safetensors: an optimizer must be one of adafactor, adagrad, adam, "
            "adamw, adamw_amsgrad, rmsprop, sgd_nesterov, got 'adamax'");
  EXPECT_EQ(Folder({{"adam", p}}).refused(),
            "after_20_steps.safetensors: 'adam' must be an optimizer, a dot and a number");
  EXPECT_EQ(Folder({{"adam.0x", p}}).refused(),
            "after_20_steps.safetensors: 'adam.0x' must be an optimizer, a dot and a number");
  EXPECT_EQ(Folder({{"adam.0", p}, {"adam.2", p}}).refused(),
            "after_20_steps.safetensors: 'adam.1' is missing");
  EXPECT_EQ(Folder({{"adam.0", Tensor::ones({2})}}).refused<DtypeError>(),
            "after_20_steps.safetensors: 'adam.0' must be float64, got float32");
}

TEST(GoldenOptim, RefusesSchedulesThatItDoesNotKnow) {
  const auto refused = [](const std::string& rates) {
    return Folder(NamedTensors(), rates).refused();
  };
  const auto named = [&](const std::string& name) {
    return refused(R"({"base_lr": 1.0, "lr_of_steps_0_to_0": {")" + name + R"(": [0.0]}})");
  };
  EXPECT_EQ(named("hf_exponential_w10"),
            "schedules.json: 'hf_exponential_w10' (# for each number) must be one of "
            "hf_constant_w#, hf_cosine_min_lr_rate#_w#_#, hf_cosine_restarts#_w#_#, "
            "hf_cosine_w#_#, hf_inverse_sqrt_w#, hf_linear_w#_#, hf_polynomial_w#_#_p#_end#, "
            "hf_wsd_w#_d#_#, got 'hf_exponential_w#'");
  EXPECT_EQ(named("hf_linear_w1.5_3"),
            "schedules.json: a name must have whole numbers of steps up to 10^15, got 1.5");
  EXPECT_EQ(named("hf_constant_w1e999"),
            "schedules.json: '1e999' must begin with a number within the range of float64");
  EXPECT_EQ(named("hf_linear_w4_3"),
            "linear_with_warmup: warmup_steps must be in [0, 3] (total_steps), got 4");
  EXPECT_EQ(refused(R"({"base_lr": 1.0, "lr_of_steps_0_to_3": {"hf_constant_w0": [1.0]}})"),
            "schedules.json: 'hf_constant_w0' must have the rates of steps 0 to 3, got 1");
  EXPECT_EQ(refused(R"({"base_lr": 1.0, "rates": {}})"),
            "schedules.json: a key must be base_lr or lr_of_steps_0_to_N for a number N, got "
            "'rates'");
  EXPECT_EQ(refused(R"({"base_lr": 0.0})"),
            "schedules.json: base_lr must be finite and > 0, got 0");
  EXPECT_EQ(refused(R"({"base_lr": 1.0})"),
            "schedules.json: at least one schedule is needed, got none");
}

}  // namespace
}  // namespace moegrad::tools::golden_optim_test
