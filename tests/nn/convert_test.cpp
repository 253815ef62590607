// SPDX-License-Identifier: Apache-2.0

// Module::to.
#include <memory>

#include "framework/tensor/fill.h"
#include "framework/tensor/meta.h"
#include "nn/init.h"
#include "nn/linear.h"
#include "nn/module.h"
#include "nn/sequential.h"
#include "optim/adamw.h"
#include "optim/sgd.h"
#include "tests/testing.h"

namespace moegrad::nn::convert_test {
namespace {

using namespace test;

/// Two layers that share a weight, the second with a bias, and buffers of three dtypes.
class Net final : public Callable<Net> {
 public:
  Net() : first({.in_features = 3, .out_features = 3}), second(first.weight(), Tensor::zeros({3})) {
    register_module("first", first);
    register_module("second", second);
    register_buffer("mean", mean);
    register_buffer("narrow", narrow);
    register_buffer("count", count);
    init_weights(*this, 1, 0.5);
  }
  Tensor forward(const Tensor& x) { return second(first(x)); }
  Linear first, second;
  Tensor mean = randn({3}, 5, Dtype::kFloat32), narrow = Tensor::ones({2}, Dtype::kBFloat16),
         count = Tensor::zeros({1}, Dtype::kInt64);
};

TEST(Convert, ChangesParametersGradientsAndBuffersInPlace) {
  Net net;
  net(randn({2, 3}, 2, Dtype::kFloat32)).backward(randn({2, 3}, 3, Dtype::kFloat32));
  const auto handles = net.named_parameters();
  const auto buffer = net.mean;
  const Tensor weight = clone(net.first.weight()), grad = clone(net.first.weight().grad()),
               mean = clone(net.mean);
  net.to(Dtype::kFloat64);
  ASSERT_EQ(handles.size(), 2U);
  EXPECT_TRUE(net.first.weight().is(handles[0].tensor));
  EXPECT_TRUE(net.second.weight().is(handles[0].tensor));
  EXPECT_TRUE(bitwise_equal(handles[0].tensor.detach(), to_dtype(weight, Dtype::kFloat64)));
  EXPECT_TRUE(bitwise_equal(handles[0].tensor.grad(), to_dtype(grad, Dtype::kFloat64)));
  EXPECT_TRUE(handles[0].tensor.requires_grad());
  EXPECT_EQ(handles[0].tensor.storage().name(), "first.weight");
  EXPECT_EQ(handles[0].tensor.storage().tag(), MemoryTag::kParameters);
  EXPECT_EQ(handles[0].tensor.grad().storage().tag(), MemoryTag::kGradients);
  EXPECT_TRUE(net.mean.is(buffer));
  EXPECT_TRUE(bitwise_equal(buffer, to_dtype(mean, Dtype::kFloat64)));
  EXPECT_EQ(net.narrow.dtype(), Dtype::kFloat64);
  EXPECT_EQ(net.count.dtype(), Dtype::kInt64);
  EXPECT_EQ(net(randn({2, 3})).dtype(), Dtype::kFloat64);
  net.to(Dtype::kFloat32);
  EXPECT_TRUE(bitwise_equal(net.first.weight().detach(), weight));
}

TEST(Convert, ToTheSameDtypeChangesNothing) {
  Net net;
  const auto version = net.first.weight().storage().version();
  const auto* const bytes = net.first.weight().storage().data();
  net.to(Dtype::kFloat32);
  EXPECT_EQ(net.first.weight().storage().version(), version);
  EXPECT_EQ(net.first.weight().storage().data(), bytes);
}

TEST(Convert, AViewOfAWiderTensorGetsItsOwnBytes) {
  const Tensor wide = randn({2, 6}, 1, Dtype::kFloat32);
  Tensor view = Tensor::narrow(wide, 1, 2, 3);
  const Tensor values = clone(view);
  convert_(view, Dtype::kFloat64);
  EXPECT_TRUE(view.is_contiguous());
  EXPECT_TRUE(bitwise_equal(view, to_dtype(values, Dtype::kFloat64)));
  EXPECT_EQ(wide.dtype(), Dtype::kFloat32);
}

TEST(Convert, WithoutBytesThereIsNothingToCopy) {
  const auto net = [] {
    const MetaGuard meta;
    return std::make_unique<Linear>(Linear::Config{.in_features = 3, .out_features = 2});
  }();
  net->to(Dtype::kFloat64);
  EXPECT_TRUE(net->weight().is_meta());
  net->to_empty();
  EXPECT_EQ(net->weight().storage().bytes(), 48);
}

TEST(Convert, RejectsWhatIsNoArithmeticAndATapedBuffer) {
  Net net;
  EXPECT_EQ(message_of<DtypeError>([&] { net.to(Dtype::kBFloat16); }),
            "to: dtype must be float32 or float64, got bfloat16");
  EXPECT_EQ(message_of<DtypeError>([&] { net.to(Dtype::kInt64); }),
            "to: dtype must be float32 or float64, got int64");
  EXPECT_EQ(message_of<DtypeError>([&] { net.to(Dtype::kBool); }),
            "to: dtype must be float32 or float64, got bool");
  net.mean = net.second.bias() * 2.0;
  EXPECT_EQ(message_of<Error>([&] { net.to(Dtype::kFloat64); }),
            "to: buffer 'mean' must not be a result on the tape; change its values under a "
            "NoGradGuard");
  EXPECT_EQ(net.first.weight().dtype(), Dtype::kFloat32);
}

// Between forward and backward: whether the op has saved the parameter or not.
TEST(Convert, ABackwardWhoseForwardRanBeforeIsAnError) {
  Net net;
  const Tensor y = net.first(randn({2, 3}, 2, Dtype::kFloat32).set_requires_grad(true));
  net.to(Dtype::kFloat64);
  EXPECT_EQ(message_of<Error>([&] {
              y.backward(randn({2, 3}, 3, Dtype::kFloat32));
            }),
            "linear: a tensor of shape [3, 3] 'first.weight' saved for backward has been modified "
            "in place since; in module first");

  Net other;
  const Tensor z = other.second.bias() + Tensor::ones({3});
  other.to(Dtype::kFloat64);
  EXPECT_EQ(message_of<DtypeError>([&] { z.backward(Tensor::ones({3})); }),
            "add: leaf 'second.bias' must have the dtype that it had in forward, float32, got "
            "float64; convert a module before forward or after backward");
  EXPECT_FALSE(other.second.bias().grad().defined());
}

TEST(Convert, TheStepOfAnOptimizerThatWasMadeBeforeIsAnError) {
  Net net;
  optim::AdamW adamw(net.named_parameters(), {.lr = 0.1});
  optim::SGD sgd(net.named_parameters(), {.lr = 0.1});
  net.to(Dtype::kFloat64);
  net(randn({2, 3})).backward(randn({2, 3}, 3));
  const Tensor weight = clone(net.first.weight());
  const std::string expected =
      "step: 'first.weight' must be float32 as when the optimizer was made, got float64; make the "
      "optimizer after the module has been converted";
  EXPECT_EQ(message_of<DtypeError>([&] { adamw.step(); }), expected);
  EXPECT_EQ(message_of<DtypeError>([&] { sgd.step(); }), expected);
  EXPECT_TRUE(bitwise_equal(net.first.weight().detach(), weight));
  optim::AdamW(net.named_parameters(), {.lr = 0.1}).step();
  EXPECT_FALSE(bitwise_equal(net.first.weight().detach(), weight));
}

/// A layer that makes tensors of its own in forward.
class Shifted final : public Callable<Shifted> {
 public:
  Shifted() { register_parameter("shift", shift_); }
  Tensor forward(const Tensor& x) { return x + shift_ + Tensor::ones(x.shape(), dtype_); }

 protected:
  void converted_to(Dtype dtype) override { dtype_ = dtype; }

 private:
  Dtype dtype_ = Dtype::kFloat32;
  Tensor shift_ = Tensor::zeros({3});
};

TEST(Convert, TellsModulesThatKeepADtype) {
  Sequential net;
  net.emplace_back<Shifted>();
  net.to(Dtype::kFloat64);
  const Tensor y = net(Tensor::ones({3}, Dtype::kFloat64));
  EXPECT_EQ(y.data<double>()[0], 2.0);
}

}  // namespace
}  // namespace moegrad::nn::convert_test
