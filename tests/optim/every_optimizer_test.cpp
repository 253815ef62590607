// SPDX-License-Identifier: Apache-2.0

// What holds of every optimizer.

#include "tests/optim/every_optimizer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "framework/runtime/arena.h"
#include "framework/runtime/error.h"
#include "framework/runtime/rank_context.h"
#include "tests/testing.h"

namespace moegrad::optim::every_optimizer_test {
namespace {

using namespace test;

const std::vector<Shape> kShapes = {Shape{5, 3}, Shape{7}, Shape{1, 4}, Shape{0, 2}, Shape{}};

NamedTensors parameters_of(Dtype dtype) {
  NamedTensors parameters;
  for (const auto& shape : kShapes) {
    const auto i = parameters.size();
    parameters.push_back({"p" + std::to_string(i), randn(shape, 1 + i, dtype)});
  }
  return parameters;
}

void take_steps(Optimizer& optimizer, const NamedTensors& parameters, int from, int to) {
  for (int step = from; step < to; ++step) {
    std::uint64_t seed = 100 * static_cast<std::uint64_t>(step + 1);
    for (const auto& [name, parameter] : parameters) {
      parameter.set_grad(randn(parameter.shape(), ++seed, parameter.dtype()));
    }
    optimizer.step();
  }
}

void expect_equal(const NamedTensors& a, const NamedTensors& b, const std::string& where) {
  ASSERT_EQ(a.size(), b.size()) << where;
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].name, b[i].name) << where;
    EXPECT_TRUE(bitwise_equal(a[i].tensor.detach(), b[i].tensor.detach())) << where << a[i].name;
  }
}

NamedTensors copied(const NamedTensors& tensors) {
  NamedTensors copies;
  for (const auto& [name, tensor] : tensors) copies.push_back({name, clone(tensor)});
  return copies;
}

TEST(EveryOptimizer, GoesOnFromALoadedState) {
  for (const auto dtype : {Dtype::kFloat32, Dtype::kFloat64}) {
    for (const auto& optimizer : every_optimizer()) {
      const auto straight = parameters_of(dtype), resumed = parameters_of(dtype);
      const auto first = optimizer.make(straight), before = optimizer.make(resumed);
      take_steps(*first, straight, 0, 6);
      take_steps(*before, resumed, 0, 3);
      const auto after = optimizer.make(resumed);
      auto state = copied(before->state_dict());
      std::ranges::reverse(state);  // by name, not by position
      after->load_state_dict(state);
      take_steps(*after, resumed, 3, 6);
      expect_equal(resumed, straight, optimizer.name);
      expect_equal(after->state_dict(), first->state_dict(), optimizer.name);
    }
  }
}

TEST(EveryOptimizer, DependsOnItsState) {
  for (const auto& optimizer : every_optimizer()) {
    const auto straight = parameters_of(Dtype::kFloat64),
               forgetful = parameters_of(Dtype::kFloat64);
    const auto first = optimizer.make(straight);
    take_steps(*first, straight, 0, 6);
    take_steps(*optimizer.make(forgetful), forgetful, 0, 3);
    take_steps(*optimizer.make(forgetful), forgetful, 3, 6);
    EXPECT_FALSE(bitwise_equal(forgetful[0].tensor, straight[0].tensor)) << optimizer.name;
  }
}

TEST(EveryOptimizer, KeepsTheRatiosOfItsGroupsUnderASchedule) {
  for (const auto& optimizer : every_optimizer()) {
    const Tensor p = randn({4, 2}), q = randn({3, 2}, 2);
    const auto grouped = optimizer.make_of_groups(
        {{.parameters = {{"p", p}}, .lr = 0.5}, {.parameters = {{"q", q}}, .lr = 0.125}});
    grouped->scale_lr(0.5);
    EXPECT_EQ(grouped->groups()[0].lr, 0.25) << optimizer.name;
    EXPECT_EQ(grouped->groups()[1].lr, 0.0625) << optimizer.name;
  }
}

NamedTensors trained_and_frozen() {
  NamedTensors parameters = {{"trained", randn({2, 4}, 1, Dtype::kFloat32)},
                             {"frozen", randn({100, 30}, 2, Dtype::kFloat32)}};
  parameters[0].tensor.set_requires_grad(true);
  return parameters;
}

void step(Optimizer& optimizer, const NamedTensors& parameters) {
  for (const auto& [name, parameter] : parameters) {
    if (parameter.requires_grad()) parameter.set_grad(randn(parameter.shape(), 7, Dtype::kFloat32));
  }
  optimizer.step();
  optimizer.zero_grad();
}

// torch makes what it keeps of a parameter when the first gradient comes.
TEST(EveryOptimizer, KeepsNothingOfAFrozenParameter) {
  for (const auto& optimizer : every_optimizer()) {
    RankContext context;
    const RankContextGuard guard(context);
    const auto kept = [&] { return context.arena()->live()[MemoryTag::kOptimizer]; };
    const auto bytes_of = [](const NamedTensors& state) {
      std::int64_t bytes = 0;
      for (const auto& [name, tensor] : state) bytes += tensor.numel() * size_of(tensor.dtype());
      return bytes;
    };
    auto parameters = trained_and_frozen();
    const auto one = optimizer.make({parameters[0]});
    const auto for_one = kept();
    const auto both = optimizer.make(parameters);
    EXPECT_EQ(kept(), 2 * for_one) << optimizer.name;
    EXPECT_EQ(for_one, bytes_of(both->state_dict())) << optimizer.name;
    step(*both, parameters);
    EXPECT_EQ(kept(), 2 * for_one) << optimizer.name;
    for (const auto& [name, tensor] : both->state_dict()) {
      EXPECT_TRUE(name.starts_with("trained.")) << optimizer.name << ": " << name;
    }
    // What is trained later on has state from then on, and keeps it when it is frozen again.
    auto whole = trained_and_frozen();
    whole[1].tensor.set_requires_grad(true);
    const auto all = copied(optimizer.make(whole)->state_dict());
    parameters[1].tensor.set_requires_grad(true);
    EXPECT_EQ(both->state_dict().size(), all.size()) << optimizer.name;
    EXPECT_EQ(kept(), for_one + bytes_of(all)) << optimizer.name;
    parameters[1].tensor.set_requires_grad(false);
    step(*both, parameters);
    EXPECT_EQ(kept(), for_one + bytes_of(all)) << optimizer.name;
  }
}

