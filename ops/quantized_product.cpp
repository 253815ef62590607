// SPDX-License-Identifier: Apache-2.0
#include "ops/quantized_product.h"

#include <algorithm>

#include "framework/runtime/parallel_for.h"
#include "framework/tensor/fill.h"
#include "ops/copies.h"
#include "ops/kernels/dequantize.h"
#include "ops/nz.h"

namespace moegrad::ops {
namespace {

constexpr std::int64_t kExactTerms = 1024;
constexpr std::int64_t kElementsPerTask = 1 << 14;

template <class T>
Tensor dequantized_as(const Tensor& sums, const Tensor& bias, const Tensor& scale) {
  const auto n = sums.dim(1);
  Tensor y = Tensor::empty(sums.shape(), dtype_of<T>);
  const auto* const from = sums.data<std::int32_t>().data();
  const auto* const added = bias.defined() ? bias.data<std::int32_t>().data() : nullptr;
  const T* const factors = scale.data<T>().data();
  const std::int64_t step = scale.numel() > 1 ? 1 : 0;
  T* const to = y.mutable_data<T>().data();
  const auto rows_per_task = std::max<std::int64_t>(1, kElementsPerTask / n);
  parallel_for(sums.dim(0), rows_per_task, [=](std::int64_t begin, std::int64_t end) {
    kernels::dequantize(from + begin * n, added, factors, step, to + begin * n, end - begin, n);
  });
  return y;
}

}  // namespace

QuantizedMatrix::QuantizedMatrix(const Tensor& matrix) {
  const Tensor reals = to_dtype(matrix, Dtype::kBFloat16);
  for (std::int64_t k = 0; k < matrix.dim(0); k += kExactTerms) {
    const auto terms = std::min(kExactTerms, matrix.dim(0) - k);
    const Tensor run = Tensor::narrow(reals, 0, k, terms);
    runs_.push_back(stored_matrices(nd_to_nz(run), 1, /*transposed=*/false)[0]);
  }
}

void QuantizedMatrix::multiply(const Tensor& x, Tensor& sums) const {
  Tensor product = Tensor::empty(sums.shape(), Dtype::kFloat32);
  const Tensor reals = to_dtype(x, Dtype::kBFloat16);
  std::int64_t k = 0;
  for (const auto& run : runs_) {
    multiply_rows(contiguous(Tensor::narrow(reals, 1, k, run.k)), run, product);
    const float* const from = product.data<float>().data();
    auto* const to = sums.mutable_data<std::int32_t>().data();
    parallel_for(sums.numel(), kElementsPerTask, [=](std::int64_t begin, std::int64_t end) {
      kernels::add_whole(from + begin, to + begin, end - begin, k > 0);
    });
    k += run.k;
  }
}

Tensor dequantized(const Tensor& sums, const Tensor& bias, const Tensor& scale) {
  if (scale.dtype() == Dtype::kBFloat16) return dequantized_as<BFloat16>(sums, bias, scale);
  return dequantized_as<float>(sums, bias, scale);
}

}  // namespace moegrad::ops
