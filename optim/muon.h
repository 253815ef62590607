// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "optim/matrix_optimizer.h"

namespace moegrad::optim {

/// Muon, as torch.optim.Muon but in the parameter's dtype: momentum, then five Newton-Schulz steps,
/// which bring all singular values of the update near 1 (orthogonalize). For a matrix p [out, in]
///
///     m = mu m + (1 - mu) g,    d = m   or, with Nesterov's momentum,   d = mu m + (1 - mu) g
///     p = p (1 - lr wd) - lr factor orthogonalize(d)
///
/// with one of the factors of MuonAdjust. Works on Hugging Face's matrices (Note [Matrix
/// optimizers]): each expert's gate, up and down apart. Other parameters (embeddings, output head,
/// router, and those of one dimension) belong to groups whose names are in Config::adamw_groups.
/// They are updated by AdamW's rule. All is one optimizer, with one state and one schedule.
///
/// State: `momentum_buffer` (m), or AdamW's in its groups.
///
/// Reference: Jordan et al., "Muon", 2024, https://kellerjordan.github.io/posts/muon; match-RMS:
/// Liu et al., 2025, https://arxiv.org/abs/2502.16982
class Muon final : public MatrixOptimizer {
 public:
  using Adjust = MuonAdjust;
  /// The settings of groups that AdamW updates.
  struct AdamWDefaults {
    double lr = 1e-3;
    double beta1 = 0.9;
    double beta2 = 0.999;
    double eps = 1e-8;
    double weight_decay = 0.01;
    bool amsgrad = false;
  };
  struct Config {
    double lr = 1e-3;
    double momentum = 0.95;
    bool nesterov = true;
    double eps = 1e-7;  // the smallest norm that an update is divided by
    double weight_decay = 0.1;
    Adjust adjust = Adjust::kOriginal;
    MatrixLayouts matrices = {};
    std::set<std::string> adamw_groups = {};
    AdamWDefaults adamw = {};
    /// As AdamW's options.
    RowBlocks skip_missing_grad = {};
    bool skip_nonfinite_grad = false;
  };

  /// One group with the configuration's settings.
  Muon(NamedTensors parameters, const Config& config);
  /// Each group has its own settings (lr, weight_decay, eps, momentum, nesterov, adjust; those of
  /// AdamW), or takes the configuration's. ShapeError for a parameter that is no matrix, unless
  /// AdamW updates it. ValueError unless each of adamw_groups names a group.
  Muon(std::vector<ParamGroup> groups, const Config& config);

 private:
  bool is_adamw(const ParamGroup& group) const { return adamw_groups_.contains(group.name); }
  void apply(Update& update) override;  // of AdamW's groups
  void apply_blocks(Update& whole, const Blocks& blocks) override;

  std::set<std::string> adamw_groups_;
};

}  // namespace moegrad::optim
