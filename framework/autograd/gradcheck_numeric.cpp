// SPDX-License-Identifier: Apache-2.0
#include "framework/autograd/gradcheck_numeric.h"

#include "framework/runtime/grad_mode.h"

namespace moegrad::detail {
namespace {

using enum GradcheckFailure;

}  // namespace

std::vector<double> CentralDifferences::by_element(const Slot& input, std::size_t element) const {
  std::vector<double> direction{1.0};
  auto derivatives = along(input, element, direction);
  for (auto& derivative : derivatives) derivative /= direction[0];
  return derivatives;
}

std::vector<double> CentralDifferences::along(const Slot& input,
                                              std::vector<double>& direction) const {
  return along(input, 0, direction);
}

std::vector<double> CentralDifferences::along(const Slot& input, std::size_t first,
                                              std::vector<double>& direction) const {
  MovedElements elements(inputs_.tensor(input), first, direction.size());
  elements.move(eps_, direction);
  auto derivatives = call(input);
  std::vector<double> taken(direction.size());
  for (std::size_t i = 0; i < taken.size(); ++i) taken[i] = elements.get(i);
  elements.move(-eps_, direction);
  const auto below = call(input);
  for (std::size_t i = 0; i < derivatives.size(); ++i) {
    // An infinity that stays infinite, such as a mask's, has derivative zero.
    const bool same = derivatives[i] == below[i];
    derivatives[i] = same ? 0.0 : (derivatives[i] - below[i]) / (2 * eps_);
  }
  for (std::size_t i = 0; i < taken.size(); ++i) {
    taken[i] = (taken[i] - elements.get(i)) / (2 * eps_);
    // An element too large for eps to move must not drop out of both sides of the comparison.
    if (taken[i] != 0) direction[i] = taken[i];
  }
  return derivatives;
}

std::vector<double> CentralDifferences::call(const Slot& moved) const {
  const NoGradGuard no_grad;
  const auto versions = inputs_.versions();
  const auto outputs = f_(inputs_.all());
  inputs_.check_unmodified(versions);
  if (outputs.size() != outputs_.size()) {
    gradcheck_fail(kOutputShapeChanges, "the function must return the same ", outputs_.size(),
                   " outputs when input ", moved.index, " moves by eps = ", eps_, ", got ",
                   outputs.size());
  }
  std::vector<double> values;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const auto refuse = [&](GradcheckFailure kind, const auto& expected, const auto& got) {
      gradcheck_fail(kind, "output ", i, " must remain ", expected, " when input ", moved.index,
                     " moves by eps = ", eps_, ", got ", got);
    };
    const Slot& before = outputs_[i];
    const Tensor& now = outputs[i];
    if (!(now.shape() == before.shape)) refuse(kOutputShapeChanges, before.shape, now.shape());
    if (now.dtype() != before.dtype) refuse(kOutputDtypeChanges, before.dtype, now.dtype());
    const auto elements = to_doubles(now);
    values.insert(values.end(), elements.begin(), elements.end());
  }
  return values;
}

}  // namespace moegrad::detail
