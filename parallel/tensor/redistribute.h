// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "framework/distributed/process_group.h"
#include "nn/module_extension.h"
#include "parallel/tensor/styles.h"

namespace moegrad::parallel {

/// `x` in another layout, on the tape (Note [One objective on all ranks]).
Tensor redistribute(const std::shared_ptr<ProcessGroup>& group, const Tensor& x,
                    const TensorLayout& from, const TensorLayout& to);

/// Gives the tensors that go into a module, and those that come out, other layouts.
class Redistribute final : public nn::ModuleExtension {
 public:
  struct Layouts {
    std::vector<TensorLayout> from, to;  // as many
  };
  Redistribute(std::shared_ptr<ProcessGroup> group, std::string path, Layouts inputs,
               Layouts outputs);

  /// ValueError if there are fewer tensors than layouts.
  TensorList around_forward(nn::ForwardCall& call, const TensorList& inputs) override;

 private:
  TensorList in_layouts(const char* what, TensorList tensors, const Layouts& layouts) const;

  std::shared_ptr<ProcessGroup> group_;
  std::string path_;
  Layouts inputs_, outputs_;
};

}  // namespace moegrad::parallel
