// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

namespace moegrad::training {

/// Which layers the load-balancing loss looks at together.
enum class BalancedLayers : std::uint8_t {
  kPooled,  // all, as in Hugging Face: a layer may do without an expert that another one prefers
  kEach,    // each on its own; the loss is their mean
};

/// The tokens that the load-balancing loss counts.
enum class BalancedTokens : std::uint8_t {
  kMicroBatch,  // those of the micro-batch
  kRanks,       // those of all micro-batches that the ranks run at the same time
};

/// The rate of the paper that introduced the correction bias, below.
inline constexpr double kBiasUpdateRate = 1e-3;

/// What keeps the loads of experts alike.
///
/// With kRanks the loss asks less of a micro-batch, whose tokens may be of one kind, but it depends
/// on the number of ranks: the same run on other numbers of ranks has other losses.
///
/// Reference: Qiu et al., "Demons in the Detail", 2025, https://arxiv.org/abs/2501.11873, of tokens
/// of several ranks; Wang et al., 2024, https://arxiv.org/abs/2408.15664, of the correction bias.
struct Balance {
  std::optional<double> aux_loss_coef = {};  // the model configuration's own unless set
  BalancedLayers layers = BalancedLayers::kEach;
  BalancedTokens tokens = BalancedTokens::kMicroBatch;
  double z_loss_coef = 0;  // of ops::z_loss, once per layer
  /// For Router::balance(), once per optimizer step from the loads of the whole step. Unless set:
  /// kBiasUpdateRate for a model whose routers have a correction bias, 0 for others.
  std::optional<double> bias_update_rate = {};

  bool operator==(const Balance&) const = default;
};

}  // namespace moegrad::training
