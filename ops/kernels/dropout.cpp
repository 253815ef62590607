// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/dropout.h"

#include "ops/kernels/dropout_words.h"
#include "ops/kernels/for_rows.h"

namespace moegrad::kernels {
namespace {

// f(x, word) for each element of [rows, width].
template <class T, class F>
void for_each_word(const T* x, const std::int64_t* ids, const Random& random, T* y,
                   std::int64_t rows, std::int64_t width, const F& f) {
  const auto draws = static_cast<std::uint64_t>((width + 3) / 4);
  for_rows(rows, 8 * width, [&](std::int64_t r) {  // a draw costs as much as many elements
    auto draw = static_cast<std::uint64_t>(ids[r]) * draws;
    const T* in = x + r * width;
    T* out = y + r * width;
    for (std::int64_t c = 0; c < width; c += 4) {
      const auto words = random.words(draw++);
      for (std::int64_t i = 0; i < 4 && c + i < width; ++i) {
        out[c + i] = f(in[c + i], words[static_cast<std::size_t>(i)]);
      }
    }
  });
}

}  // namespace

template <class T>
void dropout(const T* x, const std::int64_t* ids, const Random& random, double p, T* y,
             std::int64_t rows, std::int64_t width) {
  const auto threshold = dropout_threshold(p);
  const auto scale = static_cast<T>(1.0 / (1.0 - p));
  for_each_word(x, ids, random, y, rows, width, [=](T value, std::uint32_t word) {
    return word >= threshold ? value * scale : T{0};
  });
}

template <class T>
void jitter(const T* x, const std::int64_t* ids, const Random& random, double noise, T* y,
            std::int64_t rows, std::int64_t width) {
  for_each_word(x, ids, random, y, rows, width, [=](T value, std::uint32_t word) {
    return value * static_cast<T>(1.0 + noise * (static_cast<double>(word) * 0x1p-31 - 1.0));
  });
}

template <class T>
void dropout_pairs(const T* x, const std::int64_t* ids, const Random& random, double p, T* y,
                   std::int64_t n) {
  const auto threshold = dropout_threshold(p);
  const auto scale = static_cast<T>(1.0 / (1.0 - p));
  for_rows(n, 8 * n, [&](std::int64_t q) {
    for_each_word_of_pairs(random, ids[q], ids, n, [&](std::int64_t k, std::uint32_t word) {
      y[q * n + k] = word >= threshold ? x[q * n + k] * scale : T{0};
    });
  });
}

template void dropout(const float*, const std::int64_t*, const Random&, double, float*,
                      std::int64_t, std::int64_t);
template void dropout(const double*, const std::int64_t*, const Random&, double, double*,
                      std::int64_t, std::int64_t);
template void jitter(const float*, const std::int64_t*, const Random&, double, float*, std::int64_t,
                     std::int64_t);
template void jitter(const double*, const std::int64_t*, const Random&, double, double*,
                     std::int64_t, std::int64_t);
template void dropout_pairs(const float*, const std::int64_t*, const Random&, double, float*,
                            std::int64_t);
template void dropout_pairs(const double*, const std::int64_t*, const Random&, double, double*,
                            std::int64_t);

}  // namespace moegrad::kernels
