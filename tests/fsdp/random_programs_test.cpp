// SPDX-License-Identifier: Apache-2.0
#include "tests/fsdp/random_programs.h"

#include "framework/runtime/arena.h"
#include "fsdp/gradient_reducer.h"

namespace moegrad::random_programs_test {
namespace {

using fsdp::Policy;
using fsdp::State;
using namespace test;

/// Sums over all ranks and micro-batches of a step, by parameter; undefined where there is none.
TensorList reference_gradients(const Plan& plan, std::int64_t step) {
  IntegerNet net(plan);
  for (std::int64_t m = 0; m < plan.micro_batches; ++m) {
    for (int rank = 0; rank < plan.world; ++rank) {
      for (std::size_t list = 0; list < plan.calls.size(); ++list) {
        ops::sum(net(test::integer_input(plan, step, m, rank, list), list)).backward();
      }
    }
  }
  TensorList gradients;
  for (const auto& parameter : net.named_parameters()) gradients.push_back(parameter.tensor.grad());
  return gradients;
}

Policy random_policy(Draws& draw, const Plan& plan) {
  Policy policy;
  if (draw.one_in(2)) policy.reshard_after_forward = draw.one_in(2);
  if (draw.one_in(3)) policy.mixed_precision.wire_dtype = Dtype::kBFloat16;
  policy.forward_prefetch = static_cast<int>(draw.below(3));
  const bool columns = draw.one_in(3) && plan.width % (plan.world / plan.replicas) == 0;
  policy.shard_placement = [columns](const nn::ParameterSlot& slot) {
    return fsdp::ShardPlacement{.dim = columns && slot.tensor->ndim() == 2 ? 1 : 0};
  };
  return policy;
}

std::vector<nn::Module*> some_modules(Draws& draw, const std::vector<nn::Module*>& modules) {
  std::vector<nn::Module*> chosen;
  for (auto* module : modules) {
    if (draw.one_in(3)) chosen.push_back(module);
  }
  return chosen;
}

/// One rank's run of a plan: the same draws on every rank.
class Program {
 public:
  Program(const Plan& plan, RankContext& context)
      : plan_(plan),
        context_(context),
        draw_(plan.seed + 3'000'000),
        net_(plan),
        mesh_(context.group(),
              {{"replicate", plan.replicas}, {"shard", plan.world / plan.replicas}}) {
    for (int number = 1; number <= 3; ++number) {
      std::vector<nn::Module*> modules;
      for (std::size_t i = 0; i < net_.blocks.size(); ++i) {
        if (plan.group[i] == number) modules.push_back(net_.blocks[i].get());
      }
      if (modules.empty()) continue;
      states_.push_back(&fsdp::fully_shard(modules, mesh_, random_policy(draw_, plan)));
      wrapped_.insert(wrapped_.end(), modules.begin(), modules.end());
    }
    states_.push_back(&fsdp::fully_shard(net_, mesh_, random_policy(draw_, plan)));
    for (auto* state : states_) {
      if (draw_.one_in(5)) state->set_modules_to_forward_prefetch(some_modules(draw_, wrapped_));
      if (draw_.one_in(5)) state->set_modules_to_backward_prefetch(some_modules(draw_, wrapped_));
      if (draw_.one_in(5)) {
        state->set_reduce_scatter_max_input_buffers(static_cast<int>(1 + draw_.below(3)), false);
      }
    }
  }

  void run() {
    for (std::int64_t step = 0; step < plan_.steps; ++step) {
      for (std::int64_t m = 0; m < plan_.micro_batches; ++m) run_micro_batch(step, m);
      check_gradients(reference_gradients(plan_, step));
      check_bytes();
      clear_gradients();
    }
  }

 private:
  State& root() { return *states_.back(); }

