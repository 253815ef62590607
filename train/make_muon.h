// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "nn/module.h"
#include "optim/muon.h"

namespace moegrad::training {

/// Muon for the matrices of a model that has Hugging Face's names, and its AdamW for the groups
/// named embedding, head, router and vectors (models::matrix_parameters). Vectors have no weight
/// decay. `config` gives all else; its matrices and adamw_groups are filled in. Make it after
/// fully_shard.
std::unique_ptr<optim::Muon> make_muon(const nn::Module& model, optim::Muon::Config config);

}  // namespace moegrad::training
