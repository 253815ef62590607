// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "framework/tensor/tensor.h"

namespace moegrad {

/// Runs `body` on `inputs` without keeping what its Functions save: backward runs it again.
///
/// Note [Recomputation]
/// Forward keeps the inputs alone. When backward reaches the outputs, the body runs once more with
/// the tape on, in the scope (module path, pre- and post-backward entries) that forward ran in, and
/// a backward inside the backward gives the inputs' gradients. Tensors that the body captures, such
/// as parameters, get theirs directly in grad(), so they must be leaves: backward throws an Error
/// for others, which must be inputs. Gradients are bitwise those without checkpoint (E0):
/// everything random is counter-based, and gradients are added in the same order, and a leaf's
/// hooks run once, after its last gradient. Two differences remain. An input that the body does not
/// use gets zeros instead of nothing. The body reads captured tensors again: after a step between
/// forward and backward, it computes gradients of the new weights, as in PyTorch. Without
/// checkpoint, a SavedTensor would throw.
///
/// The body may itself call checkpoint(). With the tape off, this is body(inputs). With the tape
/// on, outputs require a gradient even if no input does, since the body may capture parameters.
///
/// Method: Chen et al., "Training deep nets with sublinear memory cost", 2016,
/// https://arxiv.org/abs/1604.06174
TensorList checkpoint(std::function<TensorList(const TensorList&)> body, const TensorList& inputs);

/// Whether the body of a checkpoint is running for the first time in this thread: the tape is off,
/// but backward will run the body again.
bool in_checkpoint_forward();

}  // namespace moegrad
