// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "framework/distributed/parallel_dims.h"
#include "tools/check_golden/golden_checks.h"
#include "tools/check_golden/golden_runs.h"

namespace moegrad::tools {

/// Note [Golden folders of a mixture]
/// `config.json` of a DeepSeek-V3 model and `block.safetensors`, in float64, with one of its
/// mixture blocks:
///
///     param.NAME, buffer.NAME   its weights, as transformers 5 names and stores them
///     x, cotangent, y           [1, T, H]: what it is given, dL/dy, and what it returns
///     grad.x, grad.NAME         dL/dx and the gradients of the weights
///
/// The other parts of such a model are not here, and their keys are not read.

/// Note [A router in float32]
/// The reference computes the router in float32, forward and backward, whatever the dtype of the
/// block. So its routing weights are float32 numbers, each only good to 2^-24, and so are its
/// gradient of the router and the router's share in that of x. All else is in float64.
///
/// The file says which weights these were: y less the shared expert's output is a combination of
/// the outputs of a token's K experts, and there are H > K equations for its K coefficients. They
/// are solved for and compared with this block's own. Then the block runs with them in place of its
/// own, so that rounding in the reference's router leaves y and all other gradients alone.

/// Largest difference of y, and of a gradient relative to its norm, where all is in float64.
inline constexpr double kGoldenBlock = 1e-10;
/// The same of what the reference computes in float32. This block differs from it by 1.1e-7 in a
/// routing weight, 7.1e-9 in the gradient of x and 1.6e-7 in that of the router.
inline constexpr double kGoldenRouter = 1e-6;

struct GoldenBlock {
  std::vector<GoldenCheck> checks;
  std::vector<std::string> missing;  // what the folder lacks
};

/// Computes the block along a path, in float64, and compares. Under kSharded its weights are
/// sharded and the tokens divided over the ranks. ValueError for a configuration that is no such
/// block, and for a tensor that it does not have; ShapeError and DtypeError for others of another
/// shape or type.
GoldenBlock check_golden_block(const std::filesystem::path& folder, GoldenPath path,
                               const ParallelDims& ranks);

}  // namespace moegrad::tools
