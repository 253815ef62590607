// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "nn/module.h"
#include "nn/rms_norm.h"
#include "tests/nn/small_modules.h"
#include "tests/testing.h"

namespace moegrad::nn::module_hooks_test {
namespace {

using namespace test;

class ModuleHooks : public ::testing::Test {
 protected:
  std::function<void(Module&)> note(const std::string& what) {
    return [this, what](Module&) { events_.push_back(what); };
  }
  void train_step() {
    events_.clear();
    block_(variable({3, 4})).backward(randn({3, 4}, 2));
  }

  Normed block_;
  std::vector<std::string> events_;
};

TEST_F(ModuleHooks, RunAroundForwardAndBackwardInOrder) {
  block_.register_forward_pre_hook(note("forward pre"));
  block_.register_forward_hook(note("forward"));
  block_.register_backward_pre_hook(note("backward pre"));
  block_.register_backward_hook(note("backward"));
  block_.norm.register_forward_pre_hook(note("norm forward pre"));
  block_.norm.register_forward_hook(note("norm forward"));
  block_.norm.register_backward_pre_hook(note("norm backward pre"));
  block_.norm.register_backward_hook(note("norm backward"));
  train_step();
  EXPECT_EQ(events_, (std::vector<std::string>{"forward pre", "norm forward pre", "norm forward",
                                               "forward", "backward pre", "norm backward pre",
                                               "norm backward", "backward"}));
}

TEST_F(ModuleHooks, AreGivenTheirModule) {
  const Module* seen = nullptr;
  block_.norm.register_forward_hook([&](Module& module) { seen = &module; });
  train_step();
  EXPECT_EQ(seen, &block_.norm);
}

TEST_F(ModuleHooks, EachIsRemovedByItsHandle) {
  std::vector<HookHandle> handles;
  handles.push_back(block_.register_forward_pre_hook(note("forward pre")));
  handles.push_back(block_.register_forward_hook(note("forward")));
  handles.push_back(block_.register_backward_pre_hook(note("backward pre")));
  handles.push_back(block_.register_backward_hook(note("backward")));
  block_.register_forward_hook(note("stays"));
  for (std::size_t left = 4; left > 0; --left) {
    train_step();
    EXPECT_EQ(events_.size(), left + 1);
    handles[left - 1].remove();
  }
  train_step();
  EXPECT_EQ(events_, std::vector<std::string>{"stays"});
}

TEST_F(ModuleHooks, ABackwardHookIsThereFromTheNextForwardOn) {
  const Tensor before = block_(variable({3, 4}));
  auto handle = block_.register_backward_hook(note("backward"));
  before.backward(randn({3, 4}, 2));
  EXPECT_TRUE(events_.empty());
  train_step();
  EXPECT_EQ(events_, std::vector<std::string>{"backward"});
  handle.remove();
  train_step();
  EXPECT_TRUE(events_.empty());
}

TEST_F(ModuleHooks, ForwardAloneRunsNone) {
  block_.register_forward_hook(note("forward"));
  block_.forward(variable({3, 4}));
  EXPECT_TRUE(events_.empty());
}

TEST_F(ModuleHooks, MaySeeTheTensorsOfTheCall) {
  Tensor input, activation;
  auto before =
      block_.norm.register_forward_pre_hook([&](Module& module, const TensorList& inputs) {
        EXPECT_EQ(&module, &block_.norm);
        ASSERT_EQ(inputs.size(), 1U);
        EXPECT_FALSE(activation.defined());
        input = inputs[0];
      });
  auto after = block_.norm.register_forward_hook(
      [&](Module& module, const TensorList& inputs, const TensorList& outputs) {
        EXPECT_EQ(&module, &block_.norm);
        ASSERT_EQ(inputs.size(), 1U);
        ASSERT_EQ(outputs.size(), 1U);
        EXPECT_TRUE(inputs[0].is(input));
        activation = outputs[0];
      });
  const Tensor x = variable({3, 4});
  const Tensor y = block_(x);
  EXPECT_TRUE(input.is(x));
  EXPECT_TRUE(activation.is(y));
  before.remove();
  after.remove();
  input = activation = Tensor();
  block_(x);
  EXPECT_FALSE(input.defined() || activation.defined());
}

/// Tensors in a struct, an optional and a vector, beside an argument without any.
class Mixed final : public Callable<Mixed> {
 public:
  TensorList forward(const std::optional<Tensor>& x, int times, const TensorList& more) {
    TensorList result = more;
    if (x) result.insert(result.end(), static_cast<std::size_t>(times), *x);
    result.emplace_back();
    return result;
  }
};

TEST_F(ModuleHooks, SeeTheDefinedTensorsFromLeftToRight) {
  Mixed mixed;
  const Tensor x = variable({1}), a = variable({2}), b = variable({3});
  int calls = 0;
  mixed.register_forward_hook([&](Module&, const TensorList& inputs, const TensorList& outputs) {
    ++calls;
    ASSERT_EQ(inputs.size(), 3U);
    EXPECT_TRUE(inputs[0].is(x) && inputs[1].is(a) && inputs[2].is(b));
    ASSERT_EQ(outputs.size(), 4U);
    EXPECT_TRUE(outputs[0].is(a) && outputs[1].is(b) && outputs[2].is(x) && outputs[3].is(x));
  });
  mixed(x, 2, TensorList{a, b});
  EXPECT_EQ(calls, 1);
}

TEST_F(ModuleHooks, OfAModuleThatIsGoneAreAnError) {
  for (const bool pre : {true, false}) {
    std::optional<RMSNorm> norm(std::in_place, RMSNorm::Config{.dim = 4, .dtype = Dtype::kFloat64});
    const auto handle = pre ? norm->register_backward_pre_hook(note("pre"))
                            : norm->register_backward_hook(note("post"));
    const Tensor y = (*norm)(variable({3, 4}));
    norm.reset();
    EXPECT_EQ(test::message_of<Error>([&] {
                y.backward(randn({3, 4}, 2));
              }),
              "backward: the module no longer exists, but has hooks that backward runs, as "
              "fully_shard's are; keep the model until backward has run");
  }
  std::optional<RMSNorm> plain(std::in_place, RMSNorm::Config{.dim = 4, .dtype = Dtype::kFloat64});
  const Tensor y = (*plain)(variable({3, 4}));
  plain.reset();
  y.backward(randn({3, 4}, 2));  // as in PyTorch
  EXPECT_TRUE(events_.empty());
}

}  // namespace
}  // namespace moegrad::nn::module_hooks_test
