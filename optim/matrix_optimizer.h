// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "framework/tensor/stacked_matrices.h"
#include "optim/optimizer.h"

namespace moegrad::optim {

/// The matrices that make up each parameter, by name; one that is not named is one matrix as it is.
using MatrixLayouts = std::map<std::string, StackedMatrices>;

/// Note [Matrix optimizers]
/// Some rules are about matrices, not about elements: Muon makes an update orthogonal, Adafactor
/// keeps means of rows and columns. They work on Hugging Face's matrices [out, in]: each expert's
/// gate, up and down apart, whatever the storage. MatrixLayouts describes the parameters that are
/// stored otherwise (models::stacked_matrices); without it, a stacked weight counts as one matrix.
/// Each matrix is brought into the order [out, in] before anything is computed, so experts that are
/// stored transposed get the same update.
///
/// Under fully_shard a parameter's gradient (or its momentum) is gathered, all ranks compute the
/// same update of whole matrices, and each keeps its part. So every number of ranks has the bits of
/// one rank. A step needs memory for some copies of the largest parameter, and is collective over
/// the ranks of each parameter, in the order of the groups.

/// Base of optimizers whose updates are those of whole matrices.
class MatrixOptimizer : public Optimizer {
 protected:
  /// `optimizer` begins messages. ValueError if `matrices` names something else than a parameter,
  /// or numbers that do not divide it, or if skip_missing_grad has another number of blocks than
  /// 1 or StackedMatrices::blocks. ShapeError unless the parameters named are matrices.
  MatrixOptimizer(std::string_view optimizer, std::vector<ParamGroup> groups,
                  MatrixLayouts matrices, const RowBlocks& skip_missing_grad,
                  bool skip_nonfinite_grad);

  /// The matrices that make up the parameter: as named, or one for each of its row blocks.
  StackedMatrices stacked(const std::string& name) const;
  /// The indices of those whose row block has a gradient.
  static std::vector<std::int64_t> with_gradient(const StackedMatrices& stacked,
                                                 const Blocks& blocks);
  /// The whole tensor on all ranks, from parts that are cut as `parameter` is. Collective.
  static Tensor gather(const Tensor& part, const Tensor& parameter);
  /// p = p (1 - lr wd) - delta in the row blocks that have a gradient. `delta` has the global
  /// shape.
  static void decay_and_subtract(Update& update, const Blocks& blocks, const Tensor& delta);

 private:
  MatrixLayouts matrices_;
};

}  // namespace moegrad::optim
