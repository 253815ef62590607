// SPDX-License-Identifier: Apache-2.0
// A mixture of experts from plain ops: router, experts that see their tokens alone, balance loss.
//
//     build/release/examples/mixture
//
// Expected: a loss that falls from 2.8 to below 0.15, and no expert without tokens, within seconds.
#include <iostream>

#include "moegrad.h"
using namespace moegrad;

// y_t = sum over the 2 best experts e of p_te * expert_e(x_t).      x, y: [T, H]
class Mixture final : public nn::Callable<Mixture> {
 public:
  Mixture(std::int64_t hidden, std::int64_t experts)
      : router_({.in_features = hidden, .out_features = experts}) {
    register_module("router", router_);
    register_module("experts", experts_);
    for (std::int64_t e = 0; e < experts; ++e) {
      experts_.emplace_back({.hidden_size = hidden, .intermediate_size = 8 * hidden});
    }
  }

  struct Output {
    Tensor y;                          // [T, H]
    Tensor balance_loss;               // []; 1 if all experts get the same
    std::vector<std::int64_t> tokens;  // of each expert
  };

  Output forward(const Tensor& x) {
    const Tensor p = ops::softmax(router_(x));                          // [T, E]
    const auto [best, experts] = ops::topk(p, 2);                       // [T, 2]
    const Tensor weights = best / ops::sum(best, 1, /*keepdim=*/true);  // [T, 2]
    Output output{.y = x * 0.0, .balance_loss = Tensor::zeros({}), .tokens = {}};
    const Tensor share = ops::mean(p, 0);  // [E]
    for (std::int64_t e = 0; e < experts_.size(); ++e) {
      const Tensor mine = ops::eq(experts, static_cast<double>(e));  // bool [T, 2]
      const Tensor weight = ops::sum(ops::where(mine, weights, Tensor::zeros({})), 1);  // [T]
      const Tensor rows = ops::squeeze(ops::nonzero(mine).slice(1, 0, 1), 1);           // [n]
      output.tokens.push_back(rows.numel());
      if (rows.numel() == 0) continue;
      const Tensor result = experts_[e](ops::index_select(x, 0, rows));  // [n, H]
      const Tensor weighted = result * ops::unsqueeze(ops::index_select(weight, 0, rows), 1);
      output.y = ops::index_add(output.y, 0, rows, weighted);
      output.balance_loss = output.balance_loss + share[e] * static_cast<double>(rows.numel());
    }
    const auto choices = static_cast<double>(2 * x.dim(0)) / static_cast<double>(experts_.size());
    output.balance_loss = output.balance_loss / choices;
    return output;
  }

 private:
  nn::Linear router_;
  nn::ModuleList<nn::MLP> experts_;
};

int run() {
  Mixture model(/*hidden=*/4, /*experts=*/8);
  nn::init_weights(model, /*seed=*/1, /*std=*/0.5);
  optim::AdamW optimizer(model.named_parameters(), {.lr = 5e-3});
  for (std::uint64_t step = 0; step < 1000; ++step) {
    const Tensor x = Tensor::randn({256, 4}, {step, "points"});
    const Tensor sign =
        ops::where(ops::gt(x.slice(1, 0, 1), 0), Tensor::ones({}), Tensor::full({}, -1));
    const Tensor target = ops::sin(x * 2) * sign;  // [256, 4]
    const auto output = model(x);
    const Tensor loss = ops::mse_loss(output.y, target);
    optimizer.zero_grad();
    (loss + 0.05 * output.balance_loss).backward();
    optimizer.step();
    if (step % 200 != 0 && step != 999) continue;
    std::cout << "step " << step << " loss " << loss.item() << " tokens";
    for (const auto tokens : output.tokens) std::cout << ' ' << tokens;
    std::cout << '\n';
  }
  return 0;
}

int main() { return run_program_once("mixture", run); }
