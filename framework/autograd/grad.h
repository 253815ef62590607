// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "framework/tensor/tensor.h"

namespace moegrad::autograd {

struct GradOptions {
  bool retain_graph = false;  // false: the graph is freed, as by backward()
  bool allow_unused = false;  // true: an undefined tensor for an input that no output depends on
};

/// The gradients of `inputs`, as torch.autograd.grad:
///
///     result[i] = sum over j of grad_outputs[j] * d outputs[j] / d inputs[i]
///
/// No tensor's grad() changes, and no hook runs that waits for it
/// (register_post_accumulate_grad_hook); hooks on the gradients of tensors (register_hook) run.
/// Inputs may be leaves or results, and the same one may be named twice. An undefined entry of
/// `grad_outputs`, or an empty list, means one for an output of one element. Only what lies between
/// outputs and inputs is computed, and, for an input that is a result, the way from there to one
/// leaf: unlike in PyTorch a backward of that input needs retain_graph, too.
///
/// Error for an output or input that does not require a gradient, for another number of gradients
/// than outputs, and for an input that no output depends on, unless allow_unused. So it is for a
/// parameter that fully_shard has replaced by a shard: the graph begins at the gathered whole.
TensorList grad(const TensorList& outputs, const TensorList& inputs,
                const TensorList& grad_outputs = {}, const GradOptions& options = {});

}  // namespace moegrad::autograd
