// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>

#include "fsdp/sharded_param.h"
#include "models/causal_lm/model.h"
#include "train/data/validation_data.h"

namespace moegrad::training {

/// Mean cross-entropy in nats per target over the held-out batches, spread over `ranks`. The model
/// is in eval() mode meanwhile. Collective: every rank runs as many forwards.
double evaluate(models::CausalLM& model, const ValidationData& data, const fsdp::GroupRanks& ranks);
/// The same, or nothing if `stop`, which is asked before each forward, is true, on all ranks alike.
std::optional<double> evaluate(models::CausalLM& model, const ValidationData& data,
                               const fsdp::GroupRanks& ranks, const std::function<bool()>& stop);

}  // namespace moegrad::training
