// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/attention.h"

namespace moegrad::test {

/// ops::attention made of other ops: scores, mask, softmax, dropout and values of whole rows, one
/// document after the other, with weights [Nq, L, L] for a document of L tokens.
Tensor attention_by_steps(const Tensor& q, const Tensor& k, const Tensor& v,
                          const Documents& documents, double scale,
                          const ops::AttentionOptions& options);

}  // namespace moegrad::test
