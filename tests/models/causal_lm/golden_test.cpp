// SPDX-License-Identifier: Apache-2.0
// Compares with what the unmodified Hugging Face source gives in float64.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "framework/io/safetensors.h"
#include "models/causal_lm/config_json.h"
#include "models/causal_lm/loss.h"
#include "models/causal_lm/model.h"
#include "models/causal_lm/plain.h"
#include "ops/cross_entropy.h"
#include "ops/views.h"
#include "tests/models/causal_lm/expert_layouts.h"
#include "tests/models/causal_lm/find_tensor.h"
#include "tests/models/causal_lm/golden_data.h"
#include "tests/models/causal_lm/toy_models.h"
#include "tests/testing.h"

namespace moegrad::models::causal_lm_golden_test {
namespace {

using namespace test;

GoldenRow packed_row(const nlohmann::json& packed) {
  GoldenRow row;
  row.append(packed["input_ids"], packed["labels"]);
  row.lengths = packed["seq_lens"].get<std::vector<std::int64_t>>();
  return row;
}

double relative_l2(const Tensor& value, const Tensor& expected) {
  const Tensor a = to_dtype(value.detach(), Dtype::kFloat64);
  const Tensor b = to_dtype(expected, Dtype::kFloat64);
  const auto x = a.data<double>(), y = b.data<double>();
  double difference = 0.0, norm = 0.0;
  for (std::size_t i = 0; i < y.size(); ++i) {
    difference += (x[i] - y[i]) * (x[i] - y[i]);
    norm += y[i] * y[i];
  }
  return norm == 0.0 ? std::sqrt(difference) : std::sqrt(difference / norm);
}

class GoldenData : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    folder_ = test::golden_folder() / GetParam();
    input_ = test::read_json(folder_ / "input.json");
    weights_ = load_safetensors(folder_ / "model.safetensors");
  }

  CausalLMConfig config(nn::ExpertWeights weights) const {
    auto config = read_model_config(folder_ / "config.json");
    config.dtype = Dtype::kFloat64;
    return weights == nn::ExpertWeights::kPretransposed ? config
                                                        : test::hugging_face_oriented(config);
  }

  void compare(const GoldenRow& row, const std::string& file, double grad_tolerance) const {
    const auto expected = load_safetensors(folder_ / file);
    for (const bool plain : {false, true}) {
      const auto weights =
          plain ? nn::ExpertWeights::kHuggingFace : nn::ExpertWeights::kPretransposed;
      SCOPED_TRACE(plain ? "plain" : "optimised");
      CausalLM model(config(weights));
      model.load_state_dict(test::state_from_hugging_face(weights_, model));
      compare(model, plain, row, expected, grad_tolerance);
    }
  }

 private:
  static void compare(CausalLM& model, bool plain, const GoldenRow& row,
                      const NamedTensors& expected, double grad_tolerance) {
    const auto& config = model.config();
    const Tensor tokens = index_vector(row.tokens), targets = index_vector(row.targets);
    const auto output =
        plain ? plain_causal_lm(config, model.named_parameters(), tokens, row.documents())
              : model(tokens, row.documents());
    const auto valid = ops::count_targets(targets);
    const auto loss =
        plain ? plain_causal_lm_loss(output, targets, valid, config.router_aux_loss_coef)
              : causal_lm_loss(output, targets, valid, config.router_aux_loss_coef);
    loss.objective.backward();

    const Tensor logits =
        ops::reshape(find(expected, "logits_f64"), {std::ssize(row.tokens), config.vocab_size});
    EXPECT_TRUE(test::all_close(output.logits, logits, 0.0, 1e-11));
    std::size_t mixture = 0;
    for (std::int64_t i = 0; i < config.num_hidden_layers; ++i) {
      if (!config.is_moe_layer(i)) continue;
      EXPECT_TRUE(test::all_close(output.router_logits[mixture++],
                                  find(expected, "router_logits_f64." + std::to_string(i)), 0.0,
                                  1e-11));
    }
    EXPECT_NEAR(loss.objective.item(), find(expected, "loss_f64").item(), 1e-12);
    EXPECT_NEAR(loss.ce_sum.item() / static_cast<double>(valid),
                find(expected, "loss_ce_f64").item(), 1e-12);
    EXPECT_NEAR(loss.aux.item(), find(expected, "aux_loss_f64").item(), 1e-12);

    for (const auto& slot : model.parameter_slots()) {
      if (config.tie_word_embeddings && slot.name == "lm_head.weight") continue;
      EXPECT_LE(relative_l2(slot.tensor->grad(), test::from_hugging_face(expected, slot, "grad.")),
                grad_tolerance)
          << slot.name;
    }
  }

 protected:
  nlohmann::json input_;

 private:
  std::filesystem::path folder_;
  NamedTensors weights_;
};

TEST_P(GoldenData, BatchAgreesWithHuggingFace) {
  compare(test::pack_batch(input_["input_ids"], input_["labels"]), "expected.safetensors", 1e-10);
}

TEST_P(GoldenData, PackedSequencesAgreeWithHuggingFace) {
  constexpr double kStoredAsFloat32 = 1e-7;
  compare(packed_row(input_["packed"]), "expected_packed.safetensors", kStoredAsFloat32);
}

INSTANTIATE_TEST_SUITE_P(HuggingFace, GoldenData,
                         ::testing::Values("a_minimal", "b_tied_dense_nonorm",
                                           "c_mlponly_odd_ignore"));

}  // namespace
}  // namespace moegrad::models::causal_lm_golden_test
