// SPDX-License-Identifier: Apache-2.0
#pragma once

// Note [Results that are made again]
// What backward reads are mostly results of ops that forward has run: the output of a norm, which
// the products after it have saved, or permuted tokens. A policy says of each whether it is kept,
// made again or swapped (Note [Tensors that are swapped]). One that is to be made again has a
// recipe: the op's forward with its other arguments, and its inputs, saved as any Function saves
// them. The recipe hangs on the result's storage. A SavedTensor that is given such a result, or a
// view of it, holds the recipe instead, so the bytes are free as soon as the caller drops the
// tensor. The first unpack() runs the op again, without the tape, and all that have saved the
// result share what comes out, until the last of them is released.
//
// An op's forward depends on its arguments alone: what is random is counter-based, and no module
// runs again. So bits are those of the plain run, experts are chosen once, and statistics are taken
// once. The engine knows nothing of it. An input may have a recipe itself.
//
// Method: "checkpoint without output" of Megatron-LM, with the tape's saved tensors in the place of
// hooks; selective activation checkpointing of PyTorch, by op and path.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include "framework/runtime/thread_state.h"
#include "framework/tensor/tensor.h"

namespace moegrad {

class Function;
class SwapSpace;

/// What becomes of an op's result between forward and backward, in PyTorch's words.
enum class CheckpointPolicy : std::uint8_t {
  kMustSave,
  kPreferRecompute,   // saved where it cannot be made again
  kMustRecompute,     // an Error there
  kPreferCpuOffload,  // swapped; saved where it cannot be
  kMustCpuOffload,    // an Error there
};

/// A result of an op, as a policy sees it.
struct OpResult {
  std::string_view op;    // the Function's name: "rms_norm"
  std::string_view path;  // of the module whose forward runs: "model.layers.0.mlp"
  const Tensor& tensor;
  std::size_t output;  // which of the op's results
};

using CheckpointPolicyFunction = std::function<CheckpointPolicy(const OpResult&)>;

/// Asks the policy about the results of the ops that this thread applies until the guard goes out
/// of scope (Note [Results that are made again]). The innermost guard wins. nn::checkpoint_with
/// does it for a module.
///
/// Functions that save a result to be made again after that, or under another guard, keep it: they
/// may run backward before a sharded module has its weights.
///
/// A result cannot be made again where it shares its bytes with an input, as a view does, where the
/// op is a collective, and where an argument cannot be copied, refers to what belongs to others, as
/// a pointer does, or is a tensor that is no input. What a lambda has captured is not seen: it must
/// live, and stay as it is, until backward. An edit in place of a result before it is saved, or of
/// an input of the op before backward, is noticed: the first is saved as it is, the second an
/// Error.
///
/// What is swapped goes to `swap`. It may be the result of any op, whoever saves it, but for
/// parameters, views of inputs, FRACTAL_NZ and what has no bytes.
///
/// An input that has a recipe itself is made again first, so thousands of ops in a row need some
/// result that is kept. Where fully_shard releases weights, a policy belongs to a module that it
/// shards, or to one below: what a module further out recomputes may ask for them too late.
class [[nodiscard]] CheckpointPolicyGuard {
 public:
  /// ValueError for an empty policy.
  explicit CheckpointPolicyGuard(CheckpointPolicyFunction policy,
                                 std::shared_ptr<SwapSpace> swap = nullptr);

 private:
  ThreadValueGuard<&ThreadState::checkpoint_policy> guard_;
};

/// Runs an op's forward on these tensor inputs.
using ForwardAgain = std::function<TensorList(const TensorList& inputs)>;

/// A way to a result of an op that keeps less alive than its forward does.
struct ShorterWay {
  TensorList inputs;
  ForwardAgain forward;  // gives this result alone
};

namespace detail {

class BytesSource;

/// Whether a policy wants to see results.
bool asks_policy();
/// Asks it about the results of an op and gives a recipe to those that are to be made again.
/// `again` makes what runs the op, or is empty where that cannot be.
void offer_results(const Function& function, const TensorList& inputs, const TensorList& results,
                   const std::function<ForwardAgain()>& again);

/// How a saved tensor comes back that is made again, or swapped.
class WayBack {
 public:
  /// Empty for a tensor that is to be kept. `saves`: backward may read it, not this op alone.
  static WayBack to(const Tensor& tensor, bool saves);
  explicit operator bool() const { return source_ != nullptr; }
  Tensor tensor() const;

 private:
  std::shared_ptr<BytesSource> source_;
  std::size_t output_ = 0;
  Shape shape_, strides_;
  std::int64_t offset_ = 0;
  Layout layout_ = Layout::kND;
};

}  // namespace detail
}  // namespace moegrad
