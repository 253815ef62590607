// SPDX-License-Identifier: Apache-2.0
#include "framework/tensor/box.h"

#include <algorithm>
#include <cstring>

namespace moegrad {
namespace {

std::int64_t end_of(const Box& box, std::int64_t dim) { return box.begin[dim] + box.shape[dim]; }

// Copies the elements that both boxes have in dimension `dim` and in all later dimensions.
void copy_from(std::int64_t dim, const Box& source, const std::byte* from, const Box& target,
               std::byte* to, std::int64_t size) {
  const auto dims = source.shape.ndim();
  const auto begin = std::max(source.begin[dim], target.begin[dim]);
  const auto count = std::min(end_of(source, dim), end_of(target, dim)) - begin;
  std::int64_t from_row = size, to_row = size;
  bool alike = true;  // rows of both have the same elements
  for (auto i = dim + 1; i < dims; ++i) {
    from_row *= source.shape[i];
    to_row *= target.shape[i];
    alike = alike && source.begin[i] == target.begin[i] && source.shape[i] == target.shape[i];
  }
  from += (begin - source.begin[dim]) * from_row;
  to += (begin - target.begin[dim]) * to_row;
  if (alike) {
    std::memcpy(to, from, static_cast<std::size_t>(count * to_row));
    return;
  }
  for (std::int64_t i = 0; i < count; ++i, from += from_row, to += to_row) {
    copy_from(dim + 1, source, from, target, to, size);
  }
}

}  // namespace

Box whole_box(const Shape& shape) {
  Box box{.shape = shape};
  for (std::int64_t i = 0; i < shape.ndim(); ++i) box.begin.push_back(0);
  return box;
}

bool overlap(const Box& a, const Box& b) {
  for (std::int64_t i = 0; i < a.shape.ndim(); ++i) {
    if (std::max(a.begin[i], b.begin[i]) >= std::min(end_of(a, i), end_of(b, i))) return false;
  }
  return true;
}

void copy_overlap(const Box& source, const std::byte* from, const Box& target, std::byte* to,
                  std::int64_t size) {
  if (!overlap(source, target)) return;
  if (source.shape.ndim() > 0) return copy_from(0, source, from, target, to, size);
  std::memcpy(to, from, static_cast<std::size_t>(size));
}

}  // namespace moegrad
