// SPDX-License-Identifier: Apache-2.0
#include "optim/matrix_optimizer.h"

#include <set>
#include <span>
#include <utility>

#include "framework/distributed/gather_shards.h"
#include "framework/distributed/shard_runs.h"
#include "framework/runtime/error.h"
#include "framework/runtime/parallel_for.h"
#include "framework/tensor/fill.h"
#include "optim/grain.h"

namespace moegrad::optim {
namespace {

void check_divides(std::string_view optimizer, const std::string& name,
                   const StackedMatrices& stacked, const Shape& shape) {
  check<ShapeError>(shape.ndim() == 2, optimizer, ": '", name, "' must be a matrix, got ", shape);
  check<ValueError>(stacked.blocks >= 1 && shape[0] % stacked.blocks == 0, optimizer,
                    ": the blocks of '", name, "' must divide its ", shape[0], " rows, got ",
                    stacked.blocks);
  const auto out = stacked.transposed ? shape[1] : shape[0] / stacked.blocks;
  check<ValueError>(stacked.parts >= 1 && out % stacked.parts == 0, optimizer, ": the parts of '",
                    name, "' must divide its ", out, " out-features, got ", stacked.parts);
}

template <class T>
void decay_and_subtract_elements(std::span<T> p, std::span<const T> d, T decay) {
  parallel_for(static_cast<std::int64_t>(p.size()), kGrain,
               [&](std::int64_t begin, std::int64_t end) {
                 T* const __restrict parameter = p.data();
                 const T* const __restrict delta = d.data();
                 for (auto i = begin; i < end; ++i) parameter[i] = parameter[i] * decay - delta[i];
               });
}

}  // namespace

MatrixOptimizer::MatrixOptimizer(std::string_view optimizer, std::vector<ParamGroup> groups,
                                 MatrixLayouts matrices, const RowBlocks& skip_missing_grad,
                                 bool skip_nonfinite_grad)
    : Optimizer(std::move(groups), skip_missing_grad, skip_nonfinite_grad),
      matrices_(std::move(matrices)) {
  std::set<std::string> found;
  for (const auto& group : this->groups()) {
    for (const auto& [name, parameter] : group.parameters) {
      const auto named = matrices_.find(name);
      if (named == matrices_.end()) continue;
      found.insert(name);
      check_divides(optimizer, name, named->second, global_shape(parameter));
      const auto blocks = num_blocks(name);
      check<ValueError>(blocks == 1 || blocks == named->second.blocks, optimizer,
                        ": skip_missing_grad must have ", named->second.blocks, " row blocks of '",
                        name, "', one per block of its matrices, got ", blocks);
    }
  }
  for (const auto& [name, stacked] : matrices_) {
    check<ValueError>(found.contains(name), optimizer, ": matrices must name parameters, got '",
                      name, "'");
  }
}

StackedMatrices MatrixOptimizer::stacked(const std::string& name) const {
  const auto named = matrices_.find(name);
  return named != matrices_.end() ? named->second : StackedMatrices{.blocks = num_blocks(name)};
}

std::vector<std::int64_t> MatrixOptimizer::with_gradient(const StackedMatrices& stacked,
                                                         const Blocks& blocks) {
  const auto per_block = stacked.count() / blocks.count;
  std::vector<std::int64_t> indices;
  for (const auto block : blocks.with_gradient) {
    for (std::int64_t i = 0; i < per_block; ++i) indices.push_back(block * per_block + i);
  }
  return indices;
}

Tensor MatrixOptimizer::gather(const Tensor& part, const Tensor& parameter) {
  const auto& spec = parameter.shard_spec();
  return spec != nullptr ? all_gather_shards(part, *spec) : part.detach();
}

void MatrixOptimizer::decay_and_subtract(Update& update, const Blocks& blocks,
                                         const Tensor& delta) {
  auto& parameter = update.parameter;
  const Tensor own = clone(box_view(delta, shard_box(parameter)));
  for (const auto block : blocks.with_gradient) {
    Tensor to = row_block(parameter, parameter, blocks.count, block);
    const Tensor from = row_block(own, parameter, blocks.count, block);
    dispatch_floating(parameter.dtype(), [&]<class T>() {
      decay_and_subtract_elements<T>(
          to.mutable_data<T>(), from.data<T>(),
          static_cast<T>(1.0 - *update.group.lr * *update.group.weight_decay));
    });
  }
}

}  // namespace moegrad::optim
