// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <utility>

#include "nn/module.h"

namespace moegrad::nn {

/// Makes `copy`, a module that was made as `module` was, its deep copy, as copy.deepcopy in Python:
/// the values of all parameters and buffers, those that are not persistent included, their dtypes,
/// requires_grad, whether each module is_training(), and its compute_dtype(). The copy has no
/// gradients, and keeps hooks and extensions of its own: those of `module` are not copied, nor are
/// members that a module has not registered. Tensors that are tied in one must be tied in the
/// other.
///
/// ValueError, and nothing is changed, unless both consist of modules of the same classes with
/// tensors of the same names and ties, each with elements of its own; ShapeError unless of the same
/// shapes. Error for a tensor that ranks have between them or alike (fully_shard,
/// parallelize_module, expert_parallel), or that has no bytes.
void deepcopy_into(Module& copy, const Module& module);

/// A deep copy of `module`, of which an M is made first, from the arguments or from its
/// configuration in braces:
///
///     const auto target = nn::deepcopy(policy, {.hidden_size = 64});
template <class M, class... Arguments>
std::unique_ptr<M> deepcopy(const M& module, Arguments&&... arguments) {
  auto copy = std::make_unique<M>(std::forward<Arguments>(arguments)...);
  deepcopy_into(*copy, module);
  return copy;
}
template <class M, class Config = typename M::Config>
std::unique_ptr<M> deepcopy(const M& module, Config config) {
  auto copy = std::make_unique<M>(std::move(config));
  deepcopy_into(*copy, module);
  return copy;
}

}  // namespace moegrad::nn
