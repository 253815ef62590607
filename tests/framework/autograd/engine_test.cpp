// SPDX-License-Identifier: Apache-2.0
#include "framework/autograd/engine.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "framework/runtime/rank_context.h"
#include "tests/framework/autograd/test_functions.h"
#include "tests/testing.h"

namespace moegrad::engine_test {
namespace {

using namespace test;

Tensor ones(const Shape& shape) { return Tensor::ones(shape, Dtype::kFloat64); }

TensorList pass_on(const Tensor& grad) { return {grad}; }

TEST(Engine, GradientsMatchFiniteDifferences) {
  // A diamond, shared inputs, one tensor used twice by one Function, an unused output.
  const auto f = [](const TensorList& in) -> TensorList {
    const Tensor a = mul(in[0], in[1]);
    const Tensor b = mul(a, a);
    const Tensor c = add(a, in[0]);
    const auto parts = halves(add(mul(b, c), a));
    return {mul(parts[0], parts[0])};
  };
  EXPECT_TRUE(gradients_agree(f, {variable({6}, 1), variable({6}, 2)}));
}

TEST(Engine, ADiamondIsVisitedOncePerFunction) {
  const Tensor x = variable({2});
  int visits = 0;
  const Tensor top = probe(x, "top", [&](const Tensor& grad) {
    ++visits;
    EXPECT_EQ(grad.data<double>()[0], 4);  // complete: from left, right and twice from below
    return TensorList{grad};
  });
  const Tensor left = probe(top, "left", pass_on), right = probe(top, "right", pass_on);
  add(add(left, right), add(top, top)).backward(ones({2}));
  EXPECT_EQ(visits, 1);
  EXPECT_TRUE(bitwise_equal(x.grad(), Tensor::full({2}, 4, Dtype::kFloat64)));
}

TEST(Engine, TheSameTensorTwiceCountsTwice) {
  const Tensor x = variable({3});
  mul(x, x).backward(ones({3}));
  EXPECT_TRUE(bitwise_equal(x.grad(), add(x, x).detach()));
}

TEST(Engine, GradientsAccumulateOverBackwards) {
  const Tensor x = variable({3});
  const Tensor held = [&] {
    add(x, x).backward(ones({3}));
    return x.grad();
  }();
  add(x, x).backward(ones({3}));
  EXPECT_TRUE(bitwise_equal(x.grad(), Tensor::full({3}, 4, Dtype::kFloat64)));
  // Who holds the old gradient keeps the old values.
  EXPECT_TRUE(bitwise_equal(held, Tensor::full({3}, 2, Dtype::kFloat64)));
}

TEST(Engine, SumsNeverWriteIntoATensorThatOthersSee) {
  const Tensor x = variable({3}), y = variable({3}, 2), cotangent = ones({3});
  // add passes one gradient tensor to both inputs, and the caller holds it as well.
  add(add(x, y), x).backward(cotangent);
  EXPECT_TRUE(bitwise_equal(cotangent, ones({3})));
  EXPECT_TRUE(bitwise_equal(x.grad(), Tensor::full({3}, 2, Dtype::kFloat64)));
  EXPECT_TRUE(bitwise_equal(y.grad(), ones({3})));
}

TEST(Engine, UndefinedGradientsOfUnusedOutputsAreZeros) {
  const Tensor x = variable({4});
  halves(x)[1].backward(ones({2}));
  EXPECT_TRUE(bitwise_equal(x.grad(), Tensor::from(std::vector<double>{0, 0, 1, 1}, {4})));
}

TEST(Engine, StartsFromSeveralRootsAndFromALeaf) {
  const Tensor x = variable({2});
  const Tensor y = mul(x, x);
  run_backward({y, y, x, add(y, x)}, {ones({2}), ones({2}), ones({2}), ones({2})}, false);
  const Tensor grad = x.grad();
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_DOUBLE_EQ(grad.data<double>()[i], 6 * x.data<double>()[i] + 2);
  }
  run_backward({}, {}, false);
}

TEST(Engine, AStridedGradientIsMadeContiguousForItsLeaf) {
  const Tensor x = variable({3});
  probe(x, "expand", [](const Tensor& grad) -> TensorList {
    return {Tensor::as_strided(grad, {3}, {0}, 1)};
  }).backward(Tensor::from(std::vector<double>{1, 2, 3}, {3}));
  EXPECT_TRUE(bitwise_equal(x.grad(), Tensor::full({3}, 2, Dtype::kFloat64)));
  EXPECT_TRUE(x.grad().is_contiguous());
}

TEST(Engine, AccountsGradientsToTheByte) {
  RankContext context;
  const RankContextGuard guard(context);
  const auto use = [&] { return context.arena()->live(); };
  const Tensor x = variable({4}), y = variable({4}, 2), both = variable({8}, 3);
  const auto before = use();
  // The gradients of x and y are two views of one buffer; each leaf keeps its own bytes only.
  class Join final : public Function {
   public:
    std::string_view name() const override { return "join"; }
    Tensor forward(const Tensor& a, const Tensor& /*b*/) { return Tensor::zeros({8}, a.dtype()); }
    TensorList backward(const TensorList& grads, InputMask /*needs*/) override {
      const Tensor whole = clone(grads[0]);
      return {Tensor::as_strided(whole, {4}, {1}, 0), Tensor::as_strided(whole, {4}, {1}, 4)};
    }
  };
  mul(apply<Join>(x, y), both).backward(ones({8}));
  EXPECT_EQ(use()[MemoryTag::kGradients] - before[MemoryTag::kGradients], (4 + 4 + 8) * 8);
  EXPECT_EQ(use()[MemoryTag::kActivations], before[MemoryTag::kActivations]);
  const Tensor held = x.grad();
  add(x, x).backward(ones({4}));  // cannot add in place: a new gradient, of the same account
  EXPECT_EQ(use()[MemoryTag::kGradients] - before[MemoryTag::kGradients], (4 + 4 + 8 + 4) * 8);
  EXPECT_EQ(use()[MemoryTag::kActivations], before[MemoryTag::kActivations]);
}

TEST(Engine, BackwardFreesWhatWasSavedAsItGoes) {
  const Tensor x = variable({2});
  const Tensor y = mul(x, x);
  EXPECT_EQ(y.grad_fn()->saved_bytes(), 32);
  y.backward(ones({2}));
  EXPECT_EQ(y.grad_fn()->saved_bytes(), 0);
  EXPECT_EQ(message_of<Error>([&] { y.backward(ones({2})); }),
            "mul: backward a second time, but the saved tensors have been freed; pass "
            "retain_graph to the first backward");
}

TEST(Engine, RetainGraphAllowsASecondBackward) {
  const Tensor x = variable({2});
  const Tensor y = mul(x, x);
  y.backward(ones({2}), /*retain_graph=*/true);
  const Tensor first = clone(x.grad());
  y.backward(ones({2}));
  EXPECT_TRUE(bitwise_equal(x.grad(), add(first, first)));
}

TEST(Engine, BackwardRunsWithTheTapeOff) {
  const Tensor x = variable({2});
  probe(x, "look", [&](const Tensor& grad) {
    EXPECT_FALSE(grad_enabled());
    EXPECT_FALSE(mul(grad, x).requires_grad());
    return TensorList{grad};
  }).backward(ones({2}));
  EXPECT_TRUE(grad_enabled());
}

TEST(Engine, ALeafThatWasFrozenSinceForwardGetsNoGradient) {
  Tensor frozen = variable({2}, 1);
  const Tensor x = variable({2}, 2);
  int runs = 0;
  const auto handle = frozen.register_post_accumulate_grad_hook([&](const Tensor&) { ++runs; });
  const Tensor y = mul(frozen, x);
  frozen.set_requires_grad(false);
  y.backward(ones({2}));
  EXPECT_FALSE(frozen.grad().defined());
  EXPECT_TRUE(bitwise_equal(x.grad(), frozen));
  EXPECT_EQ(runs, 0);
}

TEST(Engine, AnExceptionLeavesTheThreadUsable) {
  const Tensor x = variable({2});
  const Tensor y = probe(x, "throws", [](const Tensor&) -> TensorList { throw ValueError("no"); });
  EXPECT_THROW(y.backward(ones({2})), ValueError);
  EXPECT_TRUE(grad_enabled());
  EXPECT_THROW(queue_backward_callback([] {}), Error);
  add(x, x).backward(ones({2}));
  EXPECT_TRUE(bitwise_equal(x.grad(), Tensor::full({2}, 2, Dtype::kFloat64)));
}

template <class E>
std::string message_of_gradient(const TensorList& returned) {
  const Tensor x = variable({2, 3});
  const Tensor y = probe(x, "wrong", [&](const Tensor&) { return returned; });
  return message_of<E>([&] { y.backward(ones({2, 3})); });
}

TEST(Engine, NamesAFunctionThatReturnsWrongGradients) {
  EXPECT_EQ(message_of_gradient<Error>({}), "wrong: backward must return 1 gradients, got 0");
  EXPECT_EQ(message_of_gradient<Error>({ones({2, 3}), ones({2, 3})}),
            "wrong: backward must return 1 gradients, got 2");
  EXPECT_EQ(message_of_gradient<Error>({Tensor()}),
            "wrong: backward returned no gradient for input 0, which needs one");
  EXPECT_EQ(message_of_gradient<ShapeError>({ones({3, 2})}),
            "wrong: gradient of input 0 must be [2, 3], got [3, 2]");
  EXPECT_EQ(message_of_gradient<DtypeError>({Tensor::ones({2, 3})}),
            "wrong: gradient of input 0 must be float64, got float32");
}

TEST(Engine, ChecksTheGradientOfARoot) {
  const Tensor x = variable({2});
  const Tensor y = mul(x, x);
  EXPECT_EQ(message_of<ShapeError>([&] { y.backward(); }),
            "backward: a gradient is needed for a root of more than one element, got [2]");
  EXPECT_EQ(message_of<ShapeError>([&] { y.backward(ones({3})); }),
            "backward: gradient of root 0 must be [2], got [3]");
  EXPECT_EQ(message_of<DtypeError>([&] { y.backward(Tensor::ones({2})); }),
            "backward: gradient of root 0 must be float64, got float32");
  EXPECT_EQ(message_of<Error>([&] {
              run_backward({y, randn({2})}, {ones({2}), ones({2})}, false);
            }),
            "backward: root 1 does not require a gradient and has no graph");
  EXPECT_EQ(message_of<Error>([&] { run_backward({y}, {}, false); }),
            "backward: 1 roots but 0 gradients");
  EXPECT_FALSE(x.grad().defined());
}

TEST(Engine, AnInputGradientSinkBelongsToABackward) {
  const Tensor x = variable({2});
  const Tensor y = mul(x, x);
  EXPECT_EQ(message_of<Error>([&] { InputGradientSink(*y.grad_fn(), 0); }),
            "InputGradientSink: no backward is under way in this thread");
}

}  // namespace
}  // namespace moegrad::engine_test