TEST(EveryOptimizer, TrainsWhatIsThawedLikeWhatIsNew) {
  for (const auto& optimizer : every_optimizer()) {
    const auto thawed = trained_and_frozen(), fresh = trained_and_frozen();
    const auto first = optimizer.make(thawed);
    step(*first, thawed);
    Tensor p = thawed[1].tensor, q = fresh[1].tensor;
    p.set_requires_grad(true);
    q.set_requires_grad(true);
    step(*first, thawed);
    step(*optimizer.make({fresh[1]}), {fresh[1]});
    EXPECT_TRUE(bitwise_equal(p.detach(), q.detach())) << optimizer.name;
  }
}

// A state that has been saved with all parameters trained is loaded into an optimizer that has been
// made with a frozen one, and the other way round with the frozen one still frozen.
TEST(EveryOptimizer, LoadsWhatWasKeptOfAParameterThatIsFrozenNow) {
  for (const auto& optimizer : every_optimizer()) {
    auto before = trained_and_frozen(), after = trained_and_frozen();
    const auto saved_without = copied(optimizer.make(before)->state_dict());
    before[1].tensor.set_requires_grad(true);
    const auto saving = optimizer.make(before);
    step(*saving, before);
    const auto saved = copied(saving->state_dict());
    const auto loading = optimizer.make(after);
    loading->load_state_dict(saved_without);
    EXPECT_EQ(loading->state_dict().size(), saved_without.size()) << optimizer.name;
    if (saved.size() == saved_without.size()) continue;
    auto damaged = saved;
    damaged.back().tensor = Tensor::ones({7, 7, 7});
    EXPECT_THROW(loading->load_state_dict(damaged), ShapeError) << optimizer.name;
    EXPECT_EQ(loading->state_dict().size(), saved_without.size()) << optimizer.name;
    loading->load_state_dict(saved);
    expect_equal(loading->state_dict(), saved, optimizer.name);
  }
}

TEST(EveryOptimizer, LeavesParametersWithoutAGradientAlone) {
  for (const auto& optimizer : every_optimizer()) {
    const Tensor p = randn({4, 2}), q = randn({3, 2}, 2), before = clone(q);
    const auto both = optimizer.make({{"p", p}, {"q", q}});
    p.set_grad(randn({4, 2}, 3));
    both->step();
    EXPECT_TRUE(bitwise_equal(q, before)) << optimizer.name;
    EXPECT_FALSE(bitwise_equal(p, randn({4, 2}))) << optimizer.name;
  }
}

TEST(EveryOptimizer, GivesTheSameBitsWithMoreThreads) {
  for (const auto& optimizer : every_optimizer()) {
    const auto train = [&](int threads) {
      RankContext context({.threads = threads});
      const RankContextGuard guard(context);
      const Tensor p = randn({301, 333}, 3, Dtype::kFloat32);
      const auto one = optimizer.make({{"p", p}});
      p.set_grad(randn({301, 333}, 9, Dtype::kFloat32));
      one->step();
      return p;
    };
    EXPECT_TRUE(bitwise_equal(train(1), train(3))) << optimizer.name;
  }
}

TEST(EveryOptimizer, SkipsStepsWhoseGradientsAreNotFinite) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const auto dtype : {Dtype::kFloat32, Dtype::kFloat64}) {
    for (const auto& optimizer : every_optimizer(/*skip=*/true)) {
      const auto parameters = parameters_of(dtype);
      const auto skipping = optimizer.make(parameters);
      take_steps(*skipping, parameters, 0, 2);
      const auto before = copied(parameters), state = copied(skipping->state_dict());
      std::int64_t skipped = 0;
      for (const double value : {kNan, kInfinity, -kInfinity}) {
        Tensor grad = randn({7}, 5);
        grad.mutable_data<double>()[6] = value;
        parameters[1].tensor.set_grad(to_dtype(grad, dtype));
        skipping->step();
        EXPECT_EQ(skipping->skipped_steps(), ++skipped) << optimizer.name;
      }
      expect_equal(parameters, before, optimizer.name);
      expect_equal(skipping->state_dict(), state, optimizer.name);
      take_steps(*skipping, parameters, 2, 3);
      EXPECT_EQ(skipping->skipped_steps(), 3) << optimizer.name;
      EXPECT_FALSE(bitwise_equal(parameters[1].tensor, before[1].tensor)) << optimizer.name;
    }
  }
}

TEST(EveryOptimizer, TakesGradientsThatAreNotFiniteUnlessAskedToSkip) {
  for (const auto& optimizer : every_optimizer()) {
    const Tensor p = randn({7});
    const auto one = optimizer.make({{"p", p}});
    p.set_grad(Tensor::from(std::vector<double>(7, std::numeric_limits<double>::quiet_NaN()), {7}));
    one->step();
    EXPECT_TRUE(std::isnan(std::as_const(p).data<double>()[0])) << optimizer.name;
    EXPECT_EQ(one->skipped_steps(), 0) << optimizer.name;
  }
}

}  // namespace
}  // namespace moegrad::optim::every_optimizer_test
