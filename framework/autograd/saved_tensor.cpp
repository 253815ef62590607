// SPDX-License-Identifier: Apache-2.0
#include "framework/autograd/saved_tensor.h"

#include <utility>

#include "framework/autograd/function.h"
#include "framework/runtime/thread_state.h"

namespace moegrad {

SavedTensorHooksGuard::SavedTensorHooksGuard(SavedTensorHooks hooks)
    : hooks_(std::move(hooks)),
      previous_(std::exchange(ThreadState::current().saved_tensor_hooks, &hooks_)) {}

SavedTensorHooksGuard::~SavedTensorHooksGuard() {
  ThreadState::current().saved_tensor_hooks = previous_;
}

SavedTensor::SavedTensor(Function& owner) : owner_(owner) { owner.saved_.push_back(this); }

SavedTensor& SavedTensor::operator=(const Tensor& tensor) {
  state_ = State::kSaved;
  packed_.reset();
  unpack_ = nullptr;
  const auto* const hooks = ThreadState::current().saved_tensor_hooks;
  if (tensor.defined() && hooks != nullptr && owner_.recorded_) {
    tensor_ = Tensor();
    packed_ = hooks->pack(tensor.detach());
    unpack_ = hooks->unpack;
    return *this;
  }
  tensor_ = tensor.defined() ? tensor.detach() : Tensor();
  if (tensor.defined()) version_ = tensor.storage().version();
  return *this;
}

bool SavedTensor::is_modified() const {
  return tensor_.defined() && tensor_.storage().version() != version_;
}

Tensor SavedTensor::unpack() const {
  check(state_ != State::kReleased, owner_.name(),
        ": backward a second time, but the saved tensors have been freed; pass retain_graph to "
        "the first backward");
  if (unpack_) return unpack_(packed_);
  if (!tensor_.defined()) return tensor_;
  const auto& parameter = tensor_.storage().name();
  const auto* const quote = parameter.empty() ? "" : "'";
  check(!is_modified(), owner_.name(), ": a tensor of shape ", tensor_.shape(),
        parameter.empty() ? "" : " ", quote, parameter, quote,
        " saved for backward has been modified in place since");
  return tensor_;
}

void SavedTensor::release() {
  state_ = State::kReleased;
  tensor_ = Tensor();
  packed_.reset();
  unpack_ = nullptr;
}

std::int64_t SavedTensor::bytes() const {
  if (!tensor_.defined()) return 0;
  const bool nz = tensor_.layout() == Layout::kNZ;
  return (nz ? tensor_.nz_blocks().numel() : tensor_.numel()) * size_of(tensor_.dtype());
}

const Storage* SavedTensor::storage() const {
  return tensor_.defined() ? &tensor_.storage() : nullptr;
}

}  // namespace moegrad
