// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "framework/tensor/named_tensor.h"

namespace moegrad::optim {

/// Parameters that share a learning rate and a weight decay.
struct ParamGroup {
  NamedTensors parameters;
  double lr = 0.0;
  double weight_decay = 0.0;
};

/// Base of optimizers. step() modifies parameters in place, element by element, so that a shard is
/// updated as it would be within the whole; parameters without a gradient are left alone. Make the
/// optimizer after fully_shard, which replaces parameters by their shards.
class Optimizer {
 public:
  /// ValueError for a parameter given twice, or a negative lr or weight decay.
  explicit Optimizer(std::vector<ParamGroup> groups);
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  virtual void step() = 0;
  /// Drops the gradients of all parameters.
  void zero_grad();
  /// Sets the learning rate of all groups.
  void set_lr(double lr);

  const std::vector<ParamGroup>& groups() const { return groups_; }

 private:
  std::vector<ParamGroup> groups_;
};

}  // namespace moegrad::optim
