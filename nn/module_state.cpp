// SPDX-License-Identifier: Apache-2.0
// What a Module does with the values of its parameters and buffers.
#include <sstream>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "framework/distributed/shard_spec.h"
#include "framework/runtime/grad_mode.h"
#include "framework/tensor/fill.h"
#include "nn/module.h"

namespace moegrad::nn {
namespace {

// "missing keys 'a', 'b'"
std::string listed(std::string_view what, const std::vector<std::string>& names) {
  std::string text = std::string(what) + (names.size() == 1 ? " " : "s ");
  for (std::size_t i = 0; i < names.size(); ++i) {
    text += (i == 0 ? "'" : ", '") + names[i] + "'";
  }
  return text;
}

// What load_state_dict refuses by name and shape.
class Disagreement {
 public:
  void add(std::string text) { texts_.push_back(std::move(text)); }
  void add_shape(const std::string& name, const Shape& held, const Shape& given) {
    std::ostringstream text;
    text << "'" << name << "' must be " << held << ", got " << given;
    texts_.push_back(text.str());
    ++shapes_;
  }
  void raise_if_any() const {
    if (texts_.empty()) return;
    std::string message = "load_state_dict: ";
    for (std::size_t i = 0; i < texts_.size(); ++i) message += (i == 0 ? "" : "; ") + texts_[i];
    if (shapes_ == texts_.size()) throw ShapeError(message);
    throw Error(message);
  }

 private:
  std::vector<std::string> texts_;
  std::size_t shapes_ = 0;
};

}  // namespace

NamedTensors Module::state_dict() const {
  restore_parameters();
  NamedTensors state = named_parameters();
  for (const auto& slot : buffer_slots()) {
    if (slot.persistent) state.push_back({slot.name, *slot.tensor});
  }
  for (auto& [name, tensor] : state) tensor = tensor.detach();
  return state;
}

IncompatibleKeys Module::load_state_dict(const NamedTensors& state, bool strict) {
  auto own = state_dict();
  std::unordered_map<std::string_view, const Tensor*> given;
  std::unordered_set<std::string_view> held;
  for (const auto& [name, tensor] : own) held.insert(name);
  IncompatibleKeys keys;
  Disagreement disagreement;
  for (const auto& [name, tensor] : state) {
    const bool is_first = given.emplace(name, &tensor).second;
    if (!is_first) disagreement.add("key '" + name + "' is given twice");
    if (is_first && !held.contains(name)) keys.unexpected_keys.push_back(name);
  }
  for (const auto& [name, tensor] : own) {
    const auto found = given.find(name);
    if (found == given.end()) {
      keys.missing_keys.push_back(name);
    } else if (found->second->defined() && !(found->second->shape() == tensor.shape())) {
      disagreement.add_shape(name, tensor.shape(), found->second->shape());
    }
  }
  if (strict && !keys.missing_keys.empty()) {
    disagreement.add(listed("missing key", keys.missing_keys));
  }
  if (strict && !keys.unexpected_keys.empty()) {
    disagreement.add(listed("unexpected key", keys.unexpected_keys));
  }
  disagreement.raise_if_any();
  std::erase_if(own, [&](const NamedTensor& each) { return !given.contains(each.name); });
  for (const auto& [name, tensor] : own) {
    const Tensor& source = *given.at(name);
    check<UndefinedTensorError>(source.defined(), "load_state_dict: '", name,
                                "' must be a defined tensor");
    check<LayoutError>(tensor.is_contiguous(), "load_state_dict: '", name,
                       "' of this module must be contiguous, got shape ", tensor.shape(),
                       " with strides ", tensor.strides());
    const bool reals = holds_reals(source.dtype()) && holds_reals(tensor.dtype());
    check<DtypeError>(reals || source.dtype() == tensor.dtype(), "load_state_dict: '", name,
                      "' must be ", tensor.dtype(), ", or of other reals if it is of reals, got ",
                      source.dtype());
    check_same_part("load_state_dict", name, source, tensor);
  }
  const NoGradGuard no_grad;
  for (auto& [name, tensor] : own) copy_(tensor, *given.at(name));
  return keys;
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
