// SPDX-License-Identifier: Apache-2.0
#include "framework/autograd/anomaly.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "framework/autograd/checkpoint.h"
#include "framework/runtime/call_stack.h"
#include "tests/framework/autograd/test_functions.h"
#include "tests/testing.h"

namespace moegrad::anomaly_test {
namespace {

using namespace test;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

class Log final : public Function {
 public:
  std::string_view name() const override { return "log"; }
  Tensor forward(const Tensor& x) {
    x_ = x;
    return test::zip(x, x, [](auto a, auto) { return std::log(a); });
  }
  TensorList backward(const TensorList& grads, InputMask /*needs*/) override {
    return {test::zip(grads[0], x_.unpack(), std::divides<>())};
  }

 private:
  SavedTensor x_{*this};
};

/// Column 1 of [n, 2].
class Column final : public Function {
 public:
  std::string_view name() const override { return "column"; }
  Tensor forward(const Tensor& x) { return Tensor::as_strided(x, {x.numel() / 2}, {2}, 1); }
  TensorList backward(const TensorList& /*grads*/, InputMask /*needs*/) override { return {}; }
};

/// bfloat16 of x * 1e300, which is infinite there.
class Overflow final : public Function {
 public:
  std::string_view name() const override { return "overflow"; }
  Tensor forward(const Tensor& x) {
    const Tensor huge = Tensor::full({x.numel()}, 1e300, Dtype::kFloat64);
    return to_dtype(test::zip(clone(x), huge, std::multiplies<>()), Dtype::kBFloat16);
  }
  TensorList backward(const TensorList& /*grads*/, InputMask /*needs*/) override { return {}; }
};

[[gnu::noinline]] Tensor log(const Tensor& x) { return apply<Log>(x); }

[[gnu::noinline]] Tensor entropy_of_the_test(const Tensor& x) { return mul(x, log(x)); }

Tensor values(std::vector<double> list, bool requires_grad = true) {
  Tensor x = Tensor::from(list, {std::ssize(list)});
  x.set_requires_grad(requires_grad);
  return x;
}

TEST(Anomaly, IsOffByDefaultAndRestoredByItsGuard) {
  EXPECT_FALSE(anomaly_detection_enabled());
  {
    const AnomalyModeGuard on;
    EXPECT_TRUE(anomaly_detection_enabled());
    {
      const AnomalyModeGuard off(false);
      EXPECT_FALSE(anomaly_detection_enabled());
    }
    EXPECT_TRUE(anomaly_detection_enabled());
  }
  EXPECT_FALSE(anomaly_detection_enabled());
  EXPECT_NO_THROW(entropy_of_the_test(values({1.0, -1.0})));
}

TEST(Anomaly, NamesTheFirstOpWithModulePathAndCallSite) {
  const AnomalyModeGuard on;
  const ScopeGuard scope("model.layers.3.mlp", nullptr, nullptr);
  const auto message = message_of<AnomalyError>([] {
    entropy_of_the_test(values({1.0, 2.0, -1.0}));
  });
  EXPECT_THAT(message, StartsWith("anomaly: log made nan in output 0 [3] at element 2; in module "
                                  "model.layers.3.mlp; called from\n  "));
  EXPECT_THAT(message, HasSubstr("entropy_of_the_test"));
  EXPECT_THAT(message, Not(HasSubstr("function.h")));
}

TEST(Anomaly, ShowsFileAndLineWhereTheProgramHasLineTables) {
  const auto lines = CallStack::capture().describe();
  ASSERT_FALSE(lines.empty());
  EXPECT_THAT(lines[0], HasSubstr("anomaly_test.cpp:"));
}

TEST(Anomaly, TellsInfinitiesFromNan) {
  const AnomalyModeGuard on;
  EXPECT_THAT(message_of<AnomalyError>([] { log(values({0.0})); }),
              StartsWith("anomaly: log made -inf in output 0 [1] at element 0; called from\n"));
  const Tensor huge = values({1e200});
  EXPECT_THAT(message_of<AnomalyError>([&] { mul(huge, huge); }),
              StartsWith("anomaly: mul made inf in output 0 [1] at element 0; called from\n"));
}

TEST(Anomaly, LooksAtBFloat16InBothDirections) {
  const AnomalyModeGuard on;
  const auto made = [](double value, Dtype dtype) {
    return [=](const Tensor& x) { return Tensor::full(x.shape(), value, dtype); };
  };
  const Tensor x = Tensor::ones({2}, Dtype::kBFloat16).set_requires_grad(true);
  const Tensor ones = Tensor::ones({2}, Dtype::kBFloat16);
  for (const double value : {std::nan(""), kInfinity, -kInfinity}) {
    const std::string word = std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
    const auto bad = made(value, Dtype::kBFloat16), good = made(1, Dtype::kBFloat16);
    EXPECT_THAT(message_of<AnomalyError>([&] { unary(x, "f", bad, good); }),
                StartsWith("anomaly: f made " + word + " in output 0 [2] at element 0"));
    const Tensor y = unary(x, "f", good, bad);
    EXPECT_THAT(message_of<AnomalyError>([&] { y.backward(ones); }),
                StartsWith("anomaly: backward of f made " + word +
                           " in the gradient of input 0 [2] at element 0"));
  }
  // A gradient that float32 holds and bfloat16 does not.
  const auto one = made(1, Dtype::kBFloat16);
  const auto huge = made(std::numeric_limits<float>::max(), Dtype::kFloat32);
  const Tensor y = unary(unary(x, "g", one, made(kInfinity, Dtype::kFloat32)), "f", one, huge);
  EXPECT_THAT(message_of<AnomalyError>([&] { y.backward(ones); }),
              StartsWith("anomaly: backward of g got inf in the gradient of output 0 [2] at "
                         "element 0"));
}

TEST(Anomaly, AnOpThatWasGivenItDidNotMakeIt) {
  const AnomalyModeGuard on;
  EXPECT_THAT(message_of<AnomalyError>([] {
                mul(values({1.0, 2.0}), values({1.0, kInfinity}));
              }),
              StartsWith("anomaly: mul got inf in input 1 [2] at element 1; called from\n"));
}

TEST(Anomaly, AlsoLooksAtWhatIsNotRecorded) {
  const AnomalyModeGuard on;
  const ScopeGuard scope("head", nullptr, nullptr);
  const std::string expected =
      "anomaly: log made nan in output 0 [1] at element 0; in module head; called from\n";
  EXPECT_THAT(message_of<AnomalyError>([] { log(values({-1.0}, false)); }), StartsWith(expected));
  const NoGradGuard no_grad;
  EXPECT_THAT(message_of<AnomalyError>([] { log(values({-1.0})); }), StartsWith(expected));
}

TEST(Anomaly, LooksInsideARecomputation) {
  const AnomalyModeGuard on;
  EXPECT_THAT(message_of<AnomalyError>([] {
                checkpoint([](const TensorList& in) -> TensorList { return {log(in[0])}; },
                           {values({-1.0})});
              }),
              StartsWith("anomaly: log made nan"));
}

// d log(x) / dx at 0 is infinite, log(x) itself is fine at a denormal.
TEST(Anomaly, NamesTheBackwardWithTheCallSiteOfItsForward) {
  const AnomalyModeGuard on;
  const Tensor x = values({1.0, 1e-310});
  const Tensor y = [&] {
    const ScopeGuard scope("head", nullptr, nullptr);
    return entropy_of_the_test(x);
  }();
  const Tensor z = log(x);
  EXPECT_THAT(message_of<AnomalyError>([&] {
                z.backward(values({1.0, 1.0}, false));
              }),
              StartsWith("anomaly: backward of log made inf in the gradient of input 0 [2] at "
                         "element 1; called from\n"));
  const auto message = message_of<AnomalyError>([&] {
    y.backward(values({1.0, kInfinity}, false));
  });
  EXPECT_THAT(message,
              StartsWith("anomaly: backward of mul got inf in the gradient of output 0 [2] "
                         "at element 1; in module head; called from\n"));
  EXPECT_THAT(message, HasSubstr("entropy_of_the_test"));
}

TEST(Anomaly, SaysSoWhenForwardWasNotWatched) {
  const Tensor y = log(values({1e-310}));
  const AnomalyModeGuard on;
  EXPECT_EQ(message_of<AnomalyError>([&] { y.backward(); }),
            "anomaly: backward of log made inf in the gradient of input 0 [1] at element 0; where "
            "forward was called is unknown: anomaly detection was off then");
}

TEST(Anomaly, ReadsStridedAndNarrowTensors) {
  const AnomalyModeGuard on;
  // Column 1 of [[1, inf], [2, 3]]; the row-major bytes before it are fine.
  const Tensor base = values({1.0, kInfinity, 2.0, 3.0}, false);
  const Tensor narrow = Tensor::as_strided(base, {2}, {2}, 0);  // 1, 2
  EXPECT_THAT(message_of<AnomalyError>([&] { apply<Column>(base); }),
              StartsWith("anomaly: column got inf in input 0 [4] at element 1"));
  EXPECT_THAT(message_of<AnomalyError>([&] { apply<Overflow>(narrow); }),
              StartsWith("anomaly: overflow made inf in output 0 [2] at element 0"));
}

TEST(Anomaly, FiniteValuesChangeNothing) {
  const Tensor x = variable({6}, 1);
  mul(mul(x, x), x).backward(randn({6}, 2));
  const Tensor watched = variable({6}, 1);
  const AnomalyModeGuard on;
  mul(mul(watched, watched), watched).backward(randn({6}, 2));
  EXPECT_TRUE(test::bitwise_equal(x.grad(), watched.grad()));
}

}  // namespace
}  // namespace moegrad::anomaly_test
