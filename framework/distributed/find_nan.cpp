// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/find_nan.h"

#include <algorithm>
#include <cmath>

namespace moegrad {
namespace {

template <class T>
std::optional<std::int64_t> find_nan_as(std::span<const std::byte> values) {
  const std::span elements(reinterpret_cast<const T*>(values.data()), values.size() / sizeof(T));
  const auto found = std::ranges::find_if(
      elements, [](T value) { return std::isnan(static_cast<double>(value)); });
  if (found == elements.end()) return std::nullopt;
  return found - elements.begin();
}

}  // namespace

std::optional<std::int64_t> find_nan(std::span<const std::byte> values, Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat32:
      return find_nan_as<float>(values);
    case Dtype::kFloat64:
      return find_nan_as<double>(values);
    case Dtype::kBFloat16:
      return find_nan_as<BFloat16>(values);
    case Dtype::kInt64:
    case Dtype::kBool:
      break;
  }
  return std::nullopt;
}

std::optional<std::int64_t> find_nan(std::span<const std::span<const std::byte>> parts,
                                     Dtype dtype) {
  std::int64_t begin = 0;
  for (const auto part : parts) {
    if (const auto index = find_nan(part, dtype)) return begin + *index;
    begin += std::ssize(part) / size_of(dtype);
  }
  return std::nullopt;
}

}  // namespace moegrad
