// SPDX-License-Identifier: Apache-2.0
// Shapes: T tokens, E experts, K experts per token.
#include "ops/aux_loss.h"

#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "framework/autograd/function.h"
#include "framework/tensor/fill.h"
#include "ops/checks.h"
#include "ops/copies.h"
#include "ops/data_or_null.h"
#include "ops/elementwise.h"
#include "ops/kernels/aux_loss.h"

namespace moegrad::ops {
namespace {

template <class T>
double sum_in_order(const Tensor& x) {
  double total = 0;
  for (const auto value : x.data<T>()) total += static_cast<double>(value);
  return total;
}

// One layer's share of the loss: scale * sum_t mask_t <load, p_t>, p_t = softmax(logits_t), where
// the load of the experts is a constant. With g = dL/dshare:
//     dL/dlogits[t, e] = g * scale * mask_t * p[t, e] * (load_e - <load, p_t>)
class BalanceShare final : public Function {
 public:
  BalanceShare(std::string_view op, double scale) : op_(op), scale_(scale) {}

  std::string_view name() const override { return op_; }

  Tensor forward(const Tensor& logits, const Tensor& load, const Tensor& mask) {
    Tensor shares = Tensor::empty({logits.dim(0)}, logits.dtype());  // [T]
    double total = 0;
    dispatch_floating(logits.dtype(), [&]<class T>() {
      kernels::expected_load<T>(logits.data<T>().data(), load.data<T>().data(),
                                data_or_null<T>(mask), shares.mutable_data<T>().data(),
                                logits.dim(0), logits.dim(1));
      total = sum_in_order<T>(shares);
    });
    logits_ = logits;
    load_ = load;
    mask_ = mask;
    return scalar(total * scale_, logits.dtype());
  }

  TensorList backward(const TensorList& grads, InputMask /*needs*/) override {
    const Tensor logits = logits_.unpack(), load = load_.unpack(), mask = mask_.unpack();
    const double scale = grads[0].item() * scale_;
    Tensor grad_logits = empty_like(logits);  // [T, E]
    dispatch_floating(logits.dtype(), [&]<class T>() {
      kernels::expected_load_backward<T>(static_cast<T>(scale), logits.data<T>().data(),
                                         load.data<T>().data(), data_or_null<T>(mask),
                                         grad_logits.mutable_data<T>().data(), logits.dim(0),
                                         logits.dim(1));
    });
    return {grad_logits, Tensor(), Tensor()};
  }

 private:
  std::string_view op_;  // the one that a user has called
  double scale_;
  SavedTensor logits_{*this}, load_{*this}, mask_{*this};
};

// With lse = logsumexp(logits_t) and g = dL/dloss:
//     dL/dlogits[t, e] = g * 2 * lse / T * exp(logits[t, e] - lse)
class ZLoss final : public Function {
 public:
  std::string_view name() const override { return "z_loss"; }

  Tensor forward(const Tensor& logits) {
    Tensor logsumexp = Tensor::empty({logits.dim(0)}, logits.dtype());  // [T]
    double total = 0;
    dispatch_floating(logits.dtype(), [&]<class T>() {
      kernels::logsumexp<T>(logits.data<T>().data(), logsumexp.mutable_data<T>().data(),
                            logits.dim(0), logits.dim(1));
      for (const double value : logsumexp.data<T>()) total += value * value;
    });
    logits_ = logits;
    logsumexp_ = logsumexp;
    const auto tokens = static_cast<double>(logits.dim(0));
    return scalar(tokens > 0 ? total / tokens : 0.0, logits.dtype());
  }

  TensorList backward(const TensorList& grads, InputMask /*needs*/) override {
    const Tensor logits = logits_.unpack(), logsumexp = logsumexp_.unpack();
    const double scale = 2 * grads[0].item() / static_cast<double>(logits.dim(0));
    Tensor grad_logits = empty_like(logits);  // [T, E]
    dispatch_floating(logits.dtype(), [&]<class T>() {
      kernels::squared_logsumexp_backward<T>(
          static_cast<T>(scale), logits.data<T>().data(), logsumexp.data<T>().data(),
          grad_logits.mutable_data<T>().data(), logits.dim(0), logits.dim(1));
    });
    return {grad_logits};
  }

