// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "nn/any_module.h"
#include "nn/experts.h"
#include "nn/module.h"
#include "nn/router.h"
#include "nn/token_dispatcher.h"

namespace moegrad::nn {

/// Token-choice mixture of SwiGLU experts without dropping:      x, y: [T, H]
///
///     y_t = sum over the K chosen experts e of  down_e(p_te * silu(gate_e x_t) * up_e x_t)
///           + shared(x_t)
///
/// with the weights p of the Router. down_e is linear, so this equals p_te times the expert's
/// output. But with the weight before down_e, the gradient of p_te does not need the experts'
/// outputs, and none is kept.
///
/// All tokens go to the shared expert, if there is one, an MLP. Several of the same width are one
/// that is as many times as wide. It is called shared_experts, as in DeepSeek-V3 and GLM-4.5. With
/// `shared_expert_gate` it is called shared_expert, as in Qwen2-MoE, and its output is multiplied
/// by sigmoid(w x_t), where w [1, H] is the weight of shared_expert_gate.
///
/// Single-device code: sharding is applied from outside, by fsdp::fully_shard, and so is the
/// division of the experts over ranks, by parallel::expert_parallel.
///
/// forward() runs four nodes: route | dispatch | experts | combine, and adds a fifth: shared. Each
/// is a module below this one with hooks of its own. Schedules that interleave layers or
/// micro-batches call the nodes themselves: through call_method, as moe.call_method(&MoE::route,
/// x), if this module itself has hooks, as under fully_shard. shared() needs nothing of the others,
/// so it can run while tokens travel.
///
/// Note [When the shared expert runs]
/// The gradient of x is a sum over what has used it: the router, the dispatcher and the shared
/// expert. The tape adds these in the reverse order of forward. So that a schedule may run shared()
/// at any time without moving a bit, its input branches off at one place, right after route():
///
///     const auto routed = moe.route(x);
///     const Tensor branch = moe.shared_input(x);
///     ...                                          // here or later: moe.shared(branch)
///
/// replace() takes other modules as gate, experts and shared expert.
class MoE final : public Callable<MoE> {
 public:
  struct Config {
    std::int64_t hidden_size = 0;
    std::int64_t intermediate_size = 0;  // of one expert
    std::int64_t num_experts = 0;
    std::int64_t top_k = 0;
    bool norm_topk_prob = true;  // with top_k = 1 no gradient of y reaches the router (Router)
    RouterScores scores = RouterScores::kSoftmax;
    std::int64_t num_groups = 1;                // of experts (ops::ExpertChoice)
    std::int64_t topk_groups = 1;               // of them, to which a token goes
    double routed_scaling_factor = 1;           // of the weights of the chosen experts
    bool correction_bias = false;               // of the router
    std::int64_t shared_intermediate_size = 0;  // 0: no shared expert
    bool shared_expert_gate = false;
    ExpertWeights expert_weights = ExpertWeights::kPretransposed;
    Dtype dtype = Dtype::kFloat32;
  };
  struct Output {
    Tensor hidden;                                // [T, H]
    Tensor router_logits;                         // [T, E]
    Tensor routing_weights;                       // [T, K], of the chosen experts
    Tensor expert_indices;                        // int64 [T, K]
    std::vector<std::int64_t> tokens_per_expert;  // [E]
  };

  explicit MoE(const Config& config);

  /// `replay_indices` [T, K] are experts to take instead of the router's choice.
  Output forward(const Tensor& x, const Tensor& replay_indices = {});

  /// The nodes, each given what those before it have returned. Error for a node called too early.
  Router::Output route(const Tensor& x, const Tensor& replay_indices = {});
  DispatchedRows dispatch(const Tensor& x, const Router::Output& routed);  // [T, H] -> [R, H]
  Tensor experts(const DispatchedRows& dispatched);                        // -> [R, H], weighted
  Tensor combine(const Tensor& rows, const DispatchedRows& dispatched);    // [R, H] -> [T, H]
  /// x for shared(): Note [When the shared expert runs]. Undefined without a shared expert.
  Tensor shared_input(const Tensor& x) const;
  /// The shared expert's share of y, [T, H], which whoever calls the nodes adds to what combine()
  /// returns. Error without a shared expert.
  Tensor shared(const Tensor& branch);

  bool has_shared_expert() const { return !shared_.empty(); }

  /// Router::balance() of the gate. Error if replace() has put another module in its place.
  void balance(const std::vector<std::int64_t>& tokens_per_expert, double rate);

  /// Takes the place of the LocalTokenDispatcher that the layer is made with: how experts on other
  /// ranks are reached, from outside. Each layer of a model has its own. ValueError for null, and
  /// for a dispatcher that another layer of the model has; then nothing has changed.
  void set_dispatcher(std::shared_ptr<TokenDispatcher> dispatcher);

 private:
  AnyModule<Router::Output(const Tensor&, const Tensor&)> gate_;
  std::shared_ptr<TokenDispatcher> dispatcher_;
  AnyModule<Tensor(const Tensor&, const Tensor&, const ops::RowGroups&)> experts_;
  TensorModule shared_, shared_gate_;  // empty if there is none
  Combine combine_;
};

void for_each_tensor(MoE::Output& output, const TensorVisitor& visit);

}  // namespace moegrad::nn
