// SPDX-License-Identifier: Apache-2.0
#include "optim/row_blocks.h"

#include <algorithm>

#include "framework/distributed/collectives.h"
#include "framework/distributed/shard_runs.h"
#include "framework/runtime/error.h"

namespace moegrad::optim {
namespace {

std::int64_t global_rows(const Tensor& parameter) { return global_shape(parameter)[0]; }

/// True unless all are zero; a NaN is not zero.
bool has_nonzero(const Tensor& values) {
  return dispatch_floating(values.dtype(), [&]<class T>() {
    return std::ranges::any_of(values.data<T>(), [](T value) { return value != T{0}; });
  });
}

}  // namespace

Tensor row_block(const Tensor& tensor, const Tensor& like, std::int64_t blocks,
                 std::int64_t block) {
  if (blocks == 1) return tensor;  // whatever its shape
  check<LayoutError>(tensor.is_contiguous(),
                     "optimizer: a tensor with row blocks must be contiguous, got shape ",
                     tensor.shape(), " with strides ", tensor.strides());
  const auto first = shard_box(like).begin[0];
  const auto rows = tensor.dim(0), rows_per_block = global_rows(like) / blocks;
  const auto row_size = rows == 0 ? 0 : tensor.numel() / rows;  // of this rank's part of a row
  const auto begin = std::clamp<std::int64_t>(block * rows_per_block - first, 0, rows);
  const auto end = std::clamp<std::int64_t>((block + 1) * rows_per_block - first, 0, rows);
  return Tensor::as_strided(tensor, {(end - begin) * row_size}, {1},
                            tensor.offset() + begin * row_size);
}

MissingGradients::MissingGradients(const NamedTensors& parameters, const RowBlocks& row_blocks) {
  for (const auto& [name, parameter] : parameters) {
    const auto named = row_blocks.find(name);
    if (named == row_blocks.end()) continue;
    const auto rows = global_rows(parameter), blocks = named->second;
    check<ValueError>(blocks >= 1 && rows % blocks == 0, "optimizer: the number of row blocks of '",
                      name, "' must divide its ", rows, " rows, got ", blocks);
    marks_.emplace(name, Flags(static_cast<std::size_t>(blocks)));
    parameters_.push_back({name, parameter});
  }
  for (const auto& [name, blocks] : row_blocks) {
    check<ValueError>(marks_.contains(name),
                      "optimizer: skip_missing_grad must name parameters, got '", name, "'");
  }
  mesh_groups_ = mesh_groups(parameters_);
}

std::int64_t MissingGradients::num_blocks(const std::string& name) const {
  const auto found = marks_.find(name);
  return found == marks_.end() ? 1 : std::ssize(found->second);
}

void MissingGradients::mark_used(const std::string& name, std::span<const std::int64_t> uses) {
  const auto found = marks_.find(name);
  check<ValueError>(found != marks_.end(), "mark_used: skip_missing_grad must name '", name, "'");
  auto& marks = found->second;
  check<ValueError>(uses.size() == marks.size(), "mark_used: '", name, "' has ", marks.size(),
                    " row blocks, got ", uses.size());
  for (std::size_t block = 0; block < uses.size(); ++block) {
    if (uses[block] > 0) marks[block] = 1;
  }
}

void MissingGradients::look() {
  found_ = marks_;
  for (auto& [name, marks] : marks_) std::ranges::fill(marks, 0);
  for (const auto& [name, parameter] : parameters_) {
    const Tensor grad = parameter.grad();
    if (!grad.defined()) continue;
    auto& flags = found_.at(name);
    for (std::int64_t block = 0; block < std::ssize(flags); ++block) {
      auto& flag = flags[static_cast<std::size_t>(block)];
      if (flag == 0) flag = has_nonzero(row_block(grad, parameter, std::ssize(flags), block));
    }
  }
  if (mesh_groups_.empty()) return;
  Flags all;
  for (const auto& [name, flags] : found_) all.insert(all.end(), flags.begin(), flags.end());
  for (const auto& group : mesh_groups_) {
    all_reduce(*group, std::span(all), ReduceOp::kMax, {.label = "skip_missing_grad"});
  }
  auto next = all.begin();
  for (auto& [name, flags] : found_) {
    for (auto& flag : flags) flag = *next++;
  }
}

bool MissingGradients::has_gradient(const std::string& name, std::int64_t block) const {
  const auto found = found_.find(name);
  return found == found_.end() || found->second[static_cast<std::size_t>(block)] != 0;
}

}  // namespace moegrad::optim
