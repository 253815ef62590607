// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "framework/autograd/checkpoint.h"
#include "framework/autograd/weight_use.h"
#include "framework/distributed/launch.h"
#include "framework/distributed/shard_runs.h"
#include "framework/runtime/grad_mode.h"
#include "fsdp/fully_shard.h"
#include "nn/linear.h"
#include "ops/elementwise.h"
#include "ops/reduce.h"
#include "tests/testing.h"

// Random small programs under random shardings, for the hooks and switches that no list of cases
// covers together. All numbers are small integers in float64, so every sum is exact in any order:
// what fully_shard must give is the plain sum of all ranks' gradients, to the last bit.
//
// What a program is, every rank draws alike from (seed, draw); only inputs differ between ranks.

namespace moegrad::test {

/// Draws one after the other, the same on every rank.
class Draws {
 public:
  explicit Draws(std::uint64_t seed) : random_(seed, "random programs") {}
  std::int64_t below(std::int64_t n) { return random_.integer(next_++, n); }
  bool one_in(std::int64_t n) { return below(n) == 0; }

 private:
  Random random_;
  std::uint64_t next_ = 0;
};

/// What a random program does; see make_plan.
struct Plan {
  int world = 1, replicas = 1;
  std::int64_t width = 4, blocks = 1;
  std::vector<std::vector<std::int64_t>> calls;  // per forward: which block, in this order
  std::vector<bool> recomputed, frozen;          // per block
  std::vector<int> group;  // per block: 0 the root's, otherwise blocks of one number share a group
  std::optional<std::int64_t> tied;  // block whose weight is block 0's
  std::int64_t steps = 2, micro_batches = 1;
  std::uint64_t seed = 0;
};

inline Plan make_plan(std::uint64_t seed) {
  Draws draw(seed);
  Plan plan;
  plan.seed = seed;
  plan.world = static_cast<int>(1 + draw.below(4));
  if (plan.world % 2 == 0 && draw.one_in(2)) plan.replicas = draw.one_in(2) ? 2 : plan.world;
  plan.width = 3 + draw.below(4);
  plan.blocks = 1 + draw.below(5);
  for (std::int64_t i = 0; i < plan.blocks; ++i) {
    plan.recomputed.push_back(draw.one_in(4));
    plan.frozen.push_back(draw.one_in(5));
    plan.group.push_back(static_cast<int>(draw.below(4)));
  }
  const auto forwards = 1 + draw.below(2);
  for (std::int64_t f = 0; f < forwards; ++f) {
    auto& calls = plan.calls.emplace_back();
    const auto length = 1 + draw.below(5);
    for (std::int64_t i = 0; i < length; ++i) calls.push_back(draw.below(plan.blocks));
  }
  if (plan.blocks > 1 && draw.one_in(3)) {
    plan.tied = 1 + draw.below(plan.blocks - 1);
    const auto other = static_cast<std::size_t>(*plan.tied);
    plan.group[other] = plan.group[0];
    plan.frozen[other] = plan.frozen[0];
  }
  plan.micro_batches = 1 + draw.below(4);
  return plan;
}

/// y = relu(x W^T)
class IntegerBlock final : public nn::Callable<IntegerBlock> {
 public:
  explicit IntegerBlock(Tensor weight) : linear_(std::move(weight)) {
    register_module("linear", linear_);
  }
  Tensor forward(const Tensor& x) { return ops::relu(linear_(x)); }
  const Tensor& weight() const { return linear_.weight(); }

 private:
  nn::Linear linear_;
};

/// The blocks of a plan; forward runs those of one list of calls.
class IntegerNet final : public nn::Callable<IntegerNet> {
 public:
  explicit IntegerNet(const Plan& plan) : plan_(plan) {
    Draws draw(plan.seed + 1'000'000);
    for (std::int64_t i = 0; i < plan.blocks; ++i) {
      Tensor weight = Tensor::empty({plan.width, plan.width}, Dtype::kFloat64);
      for (auto& value : weight.mutable_data<double>()) {
        value = static_cast<double>(draw.below(3) - 1);
      }
      if (plan.tied == i) weight = blocks.front()->weight();
      blocks.push_back(std::make_unique<IntegerBlock>(weight));
      register_module("block" + std::to_string(i), *blocks.back());
    }
    scale_ = Tensor::ones({plan.width}, Dtype::kFloat64);
    register_parameter("scale", scale_);
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      blocks[i]->parameter_slots()[0].tensor->set_requires_grad(!plan.frozen[i]);
    }
  }

  Tensor forward(const Tensor& x, std::size_t list) {
    Tensor y = ops::mul(x, scale_);
    for (const auto index : plan_.calls[list]) {
      auto& block = *blocks[static_cast<std::size_t>(index)];
      const WeightUseGuard use(plan_.tied == index ? 1 : 0);
      if (plan_.recomputed[static_cast<std::size_t>(index)]) {
        y = checkpoint([&block](const TensorList& in) -> TensorList { return {block(in[0])}; },
                       {y})[0];
      } else {
        y = block(y);
      }
    }
    return y;
  }

  std::vector<std::unique_ptr<IntegerBlock>> blocks;

 private:
  Plan plan_;
  Tensor scale_;
};

/// Input of one forward of one micro-batch on one rank.
inline Tensor integer_input(const Plan& plan, std::int64_t step, std::int64_t micro_batch, int rank,
                            std::size_t list) {
  Draws draw(plan.seed + 2'000'000 +
             static_cast<std::uint64_t>(((step * 8 + micro_batch) * 8 + rank) * 8) + list);
  Tensor x = Tensor::empty({2, plan.width}, Dtype::kFloat64);
  for (auto& value : x.mutable_data<double>()) value = static_cast<double>(draw.below(4) - 1);
  return x;
}

}  // namespace moegrad::test