 private:
  SavedTensor logits_{*this}, logsumexp_{*this};
};

void check_logits(std::string_view op, const Tensor& logits) {
  check_operands(op, logits);
  check<ShapeError>(logits.ndim() == 2, op, ": logits must be [T, E], got ", logits.shape());
  check_floating(op, "logits", logits);
}

void check_layers(const TensorList& router_logits, const TensorList& indices) {
  check<ShapeError>(!router_logits.empty() && router_logits.size() == indices.size(),
                    "load_balancing_loss: needs logits and indices of at least one layer, got ",
                    router_logits.size(), " and ", indices.size());
  const Tensor& first = router_logits[0];
  check<ShapeError>(first.ndim() == 2, "load_balancing_loss: logits must be [T, E], got ",
                    first.shape());
  check_floating("load_balancing_loss", "logits", first);
  for (std::size_t layer = 0; layer < indices.size(); ++layer) {
    const Tensor &logits = router_logits[layer], &chosen = indices[layer];
    check<ShapeError>(logits.shape() == first.shape(), "load_balancing_loss: logits of layer ",
                      layer, " must be ", first.shape(), " as in layer 0, got ", logits.shape());
    check<ShapeError>(
        chosen.ndim() == 2 && chosen.dim(0) == first.dim(0) && chosen.dim(1) == indices[0].dim(1),
        "load_balancing_loss: indices of layer ", layer, " must be [T, K] with T = ", first.dim(0),
        " and one K for all layers, got ", chosen.shape());
    check<DtypeError>(logits.dtype() == first.dtype(), "load_balancing_loss: logits of layer ",
                      layer, " must be ", first.dtype(), " as in layer 0, got ", logits.dtype());
    check<DtypeError>(chosen.dtype() == Dtype::kInt64, "load_balancing_loss: indices of layer ",
                      layer, " must be int64, got ", chosen.dtype());
  }
}

// The weights of the tokens, [T], in float64.
Tensor token_weights(std::string_view op, const Tensor& mask, std::int64_t tokens) {
  if (!mask.defined()) return Tensor::ones({tokens}, Dtype::kFloat64);
  Tensor values = to_dtype(mask, Dtype::kFloat64);
  const auto weights = values.data<double>();
  for (std::size_t t = 0; t < weights.size(); ++t) {
    check<ValueError>(weights[t] >= 0 && std::isfinite(weights[t]), op,
                      ": token_mask must be finite and not negative, got ", weights[t],
                      " at token ", t);
  }
  return values;
}

// Adds the weight of each token to all experts that it chose.
void add_load(std::string_view op, const Tensor& indices, std::size_t layer,
              std::span<const double> weights, std::vector<double>& load) {
  const Tensor slots = contiguous(indices);
  const auto experts = slots.data<std::int64_t>();
  for (std::size_t slot = 0; slot < experts.size(); ++slot) {
    const auto token = slot / static_cast<std::size_t>(slots.dim(1));
    check<ValueError>(0 <= experts[slot] && experts[slot] < std::ssize(load), op,
                      ": expert index must be in [0, ", load.size(), "), got ", experts[slot],
                      " at token ", token, " of layer ", layer);
    load[static_cast<std::size_t>(experts[slot])] += weights[token];
  }
}

// The mask of `tokens` tokens, contiguous and without a gradient; undefined if it is not given.
Tensor checked_mask(std::string_view op, const Tensor& mask, std::int64_t tokens) {
  if (!mask.defined()) return {};
  check_operands(op, mask);
  check<ShapeError>(mask.shape() == Shape{tokens}, op, ": token_mask must be [", tokens, "], got ",
                    mask.shape());
  check_floating(op, "token_mask", mask);
  return contiguous(mask.detach());
}

double sum_of(const Tensor& weights) {
  double total = 0;
  for (const auto weight : weights.data<double>()) total += weight;
  return total;
}

// `op` is the one that a user has called. All has been checked.
Tensor load_of(std::string_view op, const TensorList& indices, std::int64_t num_experts,
               const Tensor& weights) {
  std::vector<double> load(static_cast<std::size_t>(num_experts));
  for (std::size_t layer = 0; layer < indices.size(); ++layer) {
    add_load(op, indices[layer], layer, weights.data<double>(), load);
  }
  return Tensor::from(load, {num_experts});
}

Tensor share_of(std::string_view op, const Tensor& logits, const Tensor& load, double total_weight,
                const Tensor& mask) {
  const double scale = total_weight > 0 ? 1 / total_weight : 0.0;
  Tensor scaled = moegrad::clone(load.detach());
  for (auto& value : scaled.mutable_data<double>()) {
    value *= static_cast<double>(load.dim(0)) * scale;
  }
  return apply<BalanceShare>(made_with(op, scale), contiguous(logits),
                             to_dtype(scaled, logits.dtype()), mask);
}

}  // namespace

// The load of an expert, E * sum_j f[j, e], is a constant, known before any gradient is taken. So
// the loss is a sum of one term per layer, and no Function has every layer as an input.
Tensor load_balancing_loss(const TensorList& router_logits, const TensorList& indices,
                           const Tensor& token_mask) {
  constexpr std::string_view kOp = "load_balancing_loss";
  check_operands(kOp, router_logits, indices);
  check_layers(router_logits, indices);
  const Tensor& first = router_logits[0];
  const auto tokens = first.dim(0), num_experts = first.dim(1);
  if (token_mask.defined()) {
    check<DtypeError>(token_mask.dtype() == first.dtype(), "load_balancing_loss: logits are ",
                      first.dtype(), " but token_mask is ", token_mask.dtype());
  }
  const Tensor mask = checked_mask(kOp, token_mask, tokens);
  const Tensor weights = token_weights(kOp, mask, tokens);
  const double total = sum_of(weights) * static_cast<double>(router_logits.size());
  const Tensor load = load_of(kOp, indices, num_experts, weights);
  Tensor loss;
  for (const auto& logits : router_logits) {
    const Tensor share = share_of(kOp, logits, load, total, mask);
    loss = loss.defined() ? add(loss, share) : share;
  }
  return loss;
}

Tensor expert_load(const TensorList& indices, std::int64_t num_experts, const Tensor& token_mask) {
  constexpr std::string_view kOp = "expert_load";
  check_operands(kOp, indices);
  check<ShapeError>(!indices.empty(), "expert_load: needs indices of at least one layer, got none");
  check<ValueError>(num_experts >= 1, "expert_load: num_experts must be at least 1, got ",
                    num_experts);
  const auto& first = indices[0];
  for (std::size_t layer = 0; layer < indices.size(); ++layer) {
    const Tensor& chosen = indices[layer];
    check<ShapeError>(chosen.ndim() == 2 && chosen.dim(0) == first.dim(0),
                      "expert_load: indices of layer ", layer,
                      " must be [T, K] with the T of layer 0, got ", chosen.shape());
    check<DtypeError>(chosen.dtype() == Dtype::kInt64, "expert_load: indices of layer ", layer,
                      " must be int64, got ", chosen.dtype());
  }
  const Tensor mask = checked_mask(kOp, token_mask, first.dim(0));
  return load_of(kOp, indices, num_experts, token_weights(kOp, mask, first.dim(0)));
}

Tensor balance_share(const Tensor& router_logits, const Tensor& load, double total_weight,
                     const Tensor& token_mask) {
  constexpr std::string_view kOp = "balance_share";
  check_operands(kOp, router_logits, load);
  check<ShapeError>(router_logits.ndim() == 2, "balance_share: logits must be [T, E], got ",
                    router_logits.shape());
  check_floating(kOp, "logits", router_logits);
  check<ShapeError>(load.shape() == Shape{router_logits.dim(1)}, "balance_share: load must be [",
                    router_logits.dim(1), "] for logits ", router_logits.shape(), ", got ",
                    load.shape());
  check<DtypeError>(load.dtype() == Dtype::kFloat64, "balance_share: load must be float64, got ",
                    load.dtype());
  check<ValueError>(total_weight >= 0 && std::isfinite(total_weight),
                    "balance_share: total_weight must be finite and not negative, got ",
                    total_weight);
  const auto tokens = router_logits.dim(0);
  if (token_mask.defined()) {
    check_same_dtype(kOp, "logits", router_logits, "token_mask", token_mask);
  }
  const Tensor mask = checked_mask(kOp, token_mask, tokens);
  token_weights(kOp, mask, tokens);  // for its checks
  return share_of(kOp, router_logits, contiguous(load), total_weight, mask);
}

double router_entropy(const Tensor& router_logits) {
  check_logits("router_entropy", router_logits);
  const Tensor logits = contiguous(router_logits.detach());
  Tensor entropy = Tensor::empty({logits.dim(0)}, logits.dtype());  // [T]
  double total = 0;
  dispatch_floating(logits.dtype(), [&]<class T>() {
    kernels::softmax_entropy<T>(logits.data<T>().data(), entropy.mutable_data<T>().data(),
                                logits.dim(0), logits.dim(1));
    total = sum_in_order<T>(entropy);
  });
  return total;
}

Tensor z_loss(const Tensor& router_logits) {
  check_logits("z_loss", router_logits);
  return apply<ZLoss>(contiguous(router_logits));
}

}  // namespace moegrad::ops
