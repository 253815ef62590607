// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "nn/experts.h"
#include "ops/routing.h"

namespace moegrad::tools {

/// Multiplies rows [R, in], grouped by expert, by the weights of a projection, which
/// are [E, in, out] or, as in Hugging Face, [E, out, in]   -> [R, out]
using ExpertProduct =
    std::function<Tensor(const Tensor& rows, const Tensor& weight, const ops::RowGroups& groups)>;

/// One way to run the experts under fully_shard. All of them compute every element of every product
/// by the same chain (Note [Matmul order]), so their losses agree to the bit.
struct Rung {
  std::string name = {};
  nn::ExpertWeights weights = nn::ExpertWeights::kPretransposed;
  Layout gathered = Layout::kNZ;
  ExpertProduct product = {};  // in place of one grouped matmul
  bool linear_only_shard = false;
};

/// The ladder that the authors of the FRACTAL_NZ technique climbed. Each rung also has what the
/// rung before it has. One rung, in brackets, is added: the grouped matmul without a transpose of
/// its weights in memory. This library's grouped matmul transposes blocks of its operand while it
/// packs them; the rungs from slice_to_nz on do this, too.
std::vector<Rung> nz_ladder();

/// Two ways from the shards of pre-transposed weights to FRACTAL_NZ: in the copy-out, and by a
/// conversion after a copy-out to ND.
std::vector<Rung> ways_to_nz();

}  // namespace moegrad::tools
