// SPDX-License-Identifier: Apache-2.0
#include "train/make_muon.h"

#include <string>
#include <utility>
#include <vector>

#include "models/matrix_parameters.h"

namespace moegrad::training {

std::unique_ptr<optim::Muon> make_muon(const nn::Module& model, optim::Muon::Config config) {
  const auto parameters = models::matrix_parameters(model);
  config.matrices = parameters.stacked;
  config.adamw_groups.clear();
  std::vector<optim::ParamGroup> groups;
  if (!parameters.matrices.empty()) {
    groups.push_back({.parameters = parameters.matrices, .name = "matrices"});
  }
  const auto add = [&](const std::string& name, const NamedTensors& tensors) {
    if (tensors.empty()) return;
    groups.push_back({.parameters = tensors, .name = name});
    config.adamw_groups.insert(name);
  };
  add("embedding", parameters.embedding);
  add("head", parameters.head);
  add("router", parameters.router);
  add("vectors", parameters.vectors);
  if (!parameters.vectors.empty()) groups.back().weight_decay = 0.0;
  return std::make_unique<optim::Muon>(std::move(groups), config);
}

}  // namespace moegrad::training
