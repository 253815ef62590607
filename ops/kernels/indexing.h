// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "framework/tensor/shape.h"

namespace moegrad::kernels {

/// A table seen as [outer, size, inner] and n slices of it, as [outer, n, inner]:
/// out[o, i, :] = table[o, indices[i], :], with `inner` in bytes of any type.
void gather_slices(const std::byte* table, const std::int64_t* indices, std::byte* out,
                   std::int64_t outer, std::int64_t size, std::int64_t n, std::int64_t inner);

/// table[o, indices[i], :] += slices[o, i, :] for i < n, in ascending i.
template <class T>
void scatter_add_slices(const T* slices, const std::int64_t* indices, T* table, std::int64_t outer,
                        std::int64_t size, std::int64_t n, std::int64_t inner);

/// Where elements of `shape`, in row-major order, stand in a table of other strides, if dimension
/// `dim` comes from `indices`, one for each element.
struct ElementIndex {
  Shape shape;
  Shape table_strides;
  std::int64_t dim = 0;
  const std::int64_t* indices = nullptr;
};

/// out[i] = table[where(i)], elements of `element` bytes.
void gather_elements(const std::byte* table, const ElementIndex& where, std::byte* out,
                     std::int64_t element);

/// table[where(i)] += values[i], in ascending i.
template <class T>
void scatter_add_elements(const T* values, const ElementIndex& where, T* table);

/// out[i] = in[i counted from the end in the dimensions that are flipped], elements of `element`
/// bytes; bit d of `flipped` is dimension d.
void flip(const std::byte* in, std::byte* out, const Shape& shape, unsigned flipped,
          std::int64_t element);

}  // namespace moegrad::kernels
