// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "fsdp/sharded_param.h"
#include "models/causal_lm/model.h"
#include "train/data/validation_data.h"

namespace moegrad::training {

/// Mean cross-entropy in nats per target over the held-out batches, spread over `ranks`. The model
/// is in eval() mode meanwhile. Collective: every rank runs as many forwards. Calls `before_batch`
/// before each; it may throw, on all ranks alike.
double evaluate(
    models::CausalLM& model, const ValidationData& data, const fsdp::GroupRanks& ranks,
    const std::function<void()>& before_batch = [] {});

}  // namespace moegrad::training
