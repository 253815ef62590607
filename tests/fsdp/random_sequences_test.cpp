// SPDX-License-Identifier: Apache-2.0
#include "tests/fsdp/random_sequences.h"

#include <algorithm>

#include "framework/autograd/gradient_sum.h"
#include "fsdp/state_dict.h"
#include "tests/testing.h"

namespace moegrad::random_sequences_test {
namespace {

using fsdp::Policy;
using fsdp::State;
using namespace test;

TensorList parameters_of(const nn::Module& module) {
  TensorList tensors;
  for (const auto& parameter : module.named_parameters()) tensors.push_back(parameter.tensor);
  return tensors;
}

/// The unsharded program, on all leaves.
class Unsharded final : public SequenceRun {
 public:
  Unsharded(const Sequence& sequence, std::int64_t leaves)
      : SequenceRun(sequence, 0, leaves), parameters_(parameters_of(net_)), sums_(parameters_) {
    make_optimizer();
  }

 private:
  void backward(const TensorList& losses) override {
    TensorList before;
    for (const auto& parameter : parameters_) before.push_back(take_grad(parameter));
    std::vector<TreeSum> tree(parameters_.size());
    for (const auto& loss : losses) {
      loss.backward();
      for (std::size_t i = 0; i < tree.size(); ++i) tree[i].push(take_grad(parameters_[i]));
    }
    TensorList terms;
    for (std::size_t i = 0; i < tree.size(); ++i) {
      parameters_[i].set_grad(std::exchange(before[i], Tensor()));
      terms.push_back(tree[i].take());
    }
    sums_.add(std::move(terms));
  }

  static Tensor take_grad(const Tensor& parameter) {
    Tensor grad = parameter.grad();
    parameter.set_grad(Tensor());
    return grad;
  }

  void load(const NamedTensors& values, Draws& /*draw*/) override { net_.load_state_dict(values); }

  TensorList parameters_;
  GradientSum sums_;
};

/// The sharded one, on one rank.
class Sharded final : public SequenceRun {
 public:
  Sharded(const Sequence& sequence, std::int64_t leaves, RankContext& context)
      : SequenceRun(sequence, leaves * context.rank() / context.world_size(),
                    leaves * (context.rank() + 1) / context.world_size()),
        mesh_(DeviceMesh::flat(context.group())) {
    Draws draw(sequence.seed + 11'000'000);
    for (int number = 1; number <= 3; ++number) {
      std::vector<nn::Module*> modules;
      for (std::size_t i = 0; i < net_.blocks.size(); ++i) {
        if (sequence.group[i] == number) modules.push_back(net_.blocks[i].get());
      }
      if (modules.empty()) continue;
      states_.push_back(&fsdp::fully_shard(modules, mesh_, random_policy(draw, context)));
      wrapped_.insert(wrapped_.end(), modules.begin(), modules.end());
    }
    states_.push_back(&fsdp::fully_shard(net_, mesh_, random_policy(draw, context)));
    make_optimizer();
  }

 private:
  State& root() { return *states_.back(); }

  Policy random_policy(Draws& draw, const RankContext& context) const {
    Policy policy;
    if (draw.one_in(2)) policy.reshard_after_forward = draw.one_in(2);
    policy.forward_prefetch = static_cast<int>(draw.below(3));
    const bool columns = draw.one_in(3) && sequence_.width % context.world_size() == 0;
    policy.shard_placement = [columns](const nn::ParameterSlot& slot) {
      return fsdp::ShardPlacement{.dim = columns && slot.tensor->ndim() == 2 ? 1 : 0};
    };
    return policy;
  }

  void backward(const TensorList& losses) override {
    for (std::size_t i = 0; i < losses.size(); ++i) {
      root().set_requires_gradient_sync(i + 1 == losses.size());
      losses[i].backward();
    }
  }

  void recover() override { root().reset_iter_state(); }

  // A gather in flight reads the shards.
  void before_write(Draws& draw) override {
    for (auto* state : states_) {
      for (const auto& group : state->groups()) {
        if (!group->is_gathering()) continue;
        if (draw.one_in(2)) {
          group->finish_gather();  // stays a prefetch, of old values
        } else {
          group->reshard();
        }
      }
    }
  }

  void by_hand(Draws& draw) override {
    auto& state = *states_[static_cast<std::size_t>(draw.below(std::ssize(states_)))];
    switch (draw.below(8)) {
      case 0:
        return state.unshard();
      case 1:
        return state.reshard();
      case 2:
        state.unshard_async();
        return;
      case 3:
        return state.unshard_async().wait();
      case 4:
        return state.set_reshard_after_forward(draw.one_in(2), draw.one_in(2));
      case 5:
        return state.set_reshard_after_backward(draw.one_in(2), draw.one_in(2));
      case 6:
        return state.set_modules_to_forward_prefetch(some_modules(draw));
      default:
        return state.set_modules_to_backward_prefetch(some_modules(draw));
    }
  }

