// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "framework/runtime/random.h"
#include "framework/tensor/tensor.h"

namespace moegrad::ops {

/// y[t, c] = x[t, c] * u[t, c],  u uniform in [1 - noise, 1 + noise)
///
/// u is a function of (random, ids[t], c) and is not stored (Note [Dropout masks]).
///
/// x, y: [T, ...], c counts the elements of a row.   ids: int64 [T]; undefined: 0 to T - 1
///
/// ValueError unless noise is in [0, 1), and for a negative id. Reference: Fedus et al., "Switch
/// Transformers", 2021, https://arxiv.org/abs/2101.03961, section 2.2.
Tensor jitter(const Tensor& x, double noise, const Random& random, const Tensor& ids = {});

}  // namespace moegrad::ops