  void run_micro_batch(std::int64_t step, std::int64_t m) {
    const bool last = m + 1 == plan_.micro_batches;
    turn_switches(last);
    do_by_hand();
    const auto loss_of = [&](std::size_t list) {
      const Tensor x = test::integer_input(plan_, step, m, context_.rank(), list);
      return ops::sum(net_(x, list));
    };
    TensorList losses;
    const bool at_once = draw_.one_in(2);
    for (std::size_t list = 0; list < plan_.calls.size(); ++list) {
      losses.push_back(loss_of(list));
      if (draw_.one_in(6)) {
        const NoGradGuard no_grad;
        loss_of(list);
      }
      if (!at_once) {
        root().set_is_last_backward(last || draw_.one_in(2));
        losses.back().backward();
      }
    }
    if (!at_once) return;
    root().set_is_last_backward(last || draw_.one_in(2));
    Tensor sum = losses[0];
    for (std::size_t i = 1; i < losses.size(); ++i) sum = ops::add(sum, losses[i]);
    sum.backward();
  }

  void turn_switches(bool last) {
    for (auto* state : states_) {
      state->set_requires_gradient_sync(last || draw_.one_in(2), /*recurse=*/false);
      state->set_requires_all_reduce(last || draw_.one_in(2), /*recurse=*/false);
      if (draw_.one_in(3)) state->set_reshard_after_forward(draw_.one_in(2), draw_.one_in(2));
      if (draw_.one_in(3)) state->set_reshard_after_backward(draw_.one_in(2), draw_.one_in(2));
    }
    // What was off stays off until its group is asked to reduce: all of it in the last one.
    if (last) root().set_requires_gradient_sync(true);
  }

  void do_by_hand() {
    auto& state = *states_[static_cast<std::size_t>(draw_.below(std::ssize(states_)))];
    switch (draw_.below(6)) {
      case 0:
        return state.unshard();
      case 1:
        return state.reshard();
      case 2:
        state.unshard_async();
        return;
      case 3:
        return state.unshard_async().wait();
      default:
        return;
    }
  }

  void check_gradients(const TensorList& expected) {
    for (auto* state : states_) state->reshard();
    const auto parameters = net_.named_parameters();
    ASSERT_EQ(parameters.size(), expected.size());
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const auto& [name, parameter] = parameters[i];
      ASSERT_EQ(parameter.grad().defined(), expected[i].defined()) << name;
      if (!expected[i].defined()) continue;
      EXPECT_TRUE(test::bitwise_equal(parameter.grad(),
                                      clone(shard_view(expected[i], *parameter.shard_spec()))))
          << name;
    }
  }

  // Nothing is left over: the shards, their gradients, and nothing whole.
  void check_bytes() {
    std::int64_t shards = 0;
    for (auto* state : states_) {
      for (const auto& group : state->groups()) {
        shards += group->sharded_bytes();
        EXPECT_TRUE(group->is_sharded());
        EXPECT_FALSE(group->reducer().has_gradients()) << group->name();
        for (const auto& param : group->params()) {
          EXPECT_TRUE(param.unsharded.storage().released()) << param.name;
        }
      }
    }
    EXPECT_EQ(context_.arena()->live()[MemoryTag::kParameters], shards);
    EXPECT_EQ(context_.arena()->live()[MemoryTag::kCommunication], 0);
  }

  void clear_gradients() {
    if (draw_.one_in(2)) return net_.zero_grad();
    for (const auto& parameter : net_.named_parameters()) parameter.tensor.set_grad(Tensor());
  }

  Plan plan_;
  RankContext& context_;
  Draws draw_;
  IntegerNet net_;
  DeviceMesh mesh_;
  std::vector<State*> states_;  // the root last
  std::vector<nn::Module*> wrapped_;
};

TEST(RandomPrograms, GetThePlainSumOfAllGradients) {
  for (std::uint64_t seed = 0; seed < (test::kSanitized ? 100 : 300); ++seed) {
    const auto plan = test::make_plan(seed);
    launch(plan.world, [&](RankContext& context) {
      SCOPED_TRACE("seed " + std::to_string(seed));
      Program(plan, context).run();
    });
    if (::testing::Test::HasFailure()) break;
  }
}

}  // namespace
}  // namespace moegrad::random_programs_test
