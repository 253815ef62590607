// SPDX-License-Identifier: Apache-2.0
#include "nn/recompute.h"

#include <gmock/gmock.h>

#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "framework/autograd/saved_tensor.h"
#include "framework/runtime/arena.h"
#include "framework/runtime/grad_mode.h"
#include "framework/runtime/rank_context.h"
#include "nn/linear.h"
#include "ops/elementwise.h"
#include "ops/reduce.h"
#include "tests/testing.h"

namespace moegrad::nn::recompute_test {
namespace {

using namespace test;
using ::testing::ElementsAre;

/// Arguments and a result of all kinds: tensors in structs, an absent one, what holds none.
struct Given {
  Tensor scale, absent;
  std::vector<int> powers;
};
void for_each_tensor(Given& given, const TensorVisitor& visit) {
  visit_tensors(visit, given.scale, given.absent);
}
struct Result {
  Tensor y, indices, unused;
  int calls = 0;
};
void for_each_tensor(Result& result, const TensorVisitor& visit) {
  visit_tensors(visit, result.y, result.indices, result.unused);
}

class Powers final : public Callable<Powers> {
 public:
  Powers() { register_parameter("weight", weight); }
  Result forward(const Tensor& x, const Given& given, const std::optional<Tensor>& more = {}) {
    Tensor y = x * weight;
    for (const int power : given.powers) {
      Tensor product = given.scale;
      for (int i = 0; i < power; ++i) product = product * y;
      y = y + product;
    }
    if (more) y = y * *more;
    return {.y = y,
            .indices = Tensor::from(std::vector<std::int64_t>{3, 1}, {2}),
            .unused = {},
            .calls = ++calls};
  }
  Tensor doubled(const Tensor& x) { return ops::mul(x * weight, 2.0); }

