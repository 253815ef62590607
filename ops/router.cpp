// SPDX-License-Identifier: Apache-2.0
// Shapes: T tokens, E experts, K experts per token.
#include "ops/router.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <span>
#include <string_view>

#include "framework/autograd/function.h"
#include "framework/tensor/fill.h"
#include "ops/checks.h"
#include "ops/copies.h"
#include "ops/elementwise.h"
#include "ops/indexing.h"
#include "ops/kernels/topk_softmax.h"
#include "ops/reduce.h"

namespace moegrad::ops {
namespace {

// Does what a softmax over all experts would do: if a row has NaN or inf, or only -inf, all its
// weights are NaN, even if none of these logits was chosen.
template <class T>
void spread_nan(std::span<const T> logits, std::int64_t experts, std::span<T> weights) {
  const auto at = kernels::first_not_finite(logits.data(), std::ssize(logits));
  if (at == std::ssize(logits)) return;
  const auto e = static_cast<std::size_t>(experts);
  const auto k = weights.size() / (logits.size() / e);
  for (auto token = static_cast<std::size_t>(at) / e; token * e < logits.size(); ++token) {
    bool sound = false;
    for (const T logit : logits.subspan(token * e, e)) {
      sound = sound || std::isfinite(logit);
      if (std::isfinite(logit) || logit < T{0}) continue;
      sound = false;
      break;
    }
    if (!sound)
      std::ranges::fill(weights.subspan(token * k, k), std::numeric_limits<T>::quiet_NaN());
  }
}

/// The experts to take instead of chosen ones, contiguous; undefined if none are given.
Tensor checked_replay(std::string_view op, const Tensor& replay_indices, const Tensor& logits,
                      std::int64_t k) {
  if (!replay_indices.defined()) return {};
  check<ShapeError>(replay_indices.shape() == Shape{logits.dim(0), k}, op,
                    ": replay_indices must be ", Shape{logits.dim(0), k}, " for logits ",
                    logits.shape(), " and k = ", k, ", got ", replay_indices.shape());
  check<DtypeError>(replay_indices.dtype() == Dtype::kInt64, op,
                    ": replay_indices must be int64, got ", replay_indices.dtype());
  const Tensor indices = contiguous(replay_indices);
  const auto experts = logits.dim(1);
  const auto values = indices.data<std::int64_t>();
  const auto row = static_cast<std::size_t>(k);
  for (std::size_t slot = 0; slot < values.size(); ++slot) {
    const auto token = slot / row;
    const auto earlier = values.subspan(token * row, slot % row);
    check<ValueError>(0 <= values[slot] && values[slot] < experts, op,
                      ": replayed expert must be in [0, ", experts, "), got ", values[slot],
                      " at token ", token);
    check<ValueError>(std::ranges::find(earlier, values[slot]) == earlier.end(), op,
                      ": replayed experts of a token must be distinct, got ", values[slot],
                      " twice at token ", token);
  }
  return indices;
}

// With S the chosen experts, w their weights, g = dL/dw and [.] one or zero:
//     not normalised:  w_j = p_j,          dL/dlogit_i = p_i * ([i in S] g_i - <g, w>)
//     normalised:      w_j = p_j / sum p,  dL/dlogit_i = [i in S] w_i * (g_i - <g, w>)
// In the second case the softmax over all experts adds -p_i * sum_j w_j (g_j - <g, w>). That is
// zero because the weights sum to one, so no gradient reaches the experts that were not chosen.
class TopKSoftmax final : public Function {
 public:
  TopKSoftmax(std::int64_t k, bool normalize) : k_(k), normalize_(normalize) {}

  std::string_view name() const override { return "topk_softmax"; }

