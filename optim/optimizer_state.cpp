// SPDX-License-Identifier: Apache-2.0
#include "optim/optimizer_state.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "framework/distributed/shard_spec.h"
#include "framework/runtime/error.h"
#include "framework/runtime/grad_mode.h"
#include "framework/tensor/fill.h"

namespace moegrad::optim {
namespace {

constexpr std::int64_t kMostSteps = std::int64_t{1} << 53;  // exact as a double

void check_loads_into(std::string_view subject, const std::string& name, const Tensor& given,
                      const Tensor& own) {
  check<UndefinedTensorError>(given.defined(), subject, ": '", name, "' must be a defined tensor");
  check<ShapeError>(given.shape() == own.shape(), subject, ": '", name, "' must be ", own.shape(),
                    ", got ", given.shape());
  check<DtypeError>(given.dtype() == own.dtype(), subject, ": '", name, "' must be ", own.dtype(),
                    ", got ", given.dtype());
  check_same_part(subject, name, given, own);
  if (given.dtype() != Dtype::kInt64) return;
  const Tensor counts = clone(given);
  for (const auto count : counts.data<std::int64_t>()) {
    check<ValueError>(0 <= count && count <= kMostSteps, subject, ": '", name,
                      "' must count steps, from 0 to 2^53, got ", count);
  }
}

}  // namespace

Tensor zero_state(const Tensor& parameter) {
  Tensor state = zeros_like(parameter);
  state.set_shard_spec(parameter.shard_spec());
  return state;
}

Tensor whole_state(const Tensor& parameter, const Shape& shape, Dtype dtype) {
  Tensor state = Tensor::zeros(shape, dtype);
  if (const auto& spec = parameter.shard_spec()) {
    state.set_shard_spec(std::make_shared<const ShardSpec>(whole_on_ranks_of(*spec, shape)));
  }
  return state;
}

void load_state(std::string_view subject, NamedTensors own, const NamedTensors& given) {
  for (const auto& [name, tensor] : given) {
    check(std::ranges::find(own, name, &NamedTensor::name) != own.end(), subject,
          ": unexpected key '", name, "'");
    check(std::ranges::count(given, name, &NamedTensor::name) == 1, subject, ": key '", name,
          "' is given twice");
  }
  std::vector<const Tensor*> sources;
  for (const auto& [name, tensor] : own) {
    const auto found = std::ranges::find(given, name, &NamedTensor::name);
    check(found != given.end(), subject, ": missing key '", name, "'");
    check_loads_into(subject, name, found->tensor, tensor);
    sources.push_back(&found->tensor);
  }
  const NoGradGuard no_grad;
  for (std::size_t i = 0; i < own.size(); ++i) copy_(own[i].tensor, *sources[i]);
}

}  // namespace moegrad::optim
