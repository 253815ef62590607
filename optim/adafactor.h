// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "optim/matrix_optimizer.h"

namespace moegrad::optim {

/// Adafactor without momentum, as torch.optim.Adafactor. For step t = 1, 2, ... of a matrix w
///
///     b = t^beta2_decay,    rho = min(lr, t^-1/2),    alpha = max(min_rms, rms(w)) rho
///     w = w (1 - lr wd)
///     row = row + b (mean of g^2 over each row - row),    col likewise over each column
///     V = row col / max(mean(row), eps),    u = g / sqrt(max(V, eps^2))
///     w = w - alpha u / max(1, rms(u) / clip_threshold)
///
/// A parameter of one dimension keeps V = V + b (g^2 - V) instead of means. One of more than two is
/// a batch of matrices, with one rms(w) and one rms(u). Works on Hugging Face's matrices if
/// `matrices` says which they are, as models::stacked_matrices(model) does (Note [Matrix
/// optimizers]). Sums are float64.
///
/// State, the same on all ranks: `step`; `row_var` [..., out, 1] and `col_var` [..., 1, in], or
/// `variance`. Of a parameter that consists of n matrices, row_var is [n * out, 1] and col_var
/// [n, in].
///
/// Reference: Shazeer & Stern, 2018, https://arxiv.org/abs/1804.04235
class Adafactor final : public MatrixOptimizer {
 public:
  struct Config {
    double lr = 1e-2;
    double beta2_decay = -0.8;
    double eps = 0.0;  // 0: the machine epsilon of the parameter's dtype
    double min_rms = 1e-3;
    double clip_threshold = 1.0;
    double weight_decay = 0.0;
    MatrixLayouts matrices = {};
    /// As AdamW's options.
    RowBlocks skip_missing_grad = {};
    bool skip_nonfinite_grad = false;
  };

  /// One group with the configuration's settings.
  Adafactor(NamedTensors parameters, const Config& config);
  /// Each group has its own settings (lr, weight_decay, eps, beta2_decay, min_rms, clip_threshold),
  /// or takes the configuration's.
  Adafactor(std::vector<ParamGroup> groups, const Config& config);

 private:
  void apply_blocks(Update& whole, const Blocks& blocks) override;
};

}  // namespace moegrad::optim
