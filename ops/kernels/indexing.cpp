// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/indexing.h"

#include <algorithm>
#include <cstring>

#include "framework/runtime/parallel_for.h"
#include "ops/kernels/for_rows.h"
#include "ops/kernels/gather_rows.h"

namespace moegrad::kernels {
namespace {

// The elements as blocks: indices of one block reach only one part of the table, since dimensions
// before `dim` come from the position itself.
class Blocks {
 public:
  explicit Blocks(const ElementIndex& where) : where_(where) {
    for (std::int64_t d = 0; d < where.dim; ++d) blocks_ *= where.shape[d];
    for (auto d = where.dim; d < where.shape.ndim(); ++d) size_ *= where.shape[d];
  }

  std::int64_t blocks() const { return blocks_; }
  std::int64_t size() const { return size_; }

  /// Calls body(i, at) for each element i of a block, in ascending order.
  template <class Body>
  void for_each(std::int64_t block, const Body& body) const {
    const auto& [shape, strides, dim, indices] = where_;
    std::int64_t begin = 0;
    auto rest = block;
    for (auto d = dim - 1; d >= 0; --d) {
      begin += rest % shape[d] * strides[d];
      rest /= shape[d];
    }
    for (std::int64_t k = 0; k < size_; ++k) {
      const auto i = block * size_ + k;
      auto at = begin + indices[i] * strides[dim];
      rest = k;
      for (auto d = shape.ndim() - 1; d > dim; --d) {
        at += rest % shape[d] * strides[d];
        rest /= shape[d];
      }
      body(i, at);
    }
  }

 private:
  const ElementIndex& where_;
  std::int64_t blocks_ = 1;
  std::int64_t size_ = 1;
};

}  // namespace

void gather_slices(const std::byte* table, const std::int64_t* indices, std::byte* out,
                   std::int64_t outer, std::int64_t size, std::int64_t n, std::int64_t inner) {
  for (std::int64_t o = 0; o < outer; ++o) {
    gather_rows(table + o * size * inner, indices, out + o * n * inner, n, inner);
  }
}

template <class T>
void scatter_add_slices(const T* slices, const std::int64_t* indices, T* table, std::int64_t outer,
                        std::int64_t size, std::int64_t n, std::int64_t inner) {
  for (std::int64_t o = 0; o < outer; ++o) {
    scatter_add_rows(slices + o * n * inner, indices, table + o * size * inner, n, inner);
  }
}

void gather_elements(const std::byte* table, const ElementIndex& where, std::byte* out,
                     std::int64_t element) {
  const Blocks blocks(where);
  for_rows(blocks.blocks(), blocks.size(), [&](std::int64_t block) {
    blocks.for_each(block, [&](std::int64_t i, std::int64_t at) {
      std::memcpy(out + i * element, table + at * element, static_cast<std::size_t>(element));
    });
  });
}

template <class T>
void scatter_add_elements(const T* values, const ElementIndex& where, T* table) {
  const Blocks blocks(where);
  for_rows(blocks.blocks(), blocks.size(), [&](std::int64_t block) {
    blocks.for_each(block, [&](std::int64_t i, std::int64_t at) { table[at] += values[i]; });
  });
}

void flip(const std::byte* in, std::byte* out, const Shape& shape, unsigned flipped,
          std::int64_t element) {
  const auto strides = row_major_strides(shape);
  const auto width = shape.ndim() == 0 ? 1 : shape[-1];
  const auto rows = width == 0 ? 0 : shape.numel() / width;
  for_rows(rows, width, [&](std::int64_t row) {
    std::int64_t begin = 0;
    auto rest = row;
    for (auto d = shape.ndim() - 2; d >= 0; --d) {
      const auto i = rest % shape[d];
      rest /= shape[d];
      begin += ((flipped >> d & 1U) != 0 ? shape[d] - 1 - i : i) * strides[d];
    }
    const bool reversed = shape.ndim() > 0 && (flipped >> (shape.ndim() - 1) & 1U) != 0;
    for (std::int64_t i = 0; i < width; ++i) {
      const auto from = begin + (reversed ? width - 1 - i : i);
      std::memcpy(out + (row * width + i) * element, in + from * element,
                  static_cast<std::size_t>(element));
    }
  });
}

template void scatter_add_slices(const float*, const std::int64_t*, float*, std::int64_t,
                                 std::int64_t, std::int64_t, std::int64_t);
template void scatter_add_slices(const double*, const std::int64_t*, double*, std::int64_t,
                                 std::int64_t, std::int64_t, std::int64_t);
template void scatter_add_elements(const float*, const ElementIndex&, float*);
template void scatter_add_elements(const double*, const ElementIndex&, double*);

}  // namespace moegrad::kernels
