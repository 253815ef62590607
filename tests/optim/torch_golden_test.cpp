// SPDX-License-Identifier: Apache-2.0
// Parameters after 20 steps of torch.optim in float64, and Hugging Face's learning rates.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "framework/io/safetensors.h"
#include "optim/adafactor.h"
#include "optim/adagrad.h"
#include "optim/adam.h"
#include "optim/adamw.h"
#include "optim/rmsprop.h"
#include "optim/schedule.h"
#include "optim/sgd.h"
#include "tests/models/causal_lm/find_tensor.h"
#include "tests/models/causal_lm/golden_data.h"
#include "tests/testing.h"

namespace moegrad::optim::torch_golden_test {
namespace {

/// Parameter k begins as cos(0.21 i) over its elements i.
NamedTensors start() {
  NamedTensors parameters;
  for (const Shape& shape : {Shape{6, 10}, Shape{12, 5}, Shape{7}}) {
    std::vector<double> values;
    for (int i = 0; i < shape.numel(); ++i) values.push_back(std::cos(0.21 * i));
    parameters.push_back({std::to_string(parameters.size()), Tensor::from(values, shape)});
  }
  return parameters;
}

void set_gradients(const NamedTensors& parameters, int step) {
  double k = 0;
  for (const auto& [name, parameter] : parameters) {
    std::vector<double> values;
    for (int i = 0; i < parameter.numel(); ++i) {
      values.push_back(std::sin((0.37 + 0.01 * k) * i + 1.3 * step) * (1 + 0.1 * step));
    }
    Tensor(parameter).set_grad(Tensor::from(values, parameter.shape()));
    ++k;
  }
}

template <class Optimizer>
void expect_torch(const std::string& name, const typename Optimizer::Config& config) {
  const auto expected =
      load_safetensors(test::golden_folder() / "v5" / "optim" / "after_20_steps.safetensors");
  const auto parameters = start();
  Optimizer optimizer(parameters, config);
  for (int step = 0; step < 20; ++step) {
    set_gradients(parameters, step);
    optimizer.step();
  }
  for (const auto& [k, parameter] : parameters) {
    EXPECT_TRUE(test::all_close(parameter, test::find(expected, name + "." + k), 1e-13, 1e-14))
        << name << ' ' << k;
  }
}

TEST(TorchGolden, ParametersAfterTwentySteps) {
  expect_torch<AdamW>("adamw", {.lr = 1e-2, .beta1 = 0.9, .beta2 = 0.95, .weight_decay = 0.1});
  expect_torch<AdamW>("adamw_amsgrad", {.lr = 1e-2, .weight_decay = 0.1, .amsgrad = true});
  expect_torch<Adam>("adam", {.lr = 1e-2, .weight_decay = 0.1});
  expect_torch<SGD>("sgd_nesterov",
                    {.lr = 1e-2, .momentum = 0.9, .weight_decay = 0.1, .nesterov = true});
  expect_torch<RMSprop>("rmsprop", {.lr = 1e-2, .momentum = 0.5});
  expect_torch<Adagrad>("adagrad", {.lr = 1e-2});
  expect_torch<Adafactor>("adafactor", {.lr = 1e-2, .weight_decay = 0.1});
}

TEST(TorchGolden, SchedulesOverSixtySteps) {
  const auto json = test::read_json(test::golden_folder() / "v5/optim/schedules.json");
  const double lr = json["base_lr"];
  const std::vector<std::pair<std::string, Schedule>> schedules = {
      {"hf_linear_w10_60", linear_with_warmup(lr, 10, 60)},
      {"hf_cosine_w10_60", cosine_with_warmup(lr, 10, 60)},
      {"hf_cosine_restarts3_w10_60", cosine_with_restarts(lr, 10, 60, 3)},
      {"hf_polynomial_w10_60_p2_end1e-3", polynomial_with_warmup(lr, 10, 60, 2, 1e-3)},
      {"hf_inverse_sqrt_w10", inverse_sqrt(lr, 10)},
      {"hf_constant_w10", constant_with_warmup(lr, 10)},
      {"hf_cosine_min_lr_rate0.1_w10_60", cosine_with_min_lr(lr, 10, 60, 0.1)},
      {"hf_wsd_w10_d20_60", warmup_stable_decay(lr, 10, 30, 20, Decay::kCosine)}};
  EXPECT_EQ(json["lr_of_steps_0_to_59"].size(), schedules.size());
  for (const auto& [name, schedule] : schedules) {
    const auto rates = json["lr_of_steps_0_to_59"].at(name).get<std::vector<double>>();
    ASSERT_EQ(rates.size(), 60U) << name;
    for (std::int64_t step = 0; step < 60; ++step) {
      EXPECT_NEAR(schedule(step), rates[static_cast<std::size_t>(step)], 1e-15) << name << step;
    }
  }
}

}  // namespace
}  // namespace moegrad::optim::torch_golden_test
