// SPDX-License-Identifier: Apache-2.0
// Shapes: X [m, n] with m <= n.
#include "optim/newton_schulz.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <utility>

#include "framework/runtime/parallel_for.h"
#include "framework/tensor/tensor.h"

namespace moegrad::optim {
namespace {

constexpr std::int64_t kRowsOfTask = 4;

/// c [m, n] = scale_c c + a [m, k] b [k, n]. Each element adds its terms in the order of k.
template <class T>
void multiply_add(const T* a, const T* b, T* c, std::int64_t m, std::int64_t k, std::int64_t n,
                  T scale_c) {
  parallel_for(m, kRowsOfTask, [&](std::int64_t begin, std::int64_t end) {
    constexpr std::int64_t kColumns = 1024;  // of b, so that what is read again stays in the cache
    for (std::int64_t j0 = 0; j0 < n; j0 += kColumns) {
      const auto width = std::min(kColumns, n - j0);
      for (auto i = begin; i < end; ++i) {
        T* const __restrict row = c + i * n + j0;
        for (std::int64_t j = 0; j < width; ++j) row[j] = scale_c == T{0} ? T{0} : scale_c * row[j];
      }
      for (std::int64_t l = 0; l < k; ++l) {
        const T* const __restrict other = b + l * n + j0;
        for (auto i = begin; i < end; ++i) {
          const T factor = a[i * k + l];
          T* const __restrict row = c + i * n + j0;
          for (std::int64_t j = 0; j < width; ++j) row[j] += factor * other[j];
        }
      }
    }
  });
}

/// to [columns, rows] = from [rows, columns]^T
template <class T>
void transpose(const T* from, T* to, std::int64_t rows, std::int64_t columns) {
  constexpr std::int64_t kTile = 32;
  parallel_for(columns, kTile, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i0 = 0; i0 < rows; i0 += kTile) {
      const auto stop = std::min(rows, i0 + kTile);
      for (auto j = begin; j < end; ++j) {
        for (auto i = i0; i < stop; ++i) to[j * rows + i] = from[i * columns + j];
      }
    }
  });
}

/// sqrt(sum of x^2), in float64, from the first element to the last.
template <class T>
double frobenius_norm(std::span<const T> values) {
  double sum = 0;
  for (const T value : values) sum += static_cast<double>(value) * static_cast<double>(value);
  return std::sqrt(sum);
}

}  // namespace

template <class T>
void orthogonalize(T* matrix, std::int64_t rows, std::int64_t columns, double eps) {
  const auto m = std::min(rows, columns), n = std::max(rows, columns);
  if (m == 0) return;
  const bool tall = rows > columns;
  const auto buffer = [](std::int64_t height, std::int64_t width) {
    return Tensor::empty({height, width}, dtype_of<T>);
  };
  std::array<Tensor, 4> buffers = {buffer(m, n), buffer(m, n), buffer(m, m), buffer(m, m)};
  auto x = buffers[0].mutable_data<T>(), other = buffers[1].mutable_data<T>();
  const auto gram = buffers[2].mutable_data<T>(), polynomial = buffers[3].mutable_data<T>();
  if (tall) {
    transpose(matrix, x.data(), rows, columns);
  } else {
    std::copy(matrix, matrix + m * n, x.begin());
  }
  const auto norm = static_cast<T>(std::max(frobenius_norm<T>(x), eps));
  for (auto& value : x) value /= norm;
  const auto a = static_cast<T>(kNewtonSchulz[0]), b = static_cast<T>(kNewtonSchulz[1]),
             c = static_cast<T>(kNewtonSchulz[2]);
  for (int step = 0; step < kNewtonSchulzSteps; ++step) {
    transpose(x.data(), other.data(), m, n);                           // X^T [n, m]
    multiply_add(x.data(), other.data(), gram.data(), m, n, m, T{0});  // A = X X^T
    multiply_add(gram.data(), gram.data(), polynomial.data(), m, m, m, T{0});
    for (std::size_t i = 0; i < gram.size(); ++i) {
      polynomial[i] = b * gram[i] + c * polynomial[i];  // b A + c A^2
    }
    std::ranges::copy(x, other.begin());
    multiply_add(polynomial.data(), x.data(), other.data(), m, m, n, a);
    std::swap(x, other);
  }
  if (tall) {
    transpose(x.data(), matrix, m, n);
  } else {
    std::ranges::copy(x, matrix);
  }
}

template void orthogonalize<float>(float*, std::int64_t, std::int64_t, double);
template void orthogonalize<double>(double*, std::int64_t, std::int64_t, double);

}  // namespace moegrad::optim