  std::array<Tensor, 2> forward(const Tensor& logits, const Tensor& replay_indices) {
    const auto tokens = logits.dim(0);
    experts_ = logits.dim(1);
    const bool choose = !replay_indices.defined();
    Tensor weights = Tensor::empty({tokens, k_}, logits.dtype());  // [T, K]
    Tensor indices = choose ? Tensor::empty({tokens, k_}, Dtype::kInt64) : replay_indices;
    dispatch_floating(logits.dtype(), [&]<class T>() {
      const T* x = logits.data<T>().data();
      if (choose) {
        kernels::topk_rows<T>(x, indices.mutable_data<std::int64_t>().data(), tokens, experts_, k_);
      }
      const auto* chosen = indices.data<std::int64_t>().data();
      T* w = weights.mutable_data<T>().data();
      if (normalize_) {
        kernels::chosen_softmax<T>(x, chosen, w, tokens, experts_, k_);
      } else {
        kernels::softmax_at_chosen<T>(x, chosen, w, tokens, experts_, k_);
      }
      spread_nan<T>(logits.data<T>(), experts_, weights.mutable_data<T>());
    });
    if (!normalize_) logits_ = logits;
    weights_ = weights;
    indices_ = indices;
    return {weights, indices};
  }

  TensorList backward(const TensorList& grads, InputMask /*needs*/) override {
    const Tensor grad = contiguous(grads[0]);
    const Tensor weights = weights_.unpack(), indices = indices_.unpack();
    const auto tokens = weights.dim(0);
    Tensor grad_logits = Tensor::empty({tokens, experts_}, weights.dtype());  // [T, E]
    dispatch_floating(weights.dtype(), [&]<class T>() {
      const T* g = grad.data<T>().data();
      const T* w = weights.data<T>().data();
      const auto* chosen = indices.data<std::int64_t>().data();
      T* out = grad_logits.mutable_data<T>().data();
      if (normalize_) {
        kernels::chosen_softmax_backward<T>(g, w, chosen, out, tokens, experts_, k_);
      } else {
        const Tensor logits = logits_.unpack();
        kernels::softmax_at_chosen_backward<T>(g, w, logits.data<T>().data(), chosen, out, tokens,
                                               experts_, k_);
      }
    });
    return {grad_logits, Tensor()};
  }

 private:
  std::int64_t k_;
  bool normalize_;
  std::int64_t experts_ = 0;
  SavedTensor logits_{*this}, weights_{*this}, indices_{*this};
};

}  // namespace

TopKResult topk_softmax(const Tensor& logits, std::int64_t k, bool normalize,
                        const Tensor& replay_indices) {
  check_operands("topk_softmax", logits);
  check<ShapeError>(logits.ndim() == 2, "topk_softmax: logits must be [T, E], got ",
                    logits.shape());
  check<ValueError>(1 <= k && k <= logits.dim(1), "topk_softmax: k must be in [1, ", logits.dim(1),
                    "] for logits ", logits.shape(), ", got ", k);
  check_floating("topk_softmax", "logits", logits);
  const Tensor replay = checked_replay("topk_softmax", replay_indices, logits, k);
  const auto outputs = apply<TopKSoftmax>(made_with(k, normalize), contiguous(logits), replay);
  return {.weights = outputs[0], .indices = outputs[1]};
}

TopKResult topk_sigmoid(const Tensor& logits, const ExpertChoice& choice, bool normalize,
                        const Tensor& bias, const Tensor& replay_indices) {
  constexpr double kSmall = 1e-20;  // a token whose scores are all zero has weights of zero
  check_operands("topk_sigmoid", logits);
  check<ShapeError>(logits.ndim() == 2, "topk_sigmoid: logits must be [T, E], got ",
                    logits.shape());
  check_floating("topk_sigmoid", "logits", logits);
  check_expert_choice("topk_sigmoid", choice, logits.dim(1));
  check_choice_bias("topk_sigmoid", logits, bias);
  const Tensor replay = checked_replay("topk_sigmoid", replay_indices, logits, choice.k);
  const Tensor scores = sigmoid(logits);  // [T, E]
  const Tensor indices = replay.defined() ? replay : choose_experts(scores, choice, bias);
  Tensor weights = gather(scores, 1, indices);  // [T, K]
  if (normalize) weights = weights / (sum(weights, 1, /*keepdim=*/true) + kSmall);
  return {.weights = weights, .indices = indices};
}

}  // namespace moegrad::ops
