// SPDX-License-Identifier: Apache-2.0
// How a module is called, and what an error says that leaves the call.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "framework/autograd/anomaly.h"
#include "framework/autograd/function.h"
#include "framework/runtime/grad_mode.h"
#include "framework/runtime/rank_context.h"
#include "framework/tensor/fill.h"
#include "nn/linear.h"
#include "nn/module.h"
#include "nn/rms_norm.h"
#include "ops/elementwise.h"
#include "ops/reduce.h"
#include "tests/nn/small_modules.h"
#include "tests/testing.h"

namespace moegrad::nn::call_test {
namespace {

using namespace test;

struct Extras {
  Tensor targets = {};
  double scale = 1.0;
};

class Documents final : public Callable<Documents> {
 public:
  Tensor forward(const Tensor& x, const std::vector<std::int64_t>& lengths,
                 const Extras& extras = {}) {
    got = lengths;
    return ops::mul(extras.targets.defined() ? extras.targets : x, extras.scale);
  }
  std::vector<std::int64_t> got;
};

TEST(Call, TakesArgumentsInBraces) {
  Documents module;
  const Tensor x = Tensor::ones({2}), y = Tensor::full({2}, 5.0);
  EXPECT_TRUE(bitwise_equal(module(x, {0, 2}), x));
  EXPECT_EQ(module.got, (std::vector<std::int64_t>{0, 2}));
  EXPECT_TRUE(
      bitwise_equal(module(x, {0, 1, 2}, {.targets = y, .scale = 2.0}), Tensor::full({2}, 10.0)));
  const std::vector<std::int64_t> lengths{0, 2};
  EXPECT_TRUE(bitwise_equal(module(x, lengths, {.scale = 3.0}), Tensor::full({2}, 3.0)));
  EXPECT_TRUE(bitwise_equal(module(x, {}), x));
  EXPECT_TRUE(module.got.empty());
}

/// Takes what cannot be copied, gives back the same object.
class Owner final : public Callable<Owner> {
 public:
  std::unique_ptr<int> forward(std::unique_ptr<int> value) noexcept { return value; }
};
class Four final : public Callable<Four> {
 public:
  int forward(int a, const std::array<int, 2>& b, long c, Extras d) const {
    return a + b[0] + b[1] + static_cast<int>(c) + static_cast<int>(d.scale);
  }
};
class Overloaded final : public Callable<Overloaded> {
 public:
  std::string forward(const Tensor& /*x*/) { return "one"; }
  std::string forward(const Tensor& /*x*/, int /*n*/) { return "two"; }
  std::string forward(Tensor& /*x*/, std::string& /*text*/) { return "lvalues"; }
};
class Anything final : public Callable<Anything> {
 public:
  template <class... T>
  std::size_t forward(const T&... /*values*/) {
    return sizeof...(T);
  }
};

TEST(Call, ForwardsAsForwardItselfWould) {
  auto value = std::make_unique<int>(7);
  const auto* address = value.get();
  Owner owner;
  EXPECT_EQ(owner(std::move(value)).get(), address);
  EXPECT_EQ(owner({}), nullptr);
  Four four;
  EXPECT_EQ(four(1, {2, 3}, 4, {.scale = 5}), 15);
  Tensor x = Tensor::ones({1});
  std::string text;
  Overloaded overloaded;
  EXPECT_EQ(overloaded(x), "one");
  EXPECT_EQ(overloaded(x, 3), "two");
  EXPECT_EQ(overloaded(x, text), "lvalues");
  Anything anything;
  EXPECT_EQ(anything(), 0U);
  EXPECT_EQ(anything(1, x, 2.0, text, 'c'), 5U);
}

template <class M, class... A>
concept CanBeCalled = requires(M& module, A&&... a) {
  module.forward(std::forward<A>(a)...);
};
static_assert(CanBeCalled<Documents, Tensor, std::vector<std::int64_t>>);
static_assert(std::is_same_v<decltype(std::declval<Four&>()(1, {2, 3}, 4, {})), int>);

/// outer.middle.norm, whose weight has four elements, and a Linear of the same tree.
class Outer final : public Callable<Outer> {
 public:
  Outer() { register_module("middle", middle_); }
  Tensor forward(const Tensor& x, bool own_error = false) {
    if (own_error) throw ValueError("outer: no");
    return middle_(x);
  }

 private:
  Normed middle_;
};
class Root final : public Callable<Root> {
 public:
  Root() { register_module("outer", outer_); }
  Tensor forward(const Tensor& x) { return outer_(x); }
  Outer& outer() { return outer_; }
  Tensor own_error(const Tensor& x) { return outer_(x, true); }