  std::vector<nn::Module*> some_modules(Draws& draw) const {
    std::vector<nn::Module*> chosen;
    for (auto* module : wrapped_) {
      if (draw.one_in(2)) chosen.push_back(module);
    }
    return chosen;
  }

  void load(const NamedTensors& values, Draws& draw) override {
    const auto way = draw.below(3);
    if (way == 0) return fsdp::load_full_state_dict(net_, values);
    NamedTensors parts;
    for (const auto& [name, parameter] : net_.named_parameters()) {
      const auto whole = std::ranges::find(values, name, &NamedTensor::name)->tensor;
      parts.push_back({name, clone(shard_view(whole, *parameter.shard_spec()))});
      parts.back().tensor.set_shard_spec(parameter.shard_spec());
      if (way == 1) continue;
      Tensor live = parameter.detach();
      copy_(live, parts.back().tensor);
    }
    if (way == 1) net_.load_state_dict(parts);
  }

  DeviceMesh mesh_;
  std::vector<State*> states_;  // the root last
  std::vector<nn::Module*> wrapped_;
};

/// The same bits, or close to them.
void expect_same(const Outcome& own, const Outcome& reference, std::size_t first_leaf, bool bits) {
  const double tolerance = bits ? 0.0 : 1e-12;
  const auto expect_number = [&](double a, double b, const char* what) {
    EXPECT_TRUE(std::abs(a - b) <= tolerance * std::max(1.0, std::abs(b)))
        << what << ": " << a << " against " << b;
  };
  EXPECT_EQ(own.error, reference.error);
  EXPECT_EQ(own.losses.empty(), reference.losses.empty());
  EXPECT_TRUE(own.losses.empty() || first_leaf + own.losses.size() <= reference.losses.size());
  for (std::size_t i = 0; i < own.losses.size(); ++i) {
    expect_number(own.losses[i], reference.losses[first_leaf + i], "loss");
  }
  expect_number(own.norm, reference.norm, "norm");
  ASSERT_EQ(own.values.size(), reference.values.size());
  for (std::size_t i = 0; i < own.values.size(); ++i) {
    const auto& [name, value] = own.values[i];
    EXPECT_EQ(name, reference.values[i].name);
    const auto& spec = value.shard_spec();
    const Tensor& whole = reference.values[i].tensor;
    const Tensor part = spec != nullptr ? clone(shard_view(whole, *spec)) : whole;
    EXPECT_TRUE(bits || value.dtype() == Dtype::kInt64 ? test::bitwise_equal(value, part)
                                                       : test::all_close(value, part, 1e-12, 1e-12))
        << name;
  }
}

/// Compares the steps; returns how many of them ran without an error.
int compare(const Sequence& sequence, int world) {
  const std::int64_t leaves = world == 3 ? 3 : 4;
  Unsharded whole(sequence, leaves);
  std::vector<Outcome> reference;
  for (const auto& step : sequence.steps) reference.push_back(whole.run(step));
  launch(world, [&](RankContext& context) {
    Sharded sharded(sequence, leaves, context);
    const auto first_leaf = static_cast<std::size_t>(leaves * context.rank() / world);
    for (std::size_t i = 0; i < reference.size(); ++i) {
      SCOPED_TRACE("sequence " + std::to_string(sequence.seed) + ", " + std::to_string(world) +
                   " ranks, step " + std::to_string(i));
      expect_same(sharded.run(sequence.steps[i]), reference[i], first_leaf, world != 3);
      if (::testing::Test::HasFailure()) return;
    }
  });
  return static_cast<int>(std::ranges::count(reference, "", &Outcome::error));
}

// 100 of them, 2,000 in the full suite; a quarter of that with a sanitizer.
TEST(RandomSequences, GiveTheUnshardedProgramsNumbersAndErrors) {
  const std::uint64_t sequences = (test::full_suite() ? 2'000 : 100) / (test::kSanitized ? 4 : 1);
  int ran = 0;
  for (std::uint64_t seed = 0; seed < sequences; ++seed) {
    for (const int world : {1, 2, 3, 4}) ran += compare(test::make_sequence(seed), world);
    ASSERT_FALSE(::testing::Test::HasFailure()) << "sequence " << seed;
  }
  EXPECT_GT(ran, 4 * static_cast<int>(sequences));
}

}  // namespace
}  // namespace moegrad::random_sequences_test
