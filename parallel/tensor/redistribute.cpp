// SPDX-License-Identifier: Apache-2.0
#include "parallel/tensor/redistribute.h"

#include <cstddef>
#include <utility>

#include "framework/runtime/error.h"
#include "ops/tensor_parallel.h"

namespace moegrad::parallel {

Tensor redistribute(const std::shared_ptr<ProcessGroup>& group, const Tensor& x,
                    const TensorLayout& from, const TensorLayout& to) {
  if (from == to) return x;
  const Tensor whole = from.dim ? ops::gather_from_ranks(group, x, *from.dim) : x;
  return to.dim ? ops::scatter_to_ranks(group, whole, *to.dim) : whole;
}

Redistribute::Redistribute(std::shared_ptr<ProcessGroup> group, std::string path, Layouts inputs,
                           Layouts outputs)
    : group_(std::move(group)),
      path_(std::move(path)),
      inputs_(std::move(inputs)),
      outputs_(std::move(outputs)) {}

TensorList Redistribute::around_forward(nn::ForwardCall& call, const TensorList& inputs) {
  return in_layouts("results", call.run(in_layouts("arguments", inputs, inputs_)), outputs_);
}

TensorList Redistribute::in_layouts(const char* what, TensorList tensors,
                                    const Layouts& layouts) const {
  check<ValueError>(layouts.from.size() <= tensors.size(),
                    "parallelize_module: the plan has layouts of ", layouts.from.size(), " ", what,
                    " of '", path_, "', got ", tensors.size());
  for (std::size_t i = 0; i < layouts.from.size(); ++i) {
    tensors[i] = redistribute(group_, tensors[i], layouts.from[i], layouts.to[i]);
  }
  return tensors;
}

}  // namespace moegrad::parallel
