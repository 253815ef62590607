// SPDX-License-Identifier: Apache-2.0
#include "framework/autograd/gradcheck_inputs.h"

#include <algorithm>
#include <sstream>
#include <unordered_map>

#include "framework/tensor/fill.h"

namespace moegrad::detail {
namespace {

using enum GradcheckFailure;

// Two elements in the same memory move together, so central differences see the sum of two
// derivatives. A tensor that is given twice is fine: its gradient is that sum, too.
void check_overlap(const TensorList& inputs, const std::vector<Slot>& slots) {
  std::unordered_map<const std::byte*, std::size_t> owner;  // looked up, never iterated
  const auto address = [](const Tensor& tensor, std::size_t element) {
    return tensor.storage().data() + storage_offset(tensor, element) * size_of(tensor.dtype());
  };
  const auto refuse_pair = [](std::size_t i, std::size_t j) {
    gradcheck_fail(kOverlappingInput, "inputs ", std::min(i, j), " and ", std::max(i, j),
                   " must not share memory; clone one of them first");
  };
  for (const auto& slot : slots) {
    const Tensor& input = inputs[slot.index];
    for (std::size_t i = 0; i < slot.size(); ++i) {
      const auto [position, inserted] = owner.try_emplace(address(input, i), slot.index);
      const auto other = position->second;
      if (inserted || (other != slot.index && inputs[other].is(input))) continue;
      if (other != slot.index) refuse_pair(other, slot.index);
      gradcheck_fail(kOverlappingInput, "elements of input ", slot.index,
                     " must not share memory, got shape ", slot.shape, " with strides ",
                     input.strides(), "; clone it first");
    }
  }
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Tensor& input = inputs[i];
    if (!input.defined() || input.requires_grad() || input.layout() != Layout::kND) continue;
    const auto size = static_cast<std::size_t>(input.numel());
    for (std::size_t j = 0; j < size; ++j) {
      if (const auto found = owner.find(address(input, j)); found != owner.end()) {
        refuse_pair(found->second, i);
      }
    }
  }
}

}  // namespace

std::string element_name(std::string_view what, const std::vector<Slot>& slots, std::size_t flat) {
  const auto slot =
      std::ranges::find_if(slots, [&](const Slot& candidate) { return flat < candidate.end(); });
  Shape index = slot->shape;
  auto remainder = static_cast<std::int64_t>(flat - slot->begin);
  for (std::int64_t i = index.ndim() - 1; i >= 0; --i) {
    index[i] = remainder % slot->shape[i];
    remainder /= slot->shape[i];
  }
  std::ostringstream text;
  text << what << ' ' << slot->index << " at " << index;
  return text.str();
}

std::int64_t storage_offset(const Tensor& tensor, std::size_t flat) {
  auto remainder = static_cast<std::int64_t>(flat);
  std::int64_t offset = tensor.offset();
  for (std::int64_t i = tensor.ndim() - 1; i >= 0; --i) {
    offset += remainder % tensor.dim(i) * tensor.strides()[i];
    remainder /= tensor.dim(i);
  }
  return offset;
}

std::vector<double> to_doubles(const Tensor& tensor) {
  const Tensor values = to_dtype(tensor.detach(), Dtype::kFloat64);
  const auto data = values.data<double>();
  return {data.begin(), data.end()};
}

double MovedElements::get(std::size_t i) const {
  return dispatch_floating(tensor_.dtype(), [&]<class T>() -> double { return *pointer<T>(i); });
}

CheckedInputs::CheckedInputs(const TensorList& inputs) : inputs_(inputs) {
  std::size_t begin = 0;
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    const Tensor& input = inputs_[i];
    if (!input.defined() || !input.requires_grad()) continue;
    check(input.is_leaf(), "gradcheck: input ", i, " must be a leaf");
    check<LayoutError>(input.layout() == Layout::kND, "gradcheck: input ", i,
                       " must be row-major ND, got FRACTAL_NZ");
    check<DtypeError>(is_floating(input.dtype()), "gradcheck: input ", i,
                      " must be float64 or float32, whose steps are fine enough, got ",
                      input.dtype());
    slots_.push_back({i, input.shape(), input.dtype(), begin});
    begin = slots_.back().end();
  }
  if (slots_.empty()) gradcheck_fail(kNoInputRequiresGrad, "no input requires a gradient");
  check_overlap(inputs_, slots_);
}

CheckedInputs::~CheckedInputs() { clear_grads(); }

std::vector<std::string> CheckedInputs::warnings() const {
  std::vector<std::string> warnings;
  for (const auto& slot : slots_) {
    if (slot.dtype == Dtype::kFloat64) continue;
    std::ostringstream text;
    text << "gradcheck: input " << slot.index << " is " << slot.dtype
         << "; eps and the bounds are meant for float64, and will likely not be kept";
    warnings.push_back(text.str());
  }
  return warnings;
}

void CheckedInputs::clear_grads() const {
  for (const auto& slot : slots_) tensor(slot).set_grad(Tensor());
}

std::vector<std::uint64_t> CheckedInputs::versions() const {
  std::vector<std::uint64_t> versions;
  for (const auto& input : inputs_) {
    versions.push_back(input.defined() ? input.storage().version() : 0);
  }
  return versions;
}

void CheckedInputs::check_unmodified(const std::vector<std::uint64_t>& before) const {
  const auto after = versions();
  if (before == after) return;
  gradcheck_fail(kInputModified, "input ",
                 std::ranges::mismatch(before, after).in1 - before.begin(),
                 " must not be modified in place by the function or its backward");
}

}  // namespace moegrad::detail
