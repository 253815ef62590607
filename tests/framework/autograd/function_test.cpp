// SPDX-License-Identifier: Apache-2.0
#include "framework/autograd/function.h"

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "framework/runtime/rank_context.h"
#include "tests/framework/autograd/test_functions.h"
#include "tests/testing.h"

namespace moegrad::function_test {
namespace {

using namespace test;

TEST(Function, IsRecordedIfAnInputRequiresAGradientAndTheTapeIsOn) {
  const Tensor x = variable({2}), plain = randn({2});
  EXPECT_TRUE(mul(x, plain).requires_grad());
  EXPECT_FALSE(mul(plain, plain).requires_grad());
  {
    const NoGradGuard no_grad;
    EXPECT_FALSE(mul(x, x).requires_grad());
    const GradModeGuard grad(true);
    EXPECT_TRUE(mul(x, x).requires_grad());
  }
  EXPECT_TRUE(grad_enabled());
}

TEST(Function, ForwardSeesDetachedInputsWithTheTapeOff) {
  class Look final : public Function {
   public:
    std::string_view name() const override { return "look"; }
    Tensor forward(const Tensor& x, const TensorList& more, int factor, const Tensor& absent) {
      EXPECT_FALSE(x.requires_grad());
      EXPECT_FALSE(more[1].requires_grad());
      EXPECT_FALSE(absent.defined());
      EXPECT_FALSE(grad_enabled());
      EXPECT_EQ(factor, 3);
      return clone(x);
    }
    TensorList backward(const TensorList& grads, InputMask needs) override {
      EXPECT_TRUE(needs[0]);
      EXPECT_FALSE(needs[1]);
      EXPECT_TRUE(needs[2]);
      EXPECT_FALSE(needs[3]);
      return {grads[0], Tensor(), grads[0], Tensor()};
    }
  };
  const Tensor x = variable({2}), y = variable({2}, 2);
  const Tensor out = apply<Look>(x, TensorList{randn({2}), y}, 3, Tensor());
  ASSERT_EQ(out.grad_fn()->edges().size(), 4U);
  out.backward(Tensor::ones({2}, Dtype::kFloat64));
  EXPECT_TRUE(x.grad().defined() && y.grad().defined());
}

TEST(Function, ReturnsWhatForwardReturns) {
  class Pair final : public Function {
   public:
    std::string_view name() const override { return "pair"; }
    std::array<Tensor, 2> forward(const Tensor& x) {
      return {clone(x), Tensor::zeros({1}, Dtype::kInt64)};
    }
    TensorList backward(const TensorList& grads, InputMask /*needs*/) override {
      EXPECT_FALSE(grads[1].defined());
      return {grads[0]};
    }
  };
  const Tensor x = variable({2});
  const auto [value, index] = apply<Pair>(x);
  EXPECT_TRUE(value.requires_grad());
  EXPECT_FALSE(index.requires_grad());
  value.backward(Tensor::ones({2}, Dtype::kFloat64));
  EXPECT_TRUE(x.grad().defined());
  const auto parts = halves(x);
  EXPECT_EQ(parts[0].output_index(), 0U);
  EXPECT_EQ(parts[1].output_index(), 1U);
  EXPECT_EQ(parts[0].grad_fn(), parts[1].grad_fn());
}

TEST(Function, RefusesFractalNzUnlessItSaysThatItReadsIt) {
  const Tensor nz = Tensor::empty_nz({2, 3}, {1, 2, 3}, Dtype::kFloat64);
  EXPECT_EQ(message_of<LayoutError>([&] {
              mul(variable({2, 3}), nz);
            }),
            "mul: input 1 must be row-major ND, got FRACTAL_NZ; convert it with nz_to_nd");
}

TEST(Function, AnObjectIsAppliedOnce) {
  const auto function = std::make_shared<test::Mul>();
  const Tensor x = variable({2});
  Function::apply(function, x, x);
  EXPECT_EQ(message_of<Error>([&] { Function::apply(function, x, x); }),
            "mul: a Function object can be applied only once");
}

TEST(Function, IsMadeOfWhatItsConstructorTakes) {
  class Scale final : public Function {
   public:
    Scale(std::unique_ptr<double> factor, int& made) : factor_(std::move(factor)) { ++made; }
    std::string_view name() const override { return "scale"; }
    Tensor forward(const Tensor& x, double times) {
      return Tensor::full(x.shape(), *factor_ * times * x.item(), Dtype::kFloat64);
    }
    TensorList backward(const TensorList& grads, InputMask /*needs*/) override { return grads; }

   private:
    std::unique_ptr<double> factor_;
  };
  int made = 0;
  const Tensor x = Tensor::full({1}, 2.0, Dtype::kFloat64);
  const Tensor y = apply<Scale>(made_with(std::make_unique<double>(3.0), made), x, 7.0);
  EXPECT_EQ(y.item(), 42.0);
  EXPECT_EQ(made, 1);
}

static_assert(!detail::kHidesTensors<Tensor> && !detail::kHidesTensors<TensorList>);
static_assert(!detail::kHidesTensors<double> && !detail::kHidesTensors<Shape>);
static_assert(!detail::kHidesTensors<std::vector<double>> && !detail::kHidesTensors<std::string>);
static_assert(detail::kHidesTensors<std::optional<Tensor>>);
static_assert(detail::kHidesTensors<std::array<Tensor, 2>>);
static_assert(detail::kHidesTensors<std::span<const Tensor>>);
static_assert(detail::kHidesTensors<NamedTensor> && detail::kHidesTensors<NamedTensors>);
static_assert(detail::kHidesTensors<std::pair<int, Tensor>>);
static_assert(detail::kHidesTensors<std::tuple<Tensor, int>>);

// Structs: wherever among the fields, and the fields of fields, a tensor is.
struct NoTensors {
  std::array<float, 2> numbers;
  int more[3];
  std::string name;
  std::optional<double> maybe;
  std::function<void()> call;
  Shape shape;
};
struct TensorFirst {
  Tensor weight;
  double eps;
};
struct TensorLast {
  NoTensors others;
  std::unique_ptr<int> pointer;
  Tensor weight;
};
struct Lists {
  int n;
  TensorList tensors;
};
struct Named {
  NamedTensors tensors;
  int n;
};
struct Nested {
  double eps;
  TensorLast inner;
  int after;
};
struct Derived : NoTensors {
  std::optional<Tensor> maybe_weight;
};
struct Array {
  int n;
  std::array<Tensor, 2> tensors;
};
static_assert(!detail::kHidesTensors<NoTensors> &&
              !detail::kHidesTensors<std::array<NoTensors, 3>>);
static_assert(detail::kHidesTensors<TensorFirst> && detail::kHidesTensors<TensorLast>);
static_assert(detail::kHidesTensors<Lists> && detail::kHidesTensors<Named>);
static_assert(detail::kHidesTensors<Nested> && detail::kHidesTensors<Derived>);
static_assert(detail::kHidesTensors<Array>);

// By ways that the compiler does not see.
TEST(Function, RefusesTensorsThatWouldGetNoGradient) {
  class Options {
   public:
    explicit Options(Tensor weight) : weight_(std::move(weight)) {}
    const Tensor& weight() const { return weight_; }

   private:
    Tensor weight_;
  };
  class Times final : public Function {
   public:
    Times() = default;
    explicit Times(const Tensor& weight) { weight_ = weight; }
    std::string_view name() const override { return "times"; }
    Tensor forward(const Tensor& x) { return clone(x); }
    Tensor forward(const Tensor& x, const Options& options) {
      weight_ = options.weight();
      return clone(x);
    }
    TensorList backward(const TensorList& grads, InputMask /*needs*/) override { return grads; }

   private:
    SavedTensor weight_{*this};
  };
  const Tensor x = variable({2}), weight = variable({2}, 2), constant = randn({2}, 3);
  for (const Tensor& input : {x, constant}) {
    EXPECT_EQ(message_of<Error>([&] { apply<Times>(input, Options(weight)); }),
              "times: a tensor that requires a gradient must be an argument of apply(), where it "
              "gets one, to be saved; detach() what is a constant");
    EXPECT_EQ(message_of<Error>([&] { apply<Times>(made_with(weight), input); }),
              "made_with: a tensor that requires a gradient must be an argument of apply(), where "
              "it gets one; detach() what is a constant");
  }
  EXPECT_TRUE(apply<Times>(x, Options(weight.detach())).requires_grad());
  EXPECT_TRUE(apply<Times>(made_with(constant), x).requires_grad());
  const NoGradGuard no_grad;
  EXPECT_NO_THROW(apply<Times>(x, Options(weight)));
  EXPECT_NO_THROW(apply<Times>(made_with(weight), x));
}

TEST(Function, MustNotBeNull) {
  EXPECT_EQ(message_of<Error>([] {
              Function::apply(std::shared_ptr<test::Mul>(), variable({2}), variable({2}));
            }),
            "Function::apply: must be given a Function, got null");
}

TEST(Function, RefusesMoreThanSixtyFourInputsAndUndefinedOutputs) {
  class Many final : public Function {
   public:
    std::string_view name() const override { return "many"; }
    Tensor forward(const TensorList& in) { return in.size() == 64 ? clone(in[0]) : Tensor(); }
    TensorList backward(const TensorList& /*grads*/, InputMask /*needs*/) override { return {}; }
  };
  const auto many = [](std::size_t n) { return apply<Many>(TensorList(n, variable({2}))); };
  EXPECT_NO_THROW(many(64));
  EXPECT_EQ(message_of<Error>([&] { many(65); }),
            "many: a Function takes at most 64 tensor inputs, got 65; apply it to parts and "
            "combine their results");
  EXPECT_EQ(message_of<Error>([&] { many(1); }), "many: forward must return defined tensors");
}

TEST(Function, NamesTheUndefinedInputThatForwardReads) {
  const Tensor x = variable({2});
  EXPECT_EQ(message_of<UndefinedTensorError>([&] { mul(x, Tensor()); }),
            "tensor: undefined tensor used; input 1 of mul was undefined");
  EXPECT_EQ(message_of<UndefinedTensorError>([&] { mul(Tensor(), Tensor()); }),
            "tensor: undefined tensor used; input 0 of mul was undefined; input 1 of mul was "
            "undefined");
  // One that forward makes itself is none of the caller's.
  class Own final : public Function {
   public:
    std::string_view name() const override { return "own"; }
    Tensor forward(const Tensor& /*x*/) { return clone(Tensor()); }
    TensorList backward(const TensorList& grads, InputMask /*needs*/) override {
      return {clone(grads[0])};
    }
  };
  EXPECT_EQ(message_of<UndefinedTensorError>([&] { apply<Own>(x); }),
            "tensor: undefined tensor used");
}

TEST(Function, NamesTheBackwardThatReadsAnUndefinedTensor) {
  const Tensor x = variable({2});
  const Tensor y = test::probe(
      x, "probe", [](const Tensor& /*grad*/) -> TensorList { return {clone(Tensor())}; });
  EXPECT_EQ(
      message_of<UndefinedTensorError>([&] { y.backward(Tensor::ones({2}, Dtype::kFloat64)); }),
      "tensor: undefined tensor used; in the backward of probe");
}

// The next Function's backward may return a view that strides over its own result.
TEST(Function, GradientsOfOutputsNeedNotBeContiguous) {
  const auto swap = [](const Tensor& x) {
    return Tensor::as_strided(x, {x.dim(1), x.dim(0)}, {x.strides()[1], x.strides()[0]}, 0);
  };
  const auto transpose = [&](const Tensor& x) { return clone(swap(x)); };
  const Tensor x = variable({2, 3});
  Shape strides;
  std::string refused;
  const Tensor y = test::probe(x, "probe", [&](const Tensor& grad) -> TensorList {
    strides = grad.strides();
    refused = message_of<LayoutError>([&] { (void)grad.data<double>(); });
    const Tensor rows = clone(grad);
    EXPECT_TRUE(rows.is_contiguous());
    return {rows};
  });
  const Tensor cotangent = test::randn({3, 2}, 5);
  unary(y, "transpose", transpose, swap).backward(cotangent);
  EXPECT_EQ(strides, (Shape{1, 2}));
  EXPECT_EQ(refused,
            "tensor: data needs a contiguous tensor, got shape [2, 3] with strides [1, 2]");
  EXPECT_TRUE(test::bitwise_equal(x.grad(), swap(cotangent)));
}

// g++ makes the Function before it evaluates the input, or after: the order on the tape must be
// that of execution.
TEST(Function, SequenceNumbersFollowExecution) {
  const Tensor x = variable({3});
  const auto outer = std::make_shared<test::Mul>();
  const Tensor inner = mul(x, x);
  const Tensor out = Function::apply(outer, inner, inner);
  EXPECT_GT(out.grad_fn()->sequence(), inner.grad_fn()->sequence());
  const Tensor sum = add(out, inner);  // inner now has two consumers
  sum.backward(Tensor::ones({3}, Dtype::kFloat64));
  // d(x^4 + x^2) = 4 x^3 + 2 x
  for (std::size_t i = 0; i < 3; ++i) {
    const double v = x.data<double>()[i];
    const Tensor grad = x.grad();
    EXPECT_NEAR(grad.data<double>()[i], 4 * v * v * v + 2 * v, 1e-12);
  }
}

TEST(Function, KnowsWhatItSavedAndWhereItGoes) {
  const Tensor x = variable({2, 3}), w = randn({2, 3});
  const Tensor y = mul(x, w);
  const auto& function = *y.grad_fn();
  EXPECT_EQ(function.name(), "mul");
  EXPECT_EQ(function.saved_bytes(), 2 * 6 * 8);
  EXPECT_EQ(function.outputs().size(), 1U);
  EXPECT_EQ(function.outputs()[0].shape, (Shape{2, 3}));
  ASSERT_EQ(function.edges().size(), 2U);
  EXPECT_TRUE(function.edges()[0].leaf.is(x));
  EXPECT_FALSE(function.edges()[1].needs_grad());
  EXPECT_TRUE(function.needs()[0]);
  EXPECT_FALSE(function.needs()[1]);
  EXPECT_EQ(function.scope(), nullptr);
}

TEST(Function, AGraphDiesWithItsResult) {
  std::weak_ptr<Function> function;
  const Tensor x = variable({2});
  {
    const Tensor y = mul(mul(x, x), x);
    function = y.grad_fn();
    EXPECT_FALSE(function.expired());
  }
  EXPECT_TRUE(function.expired());
}

// Runs forward, backward and destruction in a thread with the default stack.
TEST(Function, GraphsOfTwoThreadsAreIndependent) {
  std::vector<Tensor> grads(2);
  {
    std::vector<std::jthread> threads;
    for (std::size_t t = 0; t < 2; ++t) {
      threads.emplace_back([t, &grads] {
        RankContext context;
        const RankContextGuard guard(context);
        const ScopeGuard scope(
            "thread", [] {}, [] {});
        const Tensor x = variable({16}, 3);
        for (int step = 0; step < 50; ++step) {
          x.set_grad(Tensor());
          Tensor y = x;
          for (int i = 0; i < 20; ++i) y = mul(y, x);
          y.backward(Tensor::ones({16}, Dtype::kFloat64));
        }
        grads[t] = x.grad();
      });
    }
  }
  EXPECT_TRUE(bitwise_equal(grads[0], grads[1]));
}

}  // namespace
}  // namespace moegrad::function_test
