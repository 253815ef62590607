// SPDX-License-Identifier: Apache-2.0
#include "framework/autograd/saved_tensor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <any>
#include <cstring>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "framework/autograd/engine.h"
#include "framework/autograd/graph.h"
#include "framework/autograd/scope.h"
#include "framework/tensor/tensor_impl.h"
#include "tests/framework/autograd/test_functions.h"
#include "tests/testing.h"

namespace moegrad::saved_tensor_test {
namespace {

using namespace test;

class Holder final : public Function {
 public:
  std::string_view name() const override { return "holder"; }
  TensorList backward(const TensorList& grads, InputMask /*needs*/) override { return grads; }
  SavedTensor saved{*this};
};

TEST(SavedTensor, GivesBackADetachedHandleOnTheSameBytes) {
  const NoGradGuard no_grad;
  const auto holder = std::make_shared<Holder>();
  EXPECT_FALSE(holder->saved.unpack().defined());
  EXPECT_EQ(holder->saved_bytes(), 0);
  const Tensor x = variable({2, 3});
  holder->saved = mul(x, x);
  EXPECT_FALSE(holder->saved.unpack().requires_grad());
  EXPECT_EQ(holder->saved_bytes(), 48);
  holder->saved = Tensor();
  EXPECT_FALSE(holder->saved.unpack().defined());
  holder->saved = x;
  EXPECT_EQ(&holder->saved.unpack().storage(), &x.storage());
  EXPECT_FALSE(holder->saved.unpack().requires_grad());
}

TEST(SavedTensor, CountsThePaddingOfNz) {
  const auto holder = std::make_shared<Holder>();
  holder->saved = Tensor::empty_nz({2, 3}, {1, 2, 3}, Dtype::kFloat32);
  EXPECT_EQ(holder->saved_bytes(), 256 * 4);
}

TEST(SavedTensor, DetectsModificationInPlaceThroughAnyView) {
  Tensor w = randn({2, 3});
  const Tensor x = variable({2, 3});
  const Tensor y = mul(x, w);
  Tensor row = Tensor::as_strided(w, {3}, {1}, 3);
  row.mutable_data<double>()[0] = 0;
  EXPECT_EQ(message_of<Error>([&] {
              y.backward(Tensor::ones({2, 3}, Dtype::kFloat64));
            }),
            "mul: a tensor of shape [2, 3] saved for backward has been modified in place since");
}

TEST(SavedTensor, ModificationBeforeSavingIsFine) {
  Tensor w = randn({2});
  fill_(w, 3);
  const Tensor x = variable({2});
  mul(x, w).backward(Tensor::ones({2}, Dtype::kFloat64));
  EXPECT_TRUE(bitwise_equal(x.grad(), w));
}

TEST(SavedTensor, BytesThatWereReleasedAndRefilledAreNotModified) {
  Tensor w = Tensor::from(std::vector<double>{2, 3}, {2});
  w.storage().set_name("w");
  const Tensor x = variable({2});
  const Tensor y = mul(x, w);
  w.storage().release();
  EXPECT_EQ(message_of<Error>(
                [&] { y.backward(Tensor::ones({2}, Dtype::kFloat64), /*retain_graph=*/true); }),
            "tensor: the bytes of 'w' have been released; unshard its module before reading it");
  w.storage().refill();
  const double values[] = {2, 3};
  std::memcpy(w.storage().data(), values, sizeof values);
  y.backward(Tensor::ones({2}, Dtype::kFloat64));
  EXPECT_TRUE(bitwise_equal(x.grad(), w));
}

TEST(SavedTensor, ReleaseForgetsTheTensor) {
  const auto holder = std::make_shared<Holder>();
  holder->saved = randn({2});
  holder->release_saved();
  EXPECT_EQ(holder->saved_bytes(), 0);
  EXPECT_EQ(message_of<Error>([&] { (void)holder->saved.unpack(); }),
            "holder: backward a second time, but the saved tensors have been freed; pass "
            "retain_graph to the first backward");
}

// Offload to float32 and back.
SavedTensorHooks narrow(int& packed, int& unpacked) {
  return {.pack =
              [&packed](const TensorToSave& saved) {
                ++packed;
                return std::any(to_dtype(saved.tensor, Dtype::kFloat32));
              },
          .unpack =
              [&unpacked](const std::any& value) {
                ++unpacked;
                return to_dtype(std::any_cast<Tensor>(value), Dtype::kFloat64);
              }};
}

TEST(SavedTensorHooks, ReplaceWhatIsKept) {
  int packed = 0, unpacked = 0;
  const Tensor x = variable({2}), w = randn({2}, 2);
  const Tensor y = [&] {
    const SavedTensorHooksGuard guard(narrow(packed, unpacked));
    return mul(x, w);
  }();
  EXPECT_EQ(packed, 2);
  EXPECT_EQ(y.grad_fn()->saved_bytes(), 2 * 2 * 8);
  EXPECT_EQ(y.grad_fn()->packed_bytes(), 2 * 2 * 8);
  EXPECT_EQ(summarize_graph(y).packed_bytes, 2 * 2 * 8);
  const auto profile = live_bytes_profile(y);
  EXPECT_EQ(profile.front().packed, 2 * 2 * 8);
  EXPECT_EQ(profile.front().saved, 0);
  y.backward(Tensor::ones({2}, Dtype::kFloat64));
  EXPECT_EQ(unpacked, 1);  // only w is needed
  EXPECT_EQ(y.grad_fn()->saved_bytes(), 0);
  EXPECT_EQ(y.grad_fn()->packed_bytes(), 0);
  EXPECT_TRUE(bitwise_equal(x.grad(), to_dtype(to_dtype(w, Dtype::kFloat32), Dtype::kFloat64)));
}

TEST(SavedTensorHooks, UnpackOnceUntilTheTensorIsReleased) {
  int packed = 0, unpacked = 0;
  const Tensor x = variable({2}), w = variable({2}, 2);
  const SavedTensorHooksGuard guard(narrow(packed, unpacked));
  const Tensor y = mul(x, w);
  const Tensor ones = Tensor::ones({2}, Dtype::kFloat64);
  y.backward(ones, /*retain_graph=*/true);
  y.backward(ones, /*retain_graph=*/true);
  auto weights = backward_to_inputs({y}, {ones}, {x}, /*retain_graph=*/true);
  weights.run();
  EXPECT_EQ(packed, 2);
  EXPECT_EQ(unpacked, 2);
}

TEST(SavedTensorHooks, WhatTheyMadeIsFreedWithTheSavedTensor) {
  std::vector<std::weak_ptr<int>> packed;
  std::vector<std::weak_ptr<Storage>> unpacked;
  const SavedTensorHooksGuard guard({.pack =
                                         [&](const TensorToSave& /*saved*/) {
                                           const auto made = std::make_shared<int>(3);
                                           packed.push_back(made);
                                           return std::any(made);
                                         },
                                     .unpack =
                                         [&](const std::any& /*made*/) {
                                           const Tensor tensor = Tensor::ones({2}, Dtype::kFloat64);
                                           unpacked.push_back(tensor.impl()->storage);
                                           return tensor;
                                         }});
  const auto count = [](const auto& all) {
    return std::ranges::count_if(all, [](const auto& one) { return !one.expired(); });
  };
  const Tensor y = mul(variable({2}), variable({2}, 2));
  EXPECT_EQ(count(packed), 2);
  const Tensor ones = Tensor::ones({2}, Dtype::kFloat64);
  y.backward(ones, /*retain_graph=*/true);
  EXPECT_EQ(count(packed), 2);
  EXPECT_EQ(count(unpacked), 2);
  y.backward(ones);  // the graph is still there, without what it saved
  EXPECT_NE(y.grad_fn(), nullptr);
  EXPECT_EQ(count(packed), 0);
  EXPECT_EQ(count(unpacked), 0);
}

TEST(SavedTensorHooks, SeeWhoSavesWhat) {
  std::vector<std::tuple<std::string, std::string, bool, std::int64_t>> seen;
  const SavedTensorHooksGuard guard(
      {.pack =
           [&](const TensorToSave& saved) {
             EXPECT_FALSE(saved.tensor.requires_grad());
             seen.emplace_back(saved.owner.name(), saved.owner.scope()->path(), saved.is_parameter,
                               saved.bytes);
             return std::any();  // which leaves the tensor as it is
           },
       .unpack = [](const std::any&) -> Tensor { throw Error("nothing was packed"); }});
  const Tensor x = variable({2, 3});
  Tensor w = variable({2, 3}, 2);
  w.storage().retag(MemoryTag::kParameters);
  const Tensor y = [&] {
    const ScopeGuard scope("layer", {}, {});
    return mul(x, Tensor::as_strided(w, {2, 3}, {3, 1}, 0));
  }();
  using Seen = std::tuple<std::string, std::string, bool, std::int64_t>;
  EXPECT_EQ(seen, (std::vector<Seen>{{"mul", "layer", false, 48}, {"mul", "layer", true, 48}}));
  EXPECT_EQ(y.grad_fn()->saved_bytes(), 96);
  EXPECT_EQ(y.grad_fn()->packed_bytes(), 0);
  y.backward(Tensor::ones({2, 3}, Dtype::kFloat64));
  EXPECT_TRUE(bitwise_equal(x.grad(), w.detach()));
}

TEST(SavedTensorHooks, TheInnermostGuardWins) {
  int outer = 0, inner = 0, unpacked = 0;
  const Tensor x = variable({2});
  const SavedTensorHooksGuard guard(narrow(outer, unpacked));
  {
    const SavedTensorHooksGuard innermost(narrow(inner, unpacked));
    mul(x, x);
  }
  EXPECT_EQ(inner, 2);
  EXPECT_EQ(outer, 0);
  mul(x, x);
  EXPECT_EQ(outer, 2);
}

TEST(SavedTensorHooks, AreNotCalledForWhatIsNotRecorded) {
  int packed = 0, unpacked = 0;
  const SavedTensorHooksGuard guard(narrow(packed, unpacked));
  mul(randn({2}), randn({2}));
  const NoGradGuard no_grad;
  mul(variable({2}), variable({2}));
  EXPECT_EQ(packed, 0);
}

TEST(SavedTensorHooks, DoNotOutliveTheirUseInASavedTensor) {
  int packed = 0, unpacked = 0;
  const auto holder = std::make_shared<Holder>();
  {
    const SavedTensorHooksGuard guard(narrow(packed, unpacked));
    holder->saved = randn({2}, 1);
  }
  const Tensor second = randn({2}, 2);
  holder->saved = second;
  EXPECT_TRUE(bitwise_equal(holder->saved.unpack(), second));
  EXPECT_EQ(unpacked, 0);
}

}  // namespace
}  // namespace moegrad::saved_tensor_test
