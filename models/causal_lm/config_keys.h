// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "framework/io/json_node.h"
#include "models/causal_lm/family.h"

namespace moegrad::models {

/// Whether a family's config.json has the key for a field.
bool has_key(const ModelFamily& family, std::string_view key);
bool has_experts(const ModelFamily& family);

/// Whether the key changes nothing here: it is kept as it is.
bool is_passed_over(const ModelFamily& family, const std::string& key);

/// ValueError for a key of a config.json that is neither read nor passed over, such as
/// scoring_func: it might change the model.
void refuse_unknown_keys(const JsonNode& keys, const ModelFamily& family);

}  // namespace moegrad::models
