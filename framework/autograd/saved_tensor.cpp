// SPDX-License-Identifier: Apache-2.0
#include "framework/autograd/saved_tensor.h"

#include <utility>

#include "framework/autograd/checkpoint_policy.h"
#include "framework/autograd/function.h"

namespace moegrad {
namespace {

std::int64_t bytes_of(const Tensor& tensor) {
  const bool nz = tensor.layout() == Layout::kNZ;
  return (nz ? tensor.nz_blocks().numel(tensor.dtype()) : tensor.numel()) * size_of(tensor.dtype());
}

}  // namespace

SavedTensor::SavedTensor(Function& owner) : owner_(owner) { owner.saved_.push_back(this); }

SavedTensor& SavedTensor::operator=(const Tensor& tensor) {
  release();
  state_ = State::kSaved;
  if (!tensor.defined()) return *this;
  // apply() detaches its arguments.
  check(!tensor.requires_grad() || !owner_.tape_on_, owner_.name(),
        ": a tensor that requires a gradient must be an argument of apply(), where it gets one, to "
        "be saved; detach() what is a constant");
  Tensor detached = tensor.detach();
  bytes_ = bytes_of(tensor);
  if (auto way = detail::WayBack::to(tensor, owner_.recorded_)) {
    packed_ = std::move(way);
    return *this;
  }
  const auto* const hooks = ThreadState::current().saved_tensor_hooks;
  if (hooks != nullptr && owner_.recorded_) {
    const bool is_parameter = tensor.storage().tag() == MemoryTag::kParameters;
    packed_ = hooks->pack({owner_, detached, is_parameter, bytes_});
    if (packed_.has_value()) {
      unpack_ = hooks->unpack;
      return *this;
    }
  }
  tensor_ = std::move(detached);
  version_ = tensor.storage().version();
  return *this;
}

bool SavedTensor::is_modified() const {
  return tensor_.defined() && tensor_.storage().version() != version_;
}

Tensor SavedTensor::unpack() const {
  check(state_ != State::kReleased, owner_.name(),
        ": backward a second time, but the saved tensors have been freed; pass retain_graph to "
        "the first backward");
  if (const auto* const way = std::any_cast<detail::WayBack>(&packed_)) return way->tensor();
  if (unpack_) {
    if (!unpacked_.defined()) unpacked_ = unpack_(packed_);
    return unpacked_;
  }
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
  bytes_ = 0;
  packed_.reset();
  unpack_ = nullptr;
  unpacked_ = Tensor();
}

const Storage* SavedTensor::storage() const {
  return tensor_.defined() ? &tensor_.storage() : nullptr;
}

}  // namespace moegrad
