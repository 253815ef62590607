// SPDX-License-Identifier: Apache-2.0
#include "parallel/tensor/partial_parameters.h"

#include <cstddef>
#include <utility>

#include "framework/runtime/grad_mode.h"
#include "ops/tensor_parallel.h"

namespace moegrad::parallel {
namespace {

// Other tensors in slots, until the end of the scope.
class SlotsGuard {
 public:
  explicit SlotsGuard(const std::vector<Tensor*>& slots) : slots_(slots) {
    for (const auto* slot : slots) kept_.push_back(*slot);
  }
  ~SlotsGuard() {
    for (std::size_t i = 0; i < slots_.size(); ++i) *slots_[i] = kept_[i];
  }
  SlotsGuard(const SlotsGuard&) = delete;
  SlotsGuard& operator=(const SlotsGuard&) = delete;

 private:
  const std::vector<Tensor*>& slots_;
  TensorList kept_;
};

}  // namespace

PartialParameters::PartialParameters(std::shared_ptr<ProcessGroup> group,
                                     std::vector<Tensor*> slots, Divided divided)
    : group_(std::move(group)), slots_(std::move(slots)), divided_(divided) {}

TensorList PartialParameters::around_forward(nn::ForwardCall& call, const TensorList& inputs) {
  if (!grad_enabled()) return call.run(inputs);
  const SlotsGuard guard(slots_);
  for (auto* slot : slots_) {
    if (slot->requires_grad()) *slot = ops::copy_to_ranks(group_, *slot);
  }
  return call.run(inputs);
}

}  // namespace moegrad::parallel
