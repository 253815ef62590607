// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/attention.h"

namespace moegrad::ops {

/// Throws what attention throws for options that do not fit q [T, Nq, D].
void check_attention_options(const Tensor& q, const AttentionOptions& options);

/// attention() with any options, made of other ops: scores, mask, softmax, dropout and values, one
/// document after the other. The operands have been checked.
Tensor attention_by_steps(const Tensor& q, const Tensor& k, const Tensor& v,
                          const Documents& documents, double scale,
                          const AttentionOptions& options);

}  // namespace moegrad::ops
