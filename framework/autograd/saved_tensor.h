// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <any>
#include <cstdint>
#include <functional>
#include <utility>

#include "framework/runtime/thread_state.h"
#include "framework/tensor/tensor.h"

namespace moegrad {

class Function;

/// A tensor that a Function saves, as hooks see it.
struct TensorToSave {
  const Function& owner;      // the Function, which knows its name and scope
  const Tensor& tensor;       // detached
  bool is_parameter = false;  // of a module, or what fully_shard gathers for one
  std::int64_t bytes = 0;     // of the tensor's own elements
};

/// What happens to a tensor between forward and backward: `pack` runs once, when a Function saves
/// the tensor; `unpack` gives it back, once, when backward first asks for it. What it gave is kept
/// until the saved tensor is released. Offload and compression are such pairs.
///
/// An empty std::any leaves the tensor as it is. Hooks do that with parameters, which live on
/// anyway, and whose bytes fully_shard may have released by the time of backward.
struct SavedTensorHooks {
  std::function<std::any(const TensorToSave&)> pack;
  std::function<Tensor(const std::any&)> unpack;
};

/// Applies hooks to the tensors that are saved in this thread until the guard goes out of scope.
/// The innermost guard wins.
class [[nodiscard]] SavedTensorHooksGuard {
 public:
  explicit SavedTensorHooksGuard(SavedTensorHooks hooks)
      : hooks_(std::move(hooks)), guard_(&hooks_) {}

 private:
  SavedTensorHooks hooks_;
  ThreadValueGuard<&ThreadState::saved_tensor_hooks> guard_;
};

/// A tensor kept for backward, declared as a member of its Function:
///
///     SavedTensor input_{*this};      ...      input_ = input;      ...      input_.unpack()
///
/// Holds a detached handle, so a Function never owns its own graph, and the version at save time:
/// unpack() throws when the tensor has been modified in place since, or when backward has already
/// freed it.
class SavedTensor {
 public:
  explicit SavedTensor(Function& owner);
  SavedTensor(const SavedTensor&) = delete;
  SavedTensor& operator=(const SavedTensor&) = delete;

  SavedTensor& operator=(const Tensor& tensor);
  Tensor unpack() const;
  /// Whether unpack() would throw because of an edit; false if hooks have packed the tensor.
  bool is_modified() const;
  void release();
  /// Bytes of the tensor as it was saved, also if hooks have packed it; 0 if it was released.
  std::int64_t bytes() const { return bytes_; }
  bool is_packed() const { return packed_.has_value(); }
  /// The storage that it keeps alive; null if hooks have packed the tensor or it was released.
  const Storage* storage() const;

 private:
  Function& owner_;
  Tensor tensor_;
  std::int64_t bytes_ = 0;
  std::any packed_;
  std::function<Tensor(const std::any&)> unpack_;
  mutable Tensor unpacked_;  // once unpack_ has run
  std::uint64_t version_ = 0;
  enum class State : std::uint8_t { kEmpty, kSaved, kReleased } state_ = State::kEmpty;
};

}  // namespace moegrad
