// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "framework/tensor/shape.h"

namespace moegrad {

/// The matrices [out, in] that make up a two-dimensional parameter, such as the experts of a layer
/// that are stacked in one. Its rows are `blocks` equal blocks, one per expert. Each block has
/// `parts` matrices along out, such as gate and up, and stores them
///
///     one below the other, as they are      [blocks * parts * out, in]
///     or side by side, transposed           [blocks * in, parts * out]
///
/// The default is one matrix as it is.
struct StackedMatrices {
  std::int64_t blocks = 1;
  std::int64_t parts = 1;
  bool transposed = false;

  std::int64_t count() const { return blocks * parts; }
};

/// Where one of the matrices is stored: element (i, j) is at offset + i row_step + j column_step of
/// the row-major parameter.
struct StoredMatrix {
  std::int64_t rows = 0;     // out
  std::int64_t columns = 0;  // in
  std::int64_t offset = 0;
  std::int64_t row_step = 0;
  std::int64_t column_step = 0;
};

/// Matrix `index` in [0, stacked.count()): block index / parts, part index % parts, of a parameter
/// of this shape, which stacked divides.
inline StoredMatrix stored_matrix(const StackedMatrices& stacked, const Shape& shape,
                                  std::int64_t index) {
  const auto block = index / stacked.parts, part = index % stacked.parts;
  const auto stored_rows = shape[0] / stacked.blocks, stored_columns = shape[1];
  const auto block_offset = block * stored_rows * stored_columns;
  if (stacked.transposed) {
    const auto out = stored_columns / stacked.parts;
    return {.rows = out,
            .columns = stored_rows,
            .offset = block_offset + part * out,
            .row_step = 1,
            .column_step = stored_columns};
  }
  const auto out = stored_rows / stacked.parts;
  return {.rows = out,
          .columns = stored_columns,
          .offset = block_offset + part * out * stored_columns,
          .row_step = stored_columns,
          .column_step = 1};
}

}  // namespace moegrad
