// SPDX-License-Identifier: Apache-2.0
#include "ops/embedding.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <string_view>
#include <type_traits>
#include <vector>

#include "framework/autograd/function.h"
#include "framework/tensor/dispatch_any.h"
#include "ops/checks.h"
#include "ops/copies.h"
#include "ops/kernels/gather_rows.h"

namespace moegrad::ops {
namespace {

// dL/dweight[v] = sum over the positions i with ids[i] = v of dL/dy[i], by halving over positions;
// for a bfloat16 weight in float32.
class Embedding final : public Function {
 public:
  std::string_view name() const override { return "embedding"; }
  bool takes_wide_gradients() const override { return true; }

  Tensor forward(const Tensor& ids, const Tensor& weight) {
    ids_ = ids;
    weight_shape_ = weight.shape();
    Shape shape = ids.shape();
    shape.push_back(weight.dim(1));
    Tensor output = Tensor::empty(shape, weight.dtype());
    kernels::gather_rows(weight.bytes().data(), ids.data<std::int64_t>().data(),
                         output.mutable_bytes().data(), ids.numel(),
                         weight.dim(1) * size_of(weight.dtype()));
    return output;
  }

  TensorList backward(const TensorList& grads, InputMask /*needs*/) override {
    const Tensor grad = contiguous(grads[0]), ids = ids_.unpack();
    Tensor grad_weight = Tensor::zeros(weight_shape_, arithmetic_dtype(grad.dtype()));
    const auto values = ids.data<std::int64_t>();
    std::vector<std::int64_t> by_id(values.size());
    std::iota(by_id.begin(), by_id.end(), 0);
    std::ranges::stable_sort(by_id, {},
                             [&](std::int64_t i) { return values[static_cast<std::size_t>(i)]; });
    dispatch_reals(grad.dtype(), [&]<class T>() {
      using Sum = std::conditional_t<std::is_same_v<T, BFloat16>, float, T>;
      kernels::sum_rows_by_index<T, Sum>(grad.data<T>().data(), values.data(), by_id,
                                         grad_weight.mutable_data<Sum>().data(), weight_shape_[1]);
    });
    return {Tensor(), grad_weight};
  }

 private:
  Shape weight_shape_;
  SavedTensor ids_{*this};
};

}  // namespace

Tensor embedding(const Tensor& ids, const Tensor& weight) {
  check_operands("embedding", ids, weight);
  check<ShapeError>(weight.ndim() == 2, "embedding: weight must be [V, H], got ", weight.shape());
  check<DtypeError>(ids.dtype() == Dtype::kInt64, "embedding: ids must be int64, got ",
                    ids.dtype());
  check_reals("embedding", "weight", weight);
  const Tensor positions = contiguous(ids);
  check_indices("embedding", "token id", positions, weight.dim(0));
  return apply<Embedding>(positions, contiguous(weight));
}

}  // namespace moegrad::ops
