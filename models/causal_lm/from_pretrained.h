// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <memory>

#include "models/causal_lm/model.h"

namespace moegrad::models {

/// The model that a folder of Hugging Face holds, config.json with its weights: of any model_type
/// that read_model_config() takes, in the dtype that it gives. As in Hugging Face it is in eval()
/// mode; call train() to go on training.
///
///     const auto model = models::from_pretrained("checkpoints/mixtral");
///     const auto output = (*model)(tokens);
///
/// Each caller gets all of the model. To load a sharded one, of which no rank ever holds the whole,
/// make it by its configuration under a MetaGuard, shard it, and call to_empty() and
/// load_pretrained(). Throws what read_model_config() and load_pretrained() throw.
std::unique_ptr<CausalLM> from_pretrained(const std::filesystem::path& folder);

}  // namespace moegrad::models
