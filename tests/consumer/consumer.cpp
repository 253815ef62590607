// SPDX-License-Identifier: Apache-2.0
// An op of the user's own, a step over two sharded ranks, weights into a file and out of it.
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <iostream>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "moegrad.h"
#include "moegrad_testing.h"

using namespace moegrad;

// y = x |x|,   dL/dx = 2 |x| dL/dy
class SignedSquare final : public Function {
 public:
  std::string_view name() const override { return "signed_square"; }
  Tensor forward(const Tensor& x) {
    Tensor y = empty_like(x);
    const auto in = x.data<double>();
    const auto out = y.mutable_data<double>();
    for (std::size_t i = 0; i < in.size(); ++i) out[i] = in[i] * std::abs(in[i]);
    x_ = x;
    return y;
  }
  TensorList backward(const TensorList& grads, InputMask /*needs*/) override {
    const Tensor x = x_.unpack();
    Tensor grad_x = empty_like(x);
    const auto in = x.data<double>();
    const auto grad_y = grads[0].data<double>();
    const auto out = grad_x.mutable_data<double>();
    for (std::size_t i = 0; i < in.size(); ++i) out[i] = 2 * std::abs(in[i]) * grad_y[i];
    return {grad_x};
  }

 private:
  SavedTensor x_{*this};
};

void check_gradient() {
  Tensor x = Tensor::from(std::vector<double>{.1, -.2, .3, -.4, .5, -.6}, {2, 3});
  x.set_requires_grad(true);
  const auto f = [](const TensorList& in) -> TensorList { return {apply<SignedSquare>(in[0])}; };
  gradcheck(f, {x}).or_throw();
  std::cout << "gradient of signed_square agrees\n";
}

models::CausalLMLoss loss_of(models::CausalLM& model, std::int64_t ranks) {
  const std::vector<std::int64_t> text{71, 111, 100, 32, 115, 97, 105, 100, 44};
  const auto n = static_cast<std::int64_t>(text.size()) - 1;
  const std::span<const std::int64_t> all(text);
  const auto output = model(Tensor::from(all.first(text.size() - 1), {n}));
  return models::causal_lm_loss(output, Tensor::from(all.subspan(1), {n}), ranks * n, 0.01);
}

// The loss after a step; leaves the weights in `path`.
double train(RankContext& rank, const std::filesystem::path& path) {
  models::CausalLM model(models::CausalLMConfig::preset("tiny"), /*seed=*/1);
  const auto mesh = DeviceMesh::flat(rank.group());
  for (auto& layer : model.layers()) fsdp::fully_shard(layer, mesh);
  fsdp::fully_shard(model, mesh);
  optim::AdamW optimizer(model.named_parameters(), {.lr = 1e-2});
  const auto before = loss_of(model, rank.world_size());
  before.objective.backward();
  optimizer.step();
  const double after = loss_of(model, rank.world_size()).ce_sum.item();
  check(after < before.ce_sum.item(), "the loss must fall, got ", after);
  const auto weights = fsdp::full_state_dict(model);
  if (rank.rank() == 0) save_safetensors(path, weights);
  return after;
}

int main(int argc, char** argv) try {
  check(argc == 2, "usage: consumer FILE");
  check_gradient();
  double sharded = 0;
  launch(/*world_size=*/2, [&](RankContext& rank) {
    const double loss = train(rank, argv[1]);
    if (rank.rank() == 0) sharded = loss;
  });
  std::cout << "two sharded ranks: the loss falls\n";
  models::CausalLM model(models::CausalLMConfig::preset("tiny"), /*seed=*/2);
  model.load_state_dict(load_safetensors(argv[1]));
  const double whole = loss_of(model, 1).ce_sum.item();
  check(whole == sharded, "the file must give the loss ", sharded, ", got ", whole);
  std::cout << "one rank, weights from the file: the same loss\n";
} catch (const Error& error) {
  return std::cerr << "consumer: " << error.what() << '\n', 1;
}
