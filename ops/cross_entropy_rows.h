// SPDX-License-Identifier: Apache-2.0
#pragma once

// What cross_entropy and linear_cross_entropy have in common, without the tape.

#include <cstdint>
#include <memory>
#include <string_view>

#include "framework/distributed/process_group.h"
#include "framework/tensor/tensor.h"
#include "ops/cross_entropy.h"
#include "ops/kernels/cross_entropy.h"

namespace moegrad::ops {

/// The options as the Functions keep them, but for the weights.
struct CrossEntropyTerms {
  std::int64_t ignore_index = 0;
  double denominator = 1;
  double label_smoothing = 0;
  double z_loss_coef = 0;
  std::shared_ptr<ProcessGroup> group;  // of a divided vocabulary
  std::int64_t classes = 0;             // on this rank

  /// Where the classes of this rank begin.
  std::int64_t first_class() const { return group == nullptr ? 0 : group->rank() * classes; }

  /// `weights` [n], or undefined, are those of the rows from `begin` on.
  template <class T>
  kernels::TokenLoss<T> of_tokens(const Tensor& weights, std::int64_t begin) const {
    const int ranks = group == nullptr ? 1 : group->size();
    return {.of_target = static_cast<T>(1 - label_smoothing),
            .of_class = static_cast<T>(label_smoothing / static_cast<double>(ranks * classes)),
            .z_coef = static_cast<T>(z_loss_coef),
            .weights = weights.defined() ? weights.data<T>().data() + begin : nullptr};
  }
};

/// The terms for logits of this rank's `classes`, in `dtype`. Checks the contiguous targets
/// [tokens] and the options; errors begin with `op`.
CrossEntropyTerms cross_entropy_terms(std::string_view op, const Tensor& targets,
                                      std::int64_t tokens, std::int64_t classes, Dtype dtype,
                                      const CrossEntropyOptions& options);

/// options.token_weights as an operand of apply(): detached and contiguous, or undefined.
Tensor constant_weights(const CrossEntropyOptions& options);

/// loss[t] and lse[t] of the rows of `logits` [n, v] (kernels::cross_entropy). With a group they
/// are of the logits of all ranks, and the call waits for them.
template <class T>
void cross_entropy_rows(const Tensor& logits, const std::int64_t* targets,
                        const CrossEntropyTerms& terms, const kernels::TokenLoss<T>& kind, T* loss,
                        T* lse);

}  // namespace moegrad::ops
