// SPDX-License-Identifier: Apache-2.0
// What a Module does with the values of its parameters and buffers.
#include <algorithm>

#include "framework/autograd/grad_mode.h"
#include "framework/distributed/shard_spec.h"
#include "framework/tensor/convert.h"
#include "framework/tensor/fill.h"
#include "nn/module.h"

namespace moegrad::nn {

NamedTensors Module::state_dict() const {
  restore_parameters();
  NamedTensors state = named_parameters();
  for (const auto& slot : buffer_slots()) {
    if (slot.persistent) state.push_back({slot.name, *slot.tensor});
  }
  for (auto& [name, tensor] : state) tensor = tensor.detach();
  return state;
}

void Module::load_state_dict(const NamedTensors& state) {
  auto own = state_dict();
  for (const auto& given : state) {
    check(std::ranges::find(own, given.name, &NamedTensor::name) != own.end(),
          "load_state_dict: unexpected key '", given.name, "'");
    check(std::ranges::count(state, given.name, &NamedTensor::name) == 1, "load_state_dict: key '",
          given.name, "' is given twice");
  }
  for (auto& [name, tensor] : own) {
    const auto found = std::ranges::find(state, name, &NamedTensor::name);
    check(found != state.end(), "load_state_dict: missing key '", name, "'");
    check<UndefinedTensorError>(found->tensor.defined(), "load_state_dict: '", name,
                                "' must be a defined tensor");
    check<LayoutError>(tensor.is_contiguous(), "load_state_dict: '", name,
                       "' of this module must be contiguous, got shape ", tensor.shape(),
                       " with strides ", tensor.strides());
    check<ShapeError>(found->tensor.shape() == tensor.shape(), "load_state_dict: '", name,
                      "' must be ", tensor.shape(), ", got ", found->tensor.shape());
    const auto given = found->tensor.dtype(), held = tensor.dtype();
    check<DtypeError>(given == held || (holds_reals(given) && holds_reals(held)),
                      "load_state_dict: '", name, "' must be ", held,
                      ", or of other reals if it is of reals, got ", given);
    check_same_part("load_state_dict", name, found->tensor.shard_spec(), tensor.shard_spec());
  }
  const NoGradGuard no_grad;
  for (auto& [name, tensor] : own) {
    copy_(tensor, std::ranges::find(state, name, &NamedTensor::name)->tensor);
  }
}

void Module::restore_parameters() const {
  for (const auto& extension : all_extensions()) extension->restore_parameters();
}

void Module::to_empty() {
  for (const auto& extension : all_extensions()) extension->to_empty();
  const auto refill = [](const Tensor& tensor) {
    if (!tensor.is_meta()) return;
    tensor.storage().retag(MemoryTag::kParameters);
    tensor.storage().refill();
  };
  for (const auto& slot : parameter_slots()) refill(*slot.tensor);
  for (const auto& slot : buffer_slots()) refill(*slot.tensor);
}

void Module::to(Dtype dtype) {
  check<DtypeError>(is_floating(dtype), "to: dtype must be float32 or float64, got ", dtype);
  restore_parameters();
  const auto parameters = distinct_parameters();
  for (const auto& slot : parameters) {
    const auto& spec = slot.parameter().shard_spec();
    check(spec == nullptr || !spec->gathered_for_use, "to: parameter '", slot.name,
          "' must not be sharded; convert the module before fully_shard, or give fully_shard a "
          "MixedPrecisionPolicy");
  }
  auto buffers = named_buffers();
  for (const auto& [name, buffer] : buffers) {
    check(buffer.is_leaf(), "to: buffer '", name,
          "' must not be a result on the tape; change its values under a NoGradGuard");
  }
  for (const auto& slot : parameters) convert_(slot.parameter(), dtype);
  for (auto& [name, buffer] : buffers) {
    if (holds_reals(buffer.dtype())) convert_(buffer, dtype);
  }
  for (const auto& [path, module] : named_modules()) module->converted_to(dtype);
}

void Module::zero_grad() {
  for (const auto& slot : parameter_slots()) slot.tensor->set_grad(Tensor());
  for (const auto& extension : all_extensions()) extension->zero_grad();
}

}  // namespace moegrad::nn
