// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "framework/distributed/process_group.h"
#include "nn/module.h"

namespace moegrad::parallel {

/// For a module that computes on each rank of a group with the same parameters and other tensors:
/// while it runs, what stands in the `slots` passes gradients on as their sum over the ranks
/// (ops::copy_to_ranks).
class PartialParameters final : public nn::ModuleExtension {
 public:
  /// Along which dimension the ranks divide what the module sees (SequenceParallel), or that they
  /// have copies of one part of a weight.
  using Divided = std::optional<std::int64_t>;

  /// The slots are those of the module that it is attached to.
  PartialParameters(std::shared_ptr<ProcessGroup> group, std::vector<Tensor*> slots,
                    Divided divided);

  Divided divided() const { return divided_; }

  TensorList around_forward(nn::ForwardCall& call, const TensorList& inputs) override;

 private:
  std::shared_ptr<ProcessGroup> group_;
  std::vector<Tensor*> slots_;
  Divided divided_;
};

}  // namespace moegrad::parallel
