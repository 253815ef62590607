// SPDX-License-Identifier: Apache-2.0
#include "models/causal_lm/from_pretrained.h"

#include "framework/tensor/meta.h"
#include "models/causal_lm/config_json.h"
#include "models/causal_lm/load_pretrained.h"

namespace moegrad::models {

std::unique_ptr<CausalLM> from_pretrained(const std::filesystem::path& folder) {
  const auto config = read_model_config((folder / "config.json").string());
  std::unique_ptr<CausalLM> model;
  {
    const MetaGuard no_bytes;  // the weights are read, not drawn
    model = std::make_unique<CausalLM>(config);
  }
  model->to_empty();
  load_pretrained(*model, folder);
  model->eval();
  return model;
}

}  // namespace moegrad::models
