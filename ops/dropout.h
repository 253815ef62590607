// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "framework/runtime/random.h"
#include "framework/tensor/tensor.h"

namespace moegrad::ops {

// Elements are kept with probability 1 - p, and then divided by it, or become 0:
//
//     y = keep x / (1 - p)
//
// p is in [0, 1), and ids are not negative (ValueError). The masks are functions of what is given
// here, and are not stored (Note [Dropout masks]).

/// keep[t, c] is a function of (random, ids[t], c).      x, y: [T, ...], c counts the elements of a
/// row     ids: int64 [T]; undefined: 0, 1, ...
///
/// Reference: Srivastava et al., "Dropout", 2014
Tensor dropout(const Tensor& x, double p, const Random& random, const Tensor& ids = {});

/// keep[h, q, k] is a function of (seed, purpose, h, ids[q], ids[k]).
///
/// weights, y: [N, T, T], attention of each head's queries to keys    ids: int64 [T], below 2^32;
/// undefined: 0, 1, ...
Tensor attention_dropout(const Tensor& weights, double p, std::uint64_t seed,
                         const std::string& purpose, const Tensor& ids = {});

}  // namespace moegrad::ops
