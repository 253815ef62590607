// SPDX-License-Identifier: Apache-2.0
// A model as transformers 5 saves it: rope_parameters in config.json, one tensor per expert in the
// weights, experts fused as [E, out, in] in the gradients. Its float64 run rounds to float32 inside
// (norms, softmax, router, rotary tables), and so agrees to float32's precision alone.
#include <cstdint>
#include <string>
#include <vector>

#include "framework/io/safetensors.h"
#include "models/qwen3_moe/config_json.h"
#include "models/qwen3_moe/load_pretrained.h"
#include "models/qwen3_moe/loss.h"
#include "models/qwen3_moe/model.h"
#include "ops/cross_entropy.h"
#include "ops/views.h"
#include "tests/models/qwen3_moe/find_tensor.h"
#include "tests/models/qwen3_moe/golden_data.h"
#include "tests/models/qwen3_moe/toy_models.h"
#include "tests/testing.h"

namespace moegrad::models::qwen3_moe_v5_golden_test {
namespace {

using test::find;

TEST(Qwen3MoeOfTransformers5, LogitsLossAndGradients) {
  const auto folder = test::golden_folder() / "v5" / "qwen3_moe_v5";
  const auto expected = load_safetensors(folder / "expected.safetensors");
  auto config = test::hugging_face_oriented(read_qwen3_moe_config(folder / "config.json"));
  config.dtype = Dtype::kFloat64;
  Qwen3Moe model(config);
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
  const auto loss = qwen3_moe_loss(output, targets, ops::count_targets(targets), 0.0);
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
}  // namespace moegrad::models::qwen3_moe_v5_golden_test
