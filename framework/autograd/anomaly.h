// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "framework/runtime/error.h"
#include "framework/runtime/thread_state.h"
#include "framework/tensor/tensor.h"

namespace moegrad {

class Function;

/// The first NaN or infinity, found by anomaly detection.
class AnomalyError : public Error {
 public:
  using Error::Error;
};

/// Whether this thread looks for NaN and infinity in what ops compute; off by default.
inline bool anomaly_detection_enabled() { return ThreadState::current().anomaly_detection; }

/// Sets anomaly_detection_enabled() until the guard goes out of scope, as
/// torch.autograd.detect_anomaly, also on the ranks of a launch() meanwhile.
///
/// Every op that runs under it checks its results, recorded or not, and remembers where it was
/// called; every backward that runs under it checks the gradients that each Function returns. The
/// first value that is not finite becomes an AnomalyError with the op, the element, the module path
/// and the calls that led to forward:
///
///     anomaly: log made nan in output 0 [2, 3] at element 4; in module model.layers.0.mlp; called
///     from
///       loss_of(moegrad::Tensor const&) (train.cpp:12)
///       main (train.cpp:30)
///
/// If the op was given such a value, the message says that it got the value, not that it made it.
/// The mode costs a pass over every result and a walk up the stack per op: it is for debugging.
class [[nodiscard]] AnomalyModeGuard : public ThreadValueGuard<&ThreadState::anomaly_detection> {
 public:
  explicit AnomalyModeGuard(bool enabled = true) : ThreadValueGuard(enabled) {}
};

namespace detail {

/// Throws AnomalyError if a result of `function` is not finite.
void check_forward_is_finite(const Function& function, const TensorList& inputs,
                             const TensorList& outputs);
/// The same check of the gradients that its backward got and returned.
void check_backward_is_finite(const Function& function, const TensorList& grads,
                              const TensorList& input_grads);

}  // namespace detail

}  // namespace moegrad
