// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/find_nan.h"

#include <algorithm>
#include <cmath>

#include "framework/tensor/dispatch_any.h"

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

std::optional<std::int64_t> find_nan(std::span<const std::span<const std::byte>> parts,
                                     Dtype dtype) {
  if (!holds_reals(dtype)) return std::nullopt;
  std::int64_t begin = 0;
  for (const auto part : parts) {
    std::optional<std::int64_t> index;
    dispatch_any(dtype, [&]<class T>() { index = find_nan_as<T>(part); });
    if (index) return begin + *index;
    begin += std::ssize(part) / size_of(dtype);
  }
  return std::nullopt;
}

}  // namespace moegrad
