// SPDX-License-Identifier: Apache-2.0
// A model as transformers 5 saves it: rope_parameters in config.json, one tensor per expert in the
// weights, experts fused as [E, out, in] in the gradients. Its float64 run rounds to float32 inside
// (norms, softmax, router, rotary tables), and so agrees to float32's precision alone.
#include <cstdint>
#include <string>
#include <vector>

#include "framework/io/safetensors.h"
#include "models/causal_lm/config_json.h"
#include "models/causal_lm/load_pretrained.h"
#include "models/causal_lm/loss.h"
#include "models/causal_lm/model.h"
#include "ops/cross_entropy.h"
#include "ops/views.h"
#include "tests/models/causal_lm/find_tensor.h"
#include "tests/models/causal_lm/golden_data.h"
#include "tests/models/causal_lm/toy_models.h"
#include "tests/testing.h"

namespace moegrad::models::causal_lm_v5_golden_test {
namespace {

using test::find;

class ModelOfTransformers5 : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Golden, ModelOfTransformers5,
                         ::testing::Values("qwen3_moe_v5", "qwen2_moe", "mixtral", "glm4_moe"));

TEST_P(ModelOfTransformers5, LogitsLossAndGradients) {
  const auto folder = test::golden_folder() / "v5" / GetParam();
  const auto expected = load_safetensors(folder / "expected.safetensors");
  auto config = test::hugging_face_oriented(read_model_config(folder / "config.json"));
  config.dtype = Dtype::kFloat64;
  CausalLM model(config);
  load_pretrained(model, folder);

  const Tensor& ids = find(expected, "input_ids");
  test::GoldenRow row;
  for (std::int64_t b = 0; b < ids.dim(0); ++b) {
    const Tensor line = ops::narrow(ids, 0, b, 1);
    const auto tokens = line.data<std::int64_t>();
    const std::vector<std::int64_t> sequence(tokens.begin(), tokens.end());
    row.append(sequence, sequence);
  }
  const auto output = model(test::index_vector(row.tokens), row.documents());
  const Tensor targets = test::index_vector(row.targets);
  // Its configuration does not ask for the router's logits, and so not for a balance loss.
  const auto loss = causal_lm_loss(output, targets, ops::count_targets(targets), 0.0);
  loss.objective.backward();

  constexpr double kLimit = 1e-6;
  const Tensor logits =
      ops::reshape(find(expected, "logits_f64"), {std::ssize(row.tokens), config.vocab_size});
  EXPECT_TRUE(test::all_close(output.logits, logits, 0.0, kLimit));
  EXPECT_NEAR(loss.objective.item(), find(expected, "loss_f64").item(), kLimit);
  for (const auto& slot : model.parameter_slots()) {
    const Tensor gradient = find(expected, "grad_f64." + slot.name);
    EXPECT_TRUE(test::all_close(slot.tensor->grad(), ops::reshape(gradient, slot.tensor->shape()),
                                0.0, kLimit))
        << slot.name;
  }
}

}  // namespace
}  // namespace moegrad::models::causal_lm_v5_golden_test
