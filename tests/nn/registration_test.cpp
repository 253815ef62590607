// SPDX-License-Identifier: Apache-2.0
// What may be registered under which name, and what happens when it is gone.
#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "framework/runtime/error.h"
#include "nn/linear.h"
#include "nn/module.h"
#include "ops/elementwise.h"
#include "tests/nn/small_modules.h"
#include "tests/testing.h"

namespace moegrad::nn::registration_test {
namespace {

using namespace test;

TEST(Registration, EveryChildAndParameterNeedsANameOfItsOwn) {
  Holder holder, first, second;
  Tensor weight = Tensor::zeros({2}), bias = Tensor::zeros({2});
  holder.register_module("a", first);
  holder.register_parameter("w", weight);
  EXPECT_EQ(message_of<ValueError>([&] { holder.register_module("a", second); }),
            "register_module: 'a' is the name of a child of the module already; each child, "
            "parameter and buffer needs a name of its own");
  EXPECT_EQ(message_of<ValueError>([&] { holder.register_parameter("w", bias); }),
            "register_parameter: 'w' is the name of a parameter of the module already; each child, "
            "parameter and buffer needs a name of its own");
  EXPECT_EQ(message_of<ValueError>([&] { holder.register_parameter("a", bias); }),
            "register_parameter: 'a' is the name of a child of the module already; each child, "
            "parameter and buffer needs a name of its own");
  EXPECT_EQ(message_of<ValueError>(
                [&] { first.register_module("w", second), first.register_module("w", second); }),
            "register_module: 'w' is the name of a child of module 'a' already; each child, "
            "parameter and buffer needs a name of its own");
  EXPECT_FALSE(bias.requires_grad());  // a refused one is left as it was
  EXPECT_EQ(holder.named_parameters().size(), 1U);
}

TEST(Registration, ANameHasNoEmptyPart) {
  Holder holder, child;
  Tensor weight = Tensor::zeros({2});
  for (const std::string name : {"", ".", ".a", "a.", "a..b"}) {
    const std::string ending = ": a name in the module must have no empty part, got '" + name + "'";
    EXPECT_EQ(message_of<ValueError>([&] { holder.register_module(name, child); }),
              "register_module" + ending);
    EXPECT_EQ(message_of<ValueError>([&] { holder.register_parameter(name, weight); }),
              "register_parameter" + ending);
  }
}

// A dot is fine, as in "model.layers.0" of Hugging Face, as long as full names stay apart.
TEST(Registration, NamesMustNotLieWithinEachOther) {
  Holder holder, layer, norm, child;
  Tensor weight = Tensor::zeros({2});
  holder.register_module("model.layers.1", layer);
  holder.register_module("model.layers.10", norm);
  EXPECT_EQ(message_of<ValueError>([&] { holder.register_module("model", child); }),
            "register_module: 'model' and the child 'model.layers.1' of the module must not lie "
            "within each other: full names could coincide");
  EXPECT_EQ(message_of<ValueError>([&] { holder.register_parameter("model.layers.1.w", weight); }),
            "register_parameter: 'model.layers.1.w' and the child 'model.layers.1' of the module "
            "must not lie within each other: full names could coincide");
}

TEST(Registration, ATiedParameterIsOneOfTheDistinct) {
  Linear first({.in_features = 2, .out_features = 3});
  Linear tied(first.weight());
  Tensor bias = Tensor::zeros({2});
  Holder holder;
  holder.register_module("first", first);
  holder.register_module("tied", tied);
  holder.register_parameter("bias", bias);
  EXPECT_EQ(holder.parameter_slots().size(), 3U);
  const auto distinct = holder.distinct_parameters();
  const auto named = holder.named_parameters();
  ASSERT_EQ(distinct.size(), 2U);
  ASSERT_EQ(named.size(), 2U);
  for (std::size_t i = 0; i < named.size(); ++i) {
    EXPECT_EQ(distinct[i].name, named[i].name);
    EXPECT_TRUE(distinct[i].parameter().is(named[i].tensor));
  }
  EXPECT_EQ(distinct[0].name, "bias");
  EXPECT_EQ(distinct[1].name, "first.weight");
}

TEST(Registration, AModuleStandsInATreeOnce) {
  Holder root, inner, leaf, other;
  root.register_module("inner", inner);
  inner.register_module("leaf", leaf);
  EXPECT_EQ(message_of<ValueError>([&] { root.register_module("again", inner); }),
            "register_module: 'again' of the module is registered as 'inner' already; register a "
            "module once and call it as often as you like, or make another one of "
            "the same weight, as nn::Linear(weight) and nn::Embedding(weight) do");
  EXPECT_EQ(message_of<ValueError>([&] { root.register_module("leaf", leaf); }),
            "register_module: 'leaf' of the module is registered as 'inner.leaf' already; register "
            "a module once and call it as often as you like, or make another one of "
            "the same weight, as nn::Linear(weight) and nn::Embedding(weight) do");
  // Also where the tree is put together from below, and where the second place is below the first.
  other.register_module("leaf", leaf);
  EXPECT_EQ(message_of<ValueError>([&] { root.register_module("other", other); }),
            "register_module: 'other.leaf' of the module is registered as 'inner.leaf' already; "
            "register a module once and call it as often as you like, or make another one of "
            "the same weight, as nn::Linear(weight) and nn::Embedding(weight) do");
  Holder late;
  inner.register_module("late", late);
  EXPECT_EQ(message_of<ValueError>([&] { inner.register_module("root", root); }),
            "register_module: 'root' of module 'inner' must not be or contain the module that "
            "registers it");
  EXPECT_EQ(message_of<ValueError>([&] { root.register_module("self", root); }),
            "register_module: 'self' of the module must not be or contain the module that "
            "registers it");
}

TEST(Registration, ATreeOfItsOwnMayShowPartsOfAnother) {
  Holder model, stage, layer;
  model.register_module("layers.0", layer);
  Tensor weight = Tensor::zeros({2});
  layer.register_parameter("weight", weight);
  stage.register_module("0", layer);
  EXPECT_EQ(model.named_parameters()[0].name, "layers.0.weight");
  EXPECT_EQ(stage.named_parameters()[0].name, "0.weight");
}

TEST(Registration, AParameterMustBeDefined) {
  Holder holder;
  Tensor nothing;
  EXPECT_EQ(message_of<UndefinedTensorError>([&] { holder.register_parameter("w", nothing); }),
            "register_parameter: 'w' of the module must be a defined tensor; make it before "
            "registering it");
}

// All that look below a module.
std::vector<std::pair<std::string, std::function<void(Holder&)>>> walks() {
  return {{"parameter_slots", [](Holder& m) { m.parameter_slots(); }},
          {"named_parameters", [](Holder& m) { m.named_parameters(); }},
          {"named_modules", [](Holder& m) { m.named_modules(); }},
          {"state_dict", [](Holder& m) { m.state_dict(); }},
          {"load_state_dict", [](Holder& m) { m.load_state_dict({}); }},
          {"to_empty", [](Holder& m) { m.to_empty(); }},
          {"train", [](Holder& m) { m.train(); }},
          {"restore_parameters", [](Holder& m) { m.restore_parameters(); }},
          {"zero_grad", [](Holder& m) { m.zero_grad(); }}};
}

TEST(Registration, AChildThatIsGoneIsAnError) {
  Holder holder;
  auto child = std::make_unique<Linear>(Linear::Config{.in_features = 2, .out_features = 2});
  holder.register_module("child", *child);
  EXPECT_EQ(holder.named_parameters().size(), 1U);
  child.reset();
  for (const auto& [name, walk] : walks()) {
    EXPECT_EQ(message_of<Error>([&, &walk = walk] { walk(holder); }),
              "the module: child 'child' no longer exists: it must live as long as the module that "
              "registered it")
        << name;
  }
}

TEST(Registration, TheNameOfAChildThatIsGoneIsFree) {
  Holder holder;
  std::optional<Linear> head;
  holder.register_module("head", head.emplace(Linear::Config{.in_features = 2, .out_features = 2}));
  holder.register_module("head", head.emplace(Linear::Config{.in_features = 3, .out_features = 2}));
  ASSERT_EQ(holder.named_parameters().size(), 1U);
  EXPECT_EQ(holder.named_parameters()[0].tensor.shape(), (Shape{2, 3}));
}

TEST(Registration, AChildTakesThePlaceOfAnother) {
  Holder holder;
  Linear first({.in_features = 2, .out_features = 2}), last({.in_features = 2, .out_features = 2});
  Linear next({.in_features = 3, .out_features = 2});
  holder.register_module("first", first);
  holder.register_module("last", last);
  const auto refused = [&](const char* name, Module& child) {
    return message_of<ValueError>([&] { holder.replace_module(name, child); });
  };
  EXPECT_EQ(refused("other", next), "replace_module: the module has no child 'other'");
  EXPECT_EQ(refused("first", last),
            "register_module: 'first' of the module is registered as 'last' already; register a "
            "module once and call it as often as you like, or make another one of "
            "the same weight, as nn::Linear(weight) and nn::Embedding(weight) do");
  EXPECT_EQ(refused("first", holder),
            "register_module: 'first' of the module must not be or contain the module that "
            "registers it");
  EXPECT_EQ(holder.named_modules()[1].second, &first);  // nothing has changed

  holder.replace_module("first", next);
  const auto parameters = holder.named_parameters();
  ASSERT_EQ(parameters.size(), 2U);
  EXPECT_EQ(parameters[0].name, "first.weight");
  EXPECT_EQ(parameters[0].tensor.shape(), (Shape{2, 3}));
  EXPECT_EQ(parameters[0].tensor.storage().name(), "first.weight");
  EXPECT_EQ(parameters[1].name, "last.weight");
  holder.replace_module("first", next);  // it is there already
  holder.register_module("first_before", first);
  EXPECT_EQ(holder.named_parameters()[2].name, "first_before.weight");
}

TEST(Registration, AChildThatWasReplacedIsInNoTree) {
  Holder root, before, after, leaf;
  root.register_module("inner", before);
  root.register_module("leaf", leaf);
  root.replace_module("inner", after);
  EXPECT_EQ(message_of<ValueError>([&] { before.replace_module("a", leaf); }),
            "replace_module: the module has no child 'a'");
  before.register_module("leaf", leaf);
  // One that another tree has shown since is left there.
  Holder stage, last;
  stage.register_module("0", after);
  root.replace_module("inner", last);
  EXPECT_EQ(message_of<ValueError>([&] { after.replace_module("a", leaf); }),
            "replace_module: module '0' has no child 'a'");
}

// What replaces a child may hold it, and may have been in it.
TEST(Registration, AChildIsReplacedByWhatWrapsItAndBack) {
  Holder root, holder, wrapper, other;
  Linear inner({.in_features = 2, .out_features = 2});
  root.register_module("layer", holder);
  holder.register_module("child", inner);
  root.register_module("other", other);
  const auto name = [&] { return root.named_parameters()[0].name; };
  wrapper.register_module("wrapped", inner);
  holder.replace_module("child", wrapper);
  EXPECT_EQ(name(), "layer.child.wrapped.weight");
  EXPECT_EQ(root.named_parameters()[0].tensor.storage().name(), name());
  holder.replace_module("child", inner);
  EXPECT_EQ(name(), "layer.child.weight");
  EXPECT_EQ(root.named_parameters()[0].tensor.storage().name(), name());
  wrapper.replace_module("wrapped", other);
  EXPECT_EQ(message_of<ValueError>([&] { holder.replace_module("child", wrapper); }),
            "register_module: 'child.wrapped' of module 'layer' is registered as 'other' already; "
            "register a module once and call it as often as you like, or make another one of "
            "the same weight, as nn::Linear(weight) and nn::Embedding(weight) do");
}

TEST(Registration, AChildThatIsGoneIsReplaced) {
  Holder holder;
  Linear next({.in_features = 3, .out_features = 2});
  {
    Linear gone({.in_features = 2, .out_features = 2});
    holder.register_module("child", gone);
  }
  holder.replace_module("child", next);
  EXPECT_EQ(holder.named_parameters()[0].tensor.shape(), (Shape{2, 3}));
}

TEST(Registration, AChildMayOutliveItsParentAndGetAnother) {
  Linear child({.in_features = 2, .out_features = 2});
  Holder second;
  {
    Holder first;
    first.register_module("child", child);
    second.register_module("first", first);
  }
  Holder third;
  third.register_module("other", child);
  EXPECT_EQ(third.named_parameters()[0].name, "other.weight");
}

TEST(Registration, AParameterThatHasMovedIsAnError) {
  Holder holder;
  std::vector<Tensor> weights;
  weights.reserve(1);
  weights.push_back(Tensor::zeros({2}));
  holder.register_parameter("w0", weights[0]);
  EXPECT_EQ(holder.named_parameters().size(), 1U);
  weights.reserve(100);
  for (const auto& [name, walk] : walks()) {
    if (name == "named_modules" || name == "train" || name == "restore_parameters")
      continue;  // read none
    EXPECT_EQ(message_of<Error>([&, &walk = walk] { walk(holder); }),
              "the module: parameter 'w0' is no longer where it was registered: its tensor must "
              "stay there as long as the module lives, and a vector that grows moves its elements")
        << name;
  }
}

TEST(Registration, ParametersStayInADequeAndWhenTheirValueIsReplaced) {
  Holder holder;
  std::deque<Tensor> weights;
  for (int i = 0; i < 100; ++i) {
    holder.register_parameter("w" + std::to_string(i), weights.emplace_back(Tensor::zeros({1})));
  }
  Tensor other = Tensor::ones({1});
  weights[3] = other;                 // the slot is the same
  std::swap(weights[4], weights[5]);  // the slots are the same
  weights[6] = std::move(other);
  ASSERT_EQ(holder.parameter_slots().size(), 100U);
  EXPECT_EQ(holder.parameter_slots()[3].tensor->item(), 1);
}

TEST(Registration, AParameterIsContiguousAndOfReals) {
  Holder holder;
  Tensor strided = Tensor::as_strided(Tensor::zeros({2, 3}), {3, 2}, {1, 3}, 0);
  EXPECT_EQ(message_of<LayoutError>([&] { holder.register_parameter("w", strided); }),
            "register_parameter: 'w' of the module must be contiguous, got shape [3, 2] with "
            "strides [1, 3]; clone() makes a copy that is");
  Tensor ids = Tensor::zeros({2}, Dtype::kInt64);
  EXPECT_EQ(message_of<DtypeError>([&] { holder.register_parameter("w", ids); }),
            "register_parameter: 'w' of the module must be float32 or float64, got int64");
  EXPECT_TRUE(holder.parameter_slots().empty());
}

}  // namespace
}  // namespace moegrad::nn::registration_test
