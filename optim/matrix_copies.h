// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "framework/runtime/parallel_for.h"
#include "framework/tensor/stacked_matrices.h"

namespace moegrad::optim {

/// Calls visit(stored element, row-major element) for every element of a matrix, on the rank's
/// threads: indices into the stored parameter and into the matrix itself.
template <class Visit>
void for_each_stored(const StoredMatrix& matrix, const Visit& visit) {
  constexpr std::int64_t kRows = 16;
  parallel_for(matrix.rows, kRows, [&](std::int64_t begin, std::int64_t end) {
    for (auto i = begin; i < end; ++i) {
      const auto stored = matrix.offset + i * matrix.row_step;
      for (std::int64_t j = 0; j < matrix.columns; ++j) {
        visit(stored + j * matrix.column_step, i * matrix.columns + j);
      }
    }
  });
}

/// matrix [rows, columns] = that matrix of a stored parameter.
template <class T>
void take_matrix(const StoredMatrix& place, const T* stored, T* matrix) {
  for_each_stored(place, [&](std::int64_t from, std::int64_t to) { matrix[to] = stored[from]; });
}

/// The other way round.
template <class T>
void put_matrix(const StoredMatrix& place, const T* matrix, T* stored) {
  for_each_stored(place, [&](std::int64_t to, std::int64_t from) { stored[to] = matrix[from]; });
}

}  // namespace moegrad::optim
