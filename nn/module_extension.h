// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "framework/tensor/tensor.h"

namespace moegrad::nn {

/// One call of a module, as its extensions see it: a function from the tensors in the arguments to
/// those in the result (Note [Tensors in arguments and results]). Undefined tensors are left out.
class ForwardCall {
 public:
  using Function = std::function<TensorList(const TensorList&)>;

  virtual ~ForwardCall() = default;
  /// Runs the extensions further in, then forward, with `inputs` in the place of the tensors in the
  /// arguments. Call it once.
  virtual TensorList run(const TensorList& inputs) = 0;
  /// The same as a function that may be called at any time, also when the call has returned. It
  /// is an Error if the module is gone by then. It keeps copies of the other arguments, so forward
  /// cannot change the caller's. Error if one cannot be copied.
  virtual Function repeatable() = 0;
};

/// What changes how a module runs, from outside: fully_shard, recomputation. A module has a list of
/// extensions, which live as long as it does. The one that was attached last is the outermost.
class ModuleExtension {
 public:
  virtual ~ModuleExtension() = default;

  /// Runs the call and returns the tensors of its result, changed or not. `inputs` are the tensors
  /// in the arguments. It is called inside the module's forward hooks, because only the pre hooks
  /// make a sharded module ready.
  virtual TensorList around_forward(ForwardCall& call, const TensorList& inputs) {
    return call.run(inputs);
  }

  /// Puts back the parameters that the module keeps, where others stand in for them meanwhile, as
  /// gathered ones do. Loading and saving call it first.
  virtual void restore_parameters() {}
  /// Gives bytes, undefined ones, to those parameters that the module keeps and that have none yet.
  virtual void to_empty() {}
  /// Clears the gradients that it keeps for parameters that are not in the slots now.
  virtual void zero_grad() {}
};

/// The extensions of one module, in the order in which they were attached.
using ModuleExtensions = std::vector<std::shared_ptr<ModuleExtension>>;

/// Runs `call` inside all of them.
TensorList run_inside(const ModuleExtensions& extensions, ForwardCall& call,
                      const TensorList& inputs);

}  // namespace moegrad::nn
