// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string_view>

#include "framework/autograd/checkpoint_policy.h"
#include "nn/module.h"

namespace moegrad::nn {

/// From now on the module keeps only the tensors in its arguments, and backward runs its forward
/// again (Note [Recomputation]). Losses and gradients have the same bits. The module's own hooks
/// run as before; those of the modules below run once more in backward. So does what forward does
/// to buffers. Keep the module until backward has run; it is an Error if it is gone by then.
///
/// Error if the module is recomputed already. When it is called: Error if an argument cannot be
/// copied, or is a pointer or a view of what may be gone by then (a string literal is one), and if
/// the result holds no tensors that are found (Note [Tensors in arguments and results]).
void recompute(Module& module);

/// The same for those modules of `root`, itself included, whose path the predicate picks. Returns
/// how many these are.
///
///     nn::recompute(model, [](std::string_view path) { return path.ends_with(".mlp.experts"); });
int recompute(Module& root, const std::function<bool(std::string_view path)>& picks);

/// From now on the policy says of each op that the module's forward runs, and those of the modules
/// below, which results are kept for backward, which are made again and which are swapped (Note
/// [Results that are made again]). A module below with a policy of its own goes by that. Losses and
/// gradients have the same bits.
///
///     nn::checkpoint_with(layer, [](const OpResult& result) {
///       return result.op == "rms_norm" ? CheckpointPolicy::kMustRecompute
///                                      : CheckpointPolicy::kMustSave;
///     });
///
/// Give it to a module that fully_shard shards, or to one below. On a module that is recomputed as
/// a whole, too, it counts where that runs again, if it was given first. Each call has a copy of
/// the policy, and shares `swap`, which has what is offloaded (Note [Tensors that are swapped]).
/// Error if the module has a policy already, and, when it is called, for what the
/// policy says must be recomputed and cannot.
void checkpoint_with(Module& module, CheckpointPolicyFunction policy,
                     std::shared_ptr<SwapSpace> swap = nullptr);

}  // namespace moegrad::nn
