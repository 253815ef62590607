// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "optim/adam.h"

namespace moegrad::optim {

/// Adam with decoupled weight decay, as torch.optim.AdamW.
///
/// Reference: Loshchilov & Hutter, 2019, https://arxiv.org/abs/1711.05101; amsgrad: Reddi et al.,
/// 2018, https://arxiv.org/abs/1904.09237
class AdamW final : public AdamRule</*kDecoupled=*/true> {
 public:
  using AdamRule::AdamRule;
};

}  // namespace moegrad::optim
