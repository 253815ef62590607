// SPDX-License-Identifier: Apache-2.0
// Note [bfloat16 on the tape].
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "framework/autograd/checkpoint.h"
#include "framework/autograd/engine.h"
#include "tests/framework/autograd/test_functions.h"
#include "tests/testing.h"

namespace moegrad::bf16_test {
namespace {

using namespace test;

constexpr auto kNarrow = Dtype::kBFloat16, kWide = Dtype::kFloat32;

Tensor filled(double value, Dtype dtype) { return Tensor::full({2}, value, dtype); }
Tensor leaf(Dtype dtype = kNarrow) { return filled(1, dtype).set_requires_grad(true); }

// x, whose gradient is that of the result times `factor`, as float32 or as bfloat16.
Tensor weighed(const Tensor& x, double factor, Dtype dtype) {
  return unary(
      x, "weighed", [](const Tensor& value) { return clone(value); },
      [=](const Tensor& grad) {
        return zip(to_dtype(grad, dtype), filled(factor, dtype), std::multiplies<>());
      });
}

// The last arrives first. Rounded to bfloat16 after each addition, the sum would stay 1: half the
// distance to the next number is 2^-8.
const std::vector<double> kFactors{0x1p-10, 0x1p-9, 0x1p-8, 1};

TEST(BFloat16OnTheTape, GradientsOfAResultAreAddedInFloat32AndRoundedOnce) {
  for (const auto dtype : {kWide, kNarrow}) {
    const Tensor x = leaf();
    std::vector<Tensor> seen;
    const Tensor h = probe(x, "h", [&](const Tensor& grad) -> TensorList {
      seen.push_back(grad);
      return {grad};
    });
    TensorList roots, grads;
    for (const auto factor : kFactors) {
      roots.push_back(weighed(h, factor, dtype));
      grads.push_back(filled(1, kNarrow));
    }
    run_backward(roots, grads, /*retain_graph=*/false);
    ASSERT_EQ(seen.size(), 1U);
    EXPECT_TRUE(bitwise_equal(seen[0], filled(1 + 0x1p-7, kNarrow)));
    EXPECT_TRUE(bitwise_equal(x.grad(), filled(1 + 0x1p-7, kWide)));
  }
}

TEST(BFloat16OnTheTape, TheGradientOfALeafIsFloat32AndNotRounded) {
  const Tensor x = leaf();
  for (int backward = 1; backward <= 2; ++backward) {
    TensorList roots, grads;
    for (const double factor : {1.0, 0x1p-8 + 0x1p-20}) {
      roots.push_back(weighed(x, factor, factor == 1 ? kNarrow : kWide));
      grads.push_back(filled(1, kNarrow));
    }
    run_backward(roots, grads, /*retain_graph=*/false);
    EXPECT_TRUE(bitwise_equal(x.grad(), filled(backward * (1 + 0x1p-8 + 0x1p-20), kWide)));
  }
}

TEST(BFloat16OnTheTape, ARootTakesAGradientOfEitherDtype) {
  for (const auto dtype : {kNarrow, kWide}) {
    const Tensor x = leaf();
    weighed(x, 3, kNarrow).backward(filled(1 + 0x1p-20, dtype));
    EXPECT_TRUE(bitwise_equal(x.grad(), filled(3, kWide)));
  }
  const Tensor number = Tensor::ones({}, kNarrow).set_requires_grad(true);
  number.backward();
  EXPECT_TRUE(bitwise_equal(number.grad(), Tensor::ones({}, kWide)));
}

TEST(BFloat16OnTheTape, UnusedResultsHaveGradientsOfZeros) {
  const Tensor x = Tensor::ones({4}, kNarrow).set_requires_grad(true);
  halves(x)[1].backward(filled(1, kNarrow));
  EXPECT_TRUE(bitwise_equal(x.grad(), Tensor::from(std::vector<float>{0, 0, 1, 1}, {4})));
}

TEST(BFloat16OnTheTape, HooksOfResultsSeeBFloat16AndThoseOfLeavesFloat32) {
  const Tensor x = leaf();
  const Tensor h = weighed(x, 1, kWide);
  std::vector<Dtype> seen;
  h.register_hook([&](const Tensor& grad) {
    seen.push_back(grad.dtype());
    return filled(1 + 0x1p-20, kWide);  // rounded before the Function sees it
  });
  x.register_hook([&](const Tensor& grad) {
    seen.push_back(grad.dtype());
    EXPECT_TRUE(bitwise_equal(grad, filled(1, kWide)));
    return filled(1 + 0x1p-20, kWide);
  });
  weighed(h, 1, kWide).backward(filled(1, kNarrow));
  EXPECT_EQ(seen, (std::vector<Dtype>{kNarrow, kWide}));
  EXPECT_TRUE(bitwise_equal(x.grad(), filled(1 + 0x1p-20, kWide)));
}

// One that only passes gradients on gets them as they have been added.
class PassOn final : public Function {
 public:
  std::string_view name() const override { return "pass_on"; }
  bool takes_wide_gradients() const override { return true; }
  Tensor forward(const Tensor& x) { return clone(x); }
  TensorList backward(const TensorList& grads, InputMask /*needs*/) override { return grads; }
};

TEST(BFloat16OnTheTape, AFunctionThatTakesWideGradientsGetsThemUnrounded) {
  const auto pass_on = [](const TensorList& in) { return TensorList{apply<PassOn>(in[0])}; };
  for (const bool recomputed : {false, true}) {
    const Tensor x = leaf();
    const Tensor y = recomputed ? checkpoint(pass_on, {x})[0] : pass_on({x})[0];
    weighed(y, 1 + 0x1p-20, kWide).backward(filled(1, kNarrow));
    EXPECT_TRUE(bitwise_equal(x.grad(), filled(1 + 0x1p-20, kWide))) << recomputed;
  }
}

TEST(BFloat16OnTheTape, NamesGradientsOfAnotherDtype) {
  const Tensor x = leaf();
  x.storage().set_name("w");
  const Tensor number = filled(1, Dtype::kFloat64), narrow = filled(1, kNarrow);
  const auto error = [](const auto& body) { return message_of<GradientDtypeError>(body); };
  EXPECT_EQ(error([&] { weighed(x, 1, Dtype::kFloat64).backward(narrow); }),
            "weighed: gradient of input 0 must be bfloat16 or float32, got float64");
  EXPECT_EQ(error([&] { weighed(x, 1, kNarrow).backward(number); }),
            "backward: gradient of root 0 must be bfloat16 or float32, got float64");
  const auto with_hook = [&](const Tensor& hooked, const Tensor& root) {
    auto handle = hooked.register_hook([&](const Tensor&) { return number; });
    const auto message = error([&] { root.backward(narrow); });
    handle.remove();
    return message;
  };
  const Tensor y = weighed(x, 1, kNarrow), z = weighed(x, 1, kNarrow);
  EXPECT_EQ(with_hook(y, y),
            "weighed: a hook's gradient of output 0 must be bfloat16 or float32, got float64");
  EXPECT_EQ(with_hook(x, z),
            "backward: a hook's gradient of leaf 'w' must be float32, got float64");
}

TEST(BFloat16OnTheTape, AFunctionThatReadsAnotherDtypeIsNamedAndWhatToCall) {
  const auto read_floats = [](const Tensor& tensor) {
    static_cast<void>(tensor.data<float>()[0]);
    return clone(tensor);
  };
  const auto same = [](const Tensor& tensor) { return clone(tensor); };
  EXPECT_EQ(message_of<DtypeError>([&] { unary(leaf(), "own", read_floats, same); }),
            "tensor: data of bfloat16 read as float32; input 0 of own is bfloat16: convert it with "
            "ops::cast");
  EXPECT_EQ(message_of<DtypeError>(
                [&] { unary(leaf(), "own", same, read_floats).backward(filled(1, kNarrow)); }),
            "tensor: data of bfloat16 read as float32; the gradient of output 0 of own is "
            "bfloat16: convert it with ops::cast");
}

}  // namespace
}  // namespace moegrad::bf16_test
