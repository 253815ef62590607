// SPDX-License-Identifier: Apache-2.0
// Shapes: T tokens.
#include "ops/jitter.h"

#include <string_view>

#include "framework/autograd/function.h"
#include "framework/tensor/fill.h"
#include "ops/checks.h"
#include "ops/copies.h"
#include "ops/kernels/dropout.h"
#include "ops/row_ids.h"

namespace moegrad::ops {
namespace {

// dL/dx = u dL/dy: the same function of another tensor.
class Jitter final : public Function {
 public:
  Jitter(double noise, const Random& random) : noise_(noise), random_(random) {}

  std::string_view name() const override { return "jitter"; }

  Tensor forward(const Tensor& x, const Tensor& ids) {
    ids_ = ids;
    return scale(x, ids);
  }

  TensorList backward(const TensorList& grads, InputMask /*needs*/) override {
    return {scale(contiguous(grads[0]), ids_.unpack()), Tensor()};
  }

 private:
  Tensor scale(const Tensor& x, const Tensor& ids) const {
    Tensor y = empty_like(x);
    const auto rows = x.dim(0);
    dispatch_floating(x.dtype(), [&]<class T>() {
      kernels::jitter<T>(x.data<T>().data(), ids.data<std::int64_t>().data(), random_, noise_,
                         y.mutable_data<T>().data(), rows, rows == 0 ? 0 : x.numel() / rows);
    });
    return y;
  }

  double noise_;
  Random random_;
  SavedTensor ids_{*this};
};

}  // namespace

Tensor jitter(const Tensor& x, double noise, const Random& random, const Tensor& ids) {
  check_operands("jitter", x);
  check<ShapeError>(x.ndim() >= 1, "jitter: x must be [T, ...], got ", x.shape());
  check<ValueError>(0 <= noise && noise < 1, "jitter: noise must be in [0, 1), got ", noise);
  check_floating("jitter", x);
  const Tensor rows = row_ids("jitter", ids, x.dim(0));
  if (noise == 0) return x;
  return apply<Jitter>(made_with(noise, random), contiguous(x), rows);
}

}  // namespace moegrad::ops