  Tensor weight = variable({4}, 1);
  int calls = 0;
};

struct Trained {
  TensorList tensors;  // y, and the gradients of all inputs
  std::vector<int> calls;
};

Trained train(bool recomputed) {
  Powers module;
  if (recomputed) recompute(module);
  const Tensor x = variable({4}, 2), scale = variable({4}, 3), more = variable({4}, 4);
  Given given = {.scale = ops::mul(scale, 1.5), .absent = {}, .powers = {2, 3}};
  const auto first = module(ops::mul(x, 1.0), given, more);
  given.powers = {};  // what the caller changes afterwards does not matter
  given.scale = {};
  const auto second = module(first.y, Given{.scale = scale, .absent = {}, .powers = {1}});
  EXPECT_EQ(second.indices.data<std::int64_t>()[0], 3);
  EXPECT_FALSE(second.unused.defined());
  second.y.backward(randn({4}, 5));
  return {{second.y.detach(), x.grad(), scale.grad(), more.grad(), module.weight.grad()},
          {first.calls, second.calls, module.calls}};
}

TEST(Recompute, GivesTheBitsOfNoRecomputationForArgumentsOfAnyKind) {
  const auto plain = train(false), again = train(true);
  for (std::size_t i = 0; i < plain.tensors.size(); ++i) {
    EXPECT_TRUE(bitwise_equal(plain.tensors[i], again.tensors[i])) << i;
  }
  EXPECT_THAT(plain.calls, ElementsAre(1, 2, 2));
  EXPECT_THAT(again.calls, ElementsAre(1, 2, 4));
}

TEST(Recompute, KeepsTheInputAndNothingElse) {
  const auto kept = [](bool recomputed) {
    Powers module;
    if (recomputed) recompute(module);
    const Tensor x = variable({4}, 2);
    const Given given = {.scale = Tensor::ones({4}, Dtype::kFloat64), .absent = {}, .powers = {3}};
    const auto& arena = *RankContext::current().arena();
    const auto before = arena.live()[MemoryTag::kActivations];
    const auto result = module(x, given);
    const auto forward = arena.live()[MemoryTag::kActivations] - before;
    result.y.backward(Tensor::ones({4}, Dtype::kFloat64), /*retain_graph=*/true);
    const auto backward = arena.live()[MemoryTag::kActivations] - before;
    EXPECT_EQ(backward, forward);  // what ran again has gone
    return forward;
  };
  constexpr std::int64_t kResult = 4 * sizeof(double) + 2 * sizeof(std::int64_t);
  EXPECT_GT(kept(false), kResult);
  EXPECT_EQ(kept(true), kResult);
}

TEST(Recompute, KeepsTheInputWhereSavedTensorHooksPutIt) {
  Powers module;
  recompute(module);
  const SavedTensorHooksGuard hooks({.pack = [](const TensorToSave& saved) -> std::any {
                                       const auto values = saved.tensor.data<double>();
                                       return std::vector<double>(values.begin(), values.end());
                                     },
                                     .unpack =
                                         [](const std::any& packed) {
                                           return Tensor::from(
                                               std::any_cast<std::vector<double>>(packed), {4});
                                         }});
  const Tensor leaf = variable({4}, 2);
  const auto& arena = *RankContext::current().arena();
  const auto before = arena.live()[MemoryTag::kActivations];
  const Tensor y = [&] {
    const Tensor x = ops::mul(leaf, 2.0);
    return module(x, Given{.scale = x, .absent = {}, .powers = {2}}).y;
  }();
  EXPECT_EQ(arena.live()[MemoryTag::kActivations] - before,
            static_cast<std::int64_t>(4 * sizeof(double)));
}

/// Takes a vector by value, and moves it away.
class TakesByValue final : public Callable<TakesByValue> {
 public:
  Tensor forward(const Tensor& x, std::vector<double> factors) {
    const auto own = std::move(factors);
    return ops::mul(x, own.at(0));
  }
};

TEST(Recompute, HasItsArgumentsForEveryBackward) {
  TakesByValue module;
  recompute(module);
  const Tensor x = variable({1}, 2);
  const Tensor y = module(x, std::vector<double>{3.0});
  for (int i = 1; i <= 3; ++i) {
    y.backward({}, /*retain_graph=*/true);
    EXPECT_EQ(x.grad().item(), 3.0 * i);
  }
}

TEST(Recompute, RunsOtherMethodsAgain) {
  Powers module;
  recompute(module);
  const Tensor x = variable({4}, 2);
  const auto twice = [](Powers& self, const Tensor& in) { return self.doubled(self.doubled(in)); };
  module.call_method(twice, x).backward(Tensor::ones({4}, Dtype::kFloat64));
  const Tensor expected = ops::mul(module.weight.detach() * module.weight.detach(), 4.0);
  EXPECT_TRUE(test::all_close(x.grad(), expected, 1e-14, 0));
}

TEST(Recompute, WithoutTheTapeRunsOnceAndKeepsNothing) {
  Powers module;
  recompute(module);
  const NoGradGuard no_grad;
  const auto result =
      module(randn({4}, 1), Given{.scale = randn({4}, 2), .absent = {}, .powers = {}});
  EXPECT_FALSE(result.y.requires_grad());
  EXPECT_EQ(module.calls, 1);
}

/// Two linear layers.
class Pair final : public Callable<Pair> {
 public:
  Pair() {
    register_module("first", first);
    register_module("second", second);
  }
  Tensor forward(const Tensor& x) { return second(first(x)); }
  Linear first{{.in_features = 3, .out_features = 3, .dtype = Dtype::kFloat64}};
  Linear second{{.in_features = 3, .out_features = 3, .dtype = Dtype::kFloat64}};
};

TEST(Recompute, PicksModulesByPath) {
  Pair pair;
  EXPECT_EQ(recompute(pair, [](std::string_view path) { return path == "second" || path == ""; }),
            2);
  EXPECT_EQ(pair.extensions().size(), 1U);
  EXPECT_TRUE(pair.first.extensions().empty());
  EXPECT_EQ(pair.second.extensions().size(), 1U);
  EXPECT_EQ(recompute(pair, [](std::string_view path) { return path == "third"; }), 0);
  int calls = 0;
  pair.second.register_forward_pre_hook([&](Module&) { ++calls; });
  ops::sum(pair(variable({2, 3}, 1))).backward();
  EXPECT_EQ(calls, 2);  // once more for the pair; its own body has no hooks
}

/// Multiplies what forward gets.
class Scale final : public ModuleExtension {
 public:
  TensorList around_forward(ForwardCall& call, const TensorList& inputs) override {
    ++calls;
    TensorList scaled;
    for (const auto& input : inputs) scaled.push_back(ops::mul(input, 3.0));
    return call.run(scaled);
  }
  int calls = 0;
};

TEST(Recompute, RunsTheExtensionsInsideItAgain) {
  for (const bool inside : {true, false}) {
    Pair pair;
    {
      const NoGradGuard no_grad;
      fill_(pair.first.named_parameters()[0].tensor, 1.0);
      fill_(pair.second.named_parameters()[0].tensor, 1.0);
    }
    const auto scale = std::make_shared<Scale>();
    if (inside) pair.attach(scale);
    recompute(pair);
    if (!inside) pair.attach(scale);
    const Tensor x = variable({2, 3}, 1);
    ops::sum(pair(x)).backward();
    EXPECT_EQ(scale->calls, inside ? 2 : 1);
    const Tensor grad = x.grad();
    for (const double value : grad.data<double>()) EXPECT_EQ(value, 27.0);
  }
}

/// What cannot be called again.
class Takes final : public Callable<Takes> {
 public:
  Tensor forward(const Tensor& x, std::unique_ptr<int> owned) { return ops::mul(x, *owned); }
};
class TakesMany final : public Callable<TakesMany> {
 public:
  Tensor forward(const Tensor& x, const std::vector<std::unique_ptr<int>>& owned) {
    return ops::mul(x, *owned[0]);
  }
};
class TakesBase final : public Callable<TakesBase> {
 public:
  Tensor forward(const Tensor& x, const std::ios_base& base) {
    return ops::mul(x, static_cast<double>(base.precision()));
  }
};

/// What refers to what the caller may have given up by then.
class TakesViews final : public Callable<TakesViews> {
 public:
  Tensor forward(const Tensor& x, const double* factor) { return ops::mul(x, *factor); }
  Tensor of_span(const Tensor& x, std::span<const double> factors) {
    return ops::mul(x, factors[0]);
  }
  Tensor of_text(const Tensor& x, std::string_view text) {
    return ops::mul(x, static_cast<double>(text.size()));
  }
  Tensor of_reference(const Tensor& x, std::reference_wrapper<const double> factor) {
    return ops::mul(x, factor.get());
  }
  Tensor of_list(const Tensor& x, std::initializer_list<double> factors) {
    return ops::mul(x, *factors.begin());
  }
  Tensor of_pair(const Tensor& x, const std::pair<int, const double*>& factor) {
    return ops::mul(x, *factor.second);
  }
  Tensor of_function(const Tensor& x, Tensor (*function)(const Tensor&)) { return function(x); }
};

TEST(Recompute, RejectsArgumentsThatReferToOthers) {
  const std::string expected =
      "module extension: an argument of the module cannot be copied, or points to what may be gone "
      "by then, so the module cannot run again";
  TakesViews module;
  const Tensor x = variable({2});
  const double two = 2;
  const std::vector<const double*> pointers = {&two};
  const auto run = [&](const auto& visit) {
    visit([&] { module(x, &two); });
    visit([&] { module.call_method(&TakesViews::of_span, x, std::span(&two, 1)); });
    visit([&] { module.call_method(&TakesViews::of_text, x, std::string_view("ab")); });
    visit([&] { module.call_method(&TakesViews::of_text, x, "ab"); });
    visit([&] { module.call_method(&TakesViews::of_reference, x, std::cref(two)); });
    visit([&] { module.call_method(&TakesViews::of_list, x, std::initializer_list<double>{2}); });
    visit([&] { module.call_method(&TakesViews::of_pair, x, std::pair(1, &two)); });
    visit([&] {
      module.call_method([](TakesViews& m, const Tensor& y,
                            const std::vector<const double*>& all) { return m.forward(y, all[0]); },
                         x, pointers);
    });
  };
  run([](const auto& call) { EXPECT_NO_THROW(call()); });
  recompute(module);
  run([&](const auto& call) { EXPECT_EQ(message_of<Error>(call), expected); });
  const NoGradGuard no_grad;  // then nothing runs again
  run([](const auto& call) { EXPECT_NO_THROW(call()); });
  const GradModeGuard tape_on(true);
  const auto square = +[](const Tensor& y) { return y * y; };
  EXPECT_NO_THROW(module.call_method(&TakesViews::of_function, x, square));
}

struct Undeclared {
  Tensor y;
};
class HidesItsResult final : public Callable<HidesItsResult> {
 public:
  Undeclared forward(const Tensor& x) { return {x * x}; }
};

TEST(Recompute, RejectsAResultWhoseTensorsNobodyFinds) {
  HidesItsResult module;
  EXPECT_TRUE(module(variable({2})).y.requires_grad());
  recompute(module);
  EXPECT_EQ(message_of<Error>([&] { module(variable({2})); }),
            "module extension: the module's result must be tensors, or declare them with "
            "for_each_tensor, so that they get gradients when the module runs again");
}

TEST(Recompute, RejectsArgumentsThatCannotBeKeptAndASecondTime) {
  const std::string expected =
      "module extension: an argument of the module cannot be copied, or points to what may be gone "
      "by then, so the module cannot run again";
  Takes takes;
  recompute(takes);
  EXPECT_EQ(message_of<Error>([&] { takes(variable({1}), std::make_unique<int>(2)); }), expected);
  TakesMany many;
  recompute(many);
  std::vector<std::unique_ptr<int>> owned;
  owned.push_back(std::make_unique<int>(2));
  EXPECT_EQ(message_of<Error>([&] { many(variable({1}), owned); }), expected);
  TakesBase base;
  recompute(base);
  std::ostringstream stream;
  const std::ios_base& as_base = stream;
  EXPECT_EQ(message_of<Error>([&] { base(variable({1}), as_base); }), expected);
  EXPECT_EQ(message_of<Error>([&] { recompute(base); }),
            "recompute: the module must not be recomputed already");
}

TEST(Recompute, BackwardNamesAModuleThatIsGone) {
  Tensor y;
  {
    Powers module;
    recompute(module);
    y = module(variable({4}), Given{Tensor::ones({4}, Dtype::kFloat64), {}, {1}}).y;
  }
  EXPECT_EQ(message_of<Error>([&] { ops::sum(y).backward(); }),
            "backward: the module no longer exists, but backward runs it again; keep the model "
            "until backward has run");
}

// Otherwise backward would differentiate another function than forward has computed.
TEST(Recompute, RefusesAnotherComputeDtypeInBackward) {
  Linear linear({.in_features = 3, .out_features = 2});
  recompute(linear);
  const auto message = [&](std::optional<Dtype> forward, std::optional<Dtype> backward) {
    linear.compute_in(forward);
    const Tensor y = linear(randn({4, 3}, 1, Dtype::kFloat32));
    linear.compute_in(backward);
    return message_of<Error>([&] { y.backward(Tensor::ones(y.shape(), y.dtype())); });
  };
  constexpr auto kRefusal =
      "recompute: a module must compute in backward in the dtype that it had in forward, got "
      "compute_in() in between";
  EXPECT_THAT(message(Dtype::kBFloat16, std::nullopt), ::testing::StartsWith(kRefusal));
  EXPECT_THAT(message(std::nullopt, Dtype::kBFloat16), ::testing::StartsWith(kRefusal));
}

}  // namespace
}  // namespace moegrad::nn::recompute_test
