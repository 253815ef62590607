// SPDX-License-Identifier: Apache-2.0
// 30 steps against Hugging Face's model under torch.optim.AdamW in float64: losses and gradient
// norms at every step, learning rates, and the parameters afterwards.
#include <cmath>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "framework/io/safetensors.h"
#include "models/causal_lm/config_json.h"
#include "models/causal_lm/loss.h"
#include "models/causal_lm/model.h"
#include "ops/cross_entropy.h"
#include "optim/adamw.h"
#include "optim/clip_grad_norm.h"
#include "optim/schedule.h"
#include "tests/models/causal_lm/expert_layouts.h"
#include "tests/models/causal_lm/golden_data.h"
#include "tests/testing.h"

namespace moegrad::models::causal_lm_training_test {
namespace {

using test::index_vector;

class GoldenTraining : public ::testing::TestWithParam<std::tuple<const char*, const char*>> {};

TEST_P(GoldenTraining, FollowsHuggingFaceForThirtySteps) {
  const auto [name, variant] = GetParam();
  const auto folder = test::golden_folder() / name;
  const auto train = test::read_json(folder / "train.json");
  const auto& spec = train["variants"][variant]["spec"];
  const auto& expected = train["variants"][variant]["fp64"];

  auto config = read_model_config(folder / "config.json");
  config.dtype = Dtype::kFloat64;
  CausalLM model(config);
  model.load_state_dict(
      test::state_from_hugging_face(load_safetensors(folder / "model.safetensors"), model));
  const auto parameters = model.named_parameters();
  const bool clipped = !spec["clip"].is_null();
  const double lr = spec["lr"];
  const auto schedule =
      clipped ? optim::cosine_with_warmup(lr, spec["warmup_steps"], 30) : optim::constant(lr);
  optim::AdamW optimizer(parameters, {.lr = lr,
                                      .beta1 = spec["betas"][0],
                                      .beta2 = spec["betas"][1],
                                      .eps = spec["eps"],
                                      .weight_decay = spec["weight_decay"]});

  constexpr double kTolerance = 1e-9;
  for (std::size_t step = 0; step < 30; ++step) {
    const auto row = test::pack_batch(train["input_ids"][step], train["labels"][step]);
    const Tensor targets = index_vector(row.targets);
    const auto loss = causal_lm_loss(model(index_vector(row.tokens), row.documents()), targets,
                                     ops::count_targets(targets), config.router_aux_loss_coef);
    optimizer.zero_grad();
    loss.objective.backward();
    const double norm = optim::clip_grad_norm(
        parameters, clipped ? spec["clip"].get<double>() : std::numeric_limits<double>::infinity());
    EXPECT_NEAR(loss.objective.item(), expected["loss"][step], kTolerance) << step;
    EXPECT_NEAR(norm / expected["grad_norm"][step].get<double>(), 1.0, kTolerance) << step;
    const double rate = schedule(static_cast<std::int64_t>(step));
    EXPECT_NEAR(rate, train["variants"][variant]["lr"][step], 1e-16) << step;
    optimizer.set_lr(rate);
    optimizer.step();
  }

  const auto final_values = load_safetensors(folder / "train_final.safetensors");
  for (const auto& slot : model.parameter_slots()) {
    if (config.tie_word_embeddings && slot.name == "lm_head.weight") continue;
    EXPECT_TRUE(test::all_close(
        *slot.tensor, test::from_hugging_face(final_values, slot, std::string(variant) + "/"), 1e-7,
        1e-9))
        << slot.name;
  }
}

INSTANTIATE_TEST_SUITE_P(HuggingFace, GoldenTraining,
                         ::testing::Combine(::testing::Values("a_minimal", "b_tied_dense_nonorm",
                                                              "c_mlponly_odd_ignore"),
                                            ::testing::Values("adamw_const", "adamw_clip_cosine")));

}  // namespace
}  // namespace moegrad::models::causal_lm_training_test
