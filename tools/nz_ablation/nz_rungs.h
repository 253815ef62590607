// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "nn/experts.h"

namespace moegrad::tools {

/// One way to run the experts under fully_shard. All ways compute every element of every product by
/// the same chain (Note [Matmul order]), so their losses agree to the bit.
struct Rung {
  std::string name = {};
  nn::ExpertWeights weights = nn::ExpertWeights::kPretransposed;
  Layout gathered = Layout::kNZ;
  nn::ExpertProduct product = {};  // in place of one grouped matmul
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

/// Makes all experts below `module` multiply as `rung` does.
void set_product(nn::Module& module, const Rung& rung);

}  // namespace moegrad::tools
