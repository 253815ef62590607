// SPDX-License-Identifier: Apache-2.0
#include "optim/optimizer.h"

#include <set>
#include <utility>

#include "framework/runtime/error.h"
#include "framework/tensor/tensor_impl.h"

namespace moegrad::optim {

Optimizer::Optimizer(std::vector<ParamGroup> groups) : groups_(std::move(groups)) {
  std::set<const TensorImpl*> seen;
  for (const auto& group : groups_) {
    check<ValueError>(group.lr >= 0.0, "optimizer: lr must be >= 0, got ", group.lr);
    check<ValueError>(group.weight_decay >= 0.0, "optimizer: weight_decay must be >= 0, got ",
                      group.weight_decay);
    for (const auto& [name, parameter] : group.parameters) {
      check<ValueError>(seen.insert(parameter.impl().get()).second, "optimizer: parameter '", name,
                        "' is given twice");
    }
  }
}

void Optimizer::zero_grad() {
  for (const auto& group : groups_) {
    for (const auto& [name, parameter] : group.parameters) parameter.set_grad(Tensor());
  }
}

void Optimizer::set_lr(double lr) {
  check<ValueError>(lr >= 0.0, "optimizer: lr must be >= 0, got ", lr);
  for (auto& group : groups_) group.lr = lr;
}

}  // namespace moegrad::optim