 private:
  Outer outer_;
};

TEST(Call, AnErrorNamesTheInnermostModuleOnce) {
  Root root;
  EXPECT_EQ(message_of<ShapeError>([&] {
              root(variable({3, 5}));
            }),
            "rms_norm: weight must be [5] to match x [3, 5], got [4]; in module "
            "outer.middle.norm");
  // The type stays, and so does an error of a module's own.
  EXPECT_EQ(message_of<ValueError>([&] {
              root.call_method(&Root::own_error, variable({3, 4}));
            }),
            "outer: no; in module outer");
}

TEST(Call, AnErrorOfTheOutermostModuleIsAsItWas) {
  RMSNorm norm({.dim = 4, .dtype = Dtype::kFloat64});
  EXPECT_EQ(message_of<ShapeError>([&] {
              norm(variable({3, 5}));
            }),
            "rms_norm: weight must be [5] to match x [3, 5], got [4]");
}

TEST(Call, AnErrorInBackwardNamesTheModuleOfItsFunction) {
  Root root;
  Tensor weight = *root.parameter_slots()[0].tensor;
  const Tensor y = ops::sum(root(variable({3, 4})));
  weight.mutable_data<double>()[0] = 2.0;
  EXPECT_EQ(
      message_of<Error>([&] { y.backward(); }),
      "rms_norm: a tensor of shape [4] 'outer.middle.norm.weight' saved for backward has been "
      "modified in place since; in module outer.middle.norm");
}

TEST(Call, AnAnomalyNamesItsModuleOnce) {
  const AnomalyModeGuard on;
  Root root;
  {
    const NoGradGuard no_grad;
    fill_(*root.parameter_slots()[0].tensor, std::numeric_limits<double>::infinity());
  }
  const auto message = message_of<AnomalyError>([&] { root(variable({1, 4})); });
  const auto first = message.find("; in module outer.middle.norm; called from\n");
  EXPECT_NE(first, std::string::npos) << message;
  EXPECT_EQ(message.find("; in module", first + 1), std::string::npos) << message;
  // The calls between the user's own lines are left out.
  for (const auto* noise : {"nn/module.h", "tensor_arguments.h", "function.h", "/c++/"}) {
    EXPECT_EQ(message.find(noise), std::string::npos) << noise << '\n' << message;
  }
  EXPECT_NE(message.find("Normed::forward"), std::string::npos) << message;
}

TEST(Call, TheDebugLogShowsWhichModulesRun) {
  Root root;
  RankContext context({.log_level = LogLevel::kDebug});
  const RankContextGuard guard(context);
  ::testing::internal::CaptureStderr();
  ops::sum(root(variable({3, 4}))).backward();
  std::string text = ::testing::internal::GetCapturedStderr();
  std::vector<std::string> lines;
  while (!text.empty()) {
    const auto end = text.find('\n');
    const auto line = text.substr(0, end);
    lines.push_back(line.substr(line.find("debug")));
    text.erase(0, end + 1);
  }
  EXPECT_EQ(lines, (std::vector<std::string>{
                       "debug [rank 0] forward (root)", "debug [rank 0] forward outer",
                       "debug [rank 0] forward outer.middle",
                       "debug [rank 0] forward outer.middle.norm", "debug [rank 0] backward (root)",
                       "debug [rank 0] backward outer", "debug [rank 0] backward outer.middle",
                       "debug [rank 0] backward outer.middle.norm"}));
  context.set_log_level(LogLevel::kInfo);
  ::testing::internal::CaptureStderr();
  ops::sum(root(variable({3, 4}))).backward();
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

/// What a layer of one's own does with is_training(): multiplies by 2 in training.
class Doubles final : public Callable<Doubles> {
 public:
  Tensor forward(const Tensor& x) { return is_training() ? ops::mul(x, 2.0) : x; }
};
class HasDoubles final : public Callable<HasDoubles> {
 public:
  HasDoubles() { register_module("doubles", doubles_); }
  Tensor forward(const Tensor& x) { return doubles_(x); }

 private:
  Doubles doubles_;
};

TEST(Call, ALayerOfOnesOwnAsksWhetherItIsTraining) {
  HasDoubles model;
  const Tensor x = Tensor::ones({1});
  EXPECT_EQ(model(x).item(), 2);
  model.eval();
  EXPECT_FALSE(model.is_training());
  EXPECT_EQ(model(x).item(), 1);
  model.train();
  EXPECT_EQ(model(x).item(), 2);
}

TEST(Call, ALayerThatIsNotRegisteredIsNoPartOfTheModel) {
  class Forgetful final : public Callable<Forgetful> {
   public:
    Tensor forward(const Tensor& x) { return linear(x); }
    Linear linear{{.in_features = 2, .out_features = 2}};
  };
  Forgetful model;
  EXPECT_EQ(model(Tensor::ones({1, 2})).shape(), (Shape{1, 2}));
  EXPECT_TRUE(model.named_parameters().empty());
}

}  // namespace
}  // namespace moegrad::nn::call_test
