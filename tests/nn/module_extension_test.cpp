// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "nn/module.h"
#include "nn/moe.h"
#include "ops/elementwise.h"
#include "tests/testing.h"

namespace moegrad::nn::module_extension_test {
namespace {

using namespace test;
using ::testing::ElementsAre;

Tensor scalar(double value) { return Tensor::full({1}, value, Dtype::kFloat64); }

struct Named {
  Tensor first, second;
  int rounds = 0;
};
void for_each_tensor(Named& named, const TensorVisitor& visit) {
  visit_tensors(visit, named.first, named.second);
}
/// Nothing says where its tensor is.
struct Opaque {
  Tensor tensor;
};

/// Returns what it was given, whatever that is.
class Identity final : public Callable<Identity> {
 public:
  template <class T>
  T forward(const T& value) {
    return value;
  }
};

/// What comes in is multiplied by 10, what goes out gets 1 added: neither commutes.
class Casts final : public ModuleExtension {
 public:
  TensorList around_forward(ForwardCall& call, const TensorList& inputs) override {
    TensorList tensors = inputs;
    for (auto& tensor : tensors) tensor = ops::mul(tensor, 10.0);
    tensors = call.run(tensors);
    for (auto& tensor : tensors) tensor = ops::add(tensor, 1.0);
    return tensors;
  }
};

template <class T>
T through_casts(const T& value) {
  Identity module;
  module.attach(std::make_shared<Casts>());
  return module(value);
}

TEST(ModuleExtension, CastsATensorOnItsWayInAndOut) {
  EXPECT_EQ(through_casts(scalar(2)).item(), 21);
}

TEST(ModuleExtension, CastsTheTensorsInContainers) {
  const auto list = through_casts(TensorList{scalar(1), scalar(2)});
  EXPECT_EQ(list[0].item(), 11);
  EXPECT_EQ(list[1].item(), 21);
  const auto array = through_casts(std::array{scalar(3), scalar(4)});
  EXPECT_EQ(array[1].item(), 41);
  EXPECT_EQ(through_casts(std::optional(scalar(5)))->item(), 51);
  EXPECT_FALSE(through_casts(std::optional<Tensor>()).has_value());
  const auto pair = through_casts(std::pair(6, scalar(6)));
  EXPECT_EQ(pair.first, 6);
  EXPECT_EQ(pair.second.item(), 61);
  const auto nested =
      through_casts(std::tuple(scalar(7), 8, std::vector<std::optional<Tensor>>{{}, scalar(9)}));
  EXPECT_EQ(std::get<0>(nested).item(), 71);
  EXPECT_EQ(std::get<1>(nested), 8);
  EXPECT_FALSE(std::get<2>(nested)[0].has_value());
  EXPECT_EQ(std::get<2>(nested)[1]->item(), 91);
}

TEST(ModuleExtension, CastsTheTensorsThatAStructDeclares) {
  const auto named = through_casts(Named{scalar(1), scalar(2), 3});
  EXPECT_EQ(named.first.item(), 11);
  EXPECT_EQ(named.second.item(), 21);
  EXPECT_EQ(named.rounds, 3);
  EXPECT_EQ(through_casts(std::vector<Named>{{scalar(4), scalar(5)}})[0].second.item(), 51);
}

TEST(ModuleExtension, LeavesWhatDeclaresNoTensorsAndUndefinedOnes) {
  EXPECT_EQ(through_casts(Opaque{scalar(1)}).tensor.item(), 1);
  EXPECT_EQ(through_casts(std::string("text")), "text");
  EXPECT_FALSE(through_casts(Tensor()).defined());
  EXPECT_FALSE(through_casts(TensorList{{}, scalar(1)})[0].defined());
}

TEST(ModuleExtension, DoesNotTouchTheCallersArguments) {
  const Tensor input = scalar(2);
  TensorList list{input};
  Named named{input, input};
  through_casts(list);
  through_casts(named);
  EXPECT_TRUE(list[0].is(input));
  EXPECT_TRUE(named.first.is(input));
  EXPECT_EQ(input.item(), 2);
}

/// Notes what it was given and where it stood.
class Probe final : public Callable<Probe> {
 public:
  double forward(const Tensor& x, const std::vector<int>& indices, std::unique_ptr<int> owned) {
    tensor = &x;
    vector = &indices;
    return x.item() * static_cast<double>(indices.size()) * *owned;
  }
  Tensor encode(const Tensor& x, double scale) { return ops::mul(x, scale); }
  Tensor forward(Tensor& x) { return x; }

  const Tensor* tensor = nullptr;
  const std::vector<int>* vector = nullptr;
};

TEST(ModuleExtension, WithoutOneNothingIsCopied) {
  Probe probe;
  const Tensor x = scalar(2);
  const std::vector<int> indices = {1, 2, 3};
  EXPECT_EQ(probe(x, indices, std::make_unique<int>(7)), 42);
  EXPECT_EQ(probe.tensor, &x);
  EXPECT_EQ(probe.vector, &indices);
}

TEST(ModuleExtension, CopiesOnlyArgumentsThatHoldTensors) {
  Probe probe;
  probe.attach(std::make_shared<Casts>());
  const Tensor x = scalar(2);
  const std::vector<int> indices = {1, 2, 3};
  EXPECT_EQ(probe(x, indices, std::make_unique<int>(7)), 420);
  EXPECT_NE(probe.tensor, &x);
  EXPECT_EQ(probe.vector, &indices);
}

TEST(ModuleExtension, KeepsAnArgumentsValueCategory) {
  Probe probe;
  probe.attach(std::make_shared<Casts>());
  Tensor x = scalar(2);
  EXPECT_EQ(probe(x).item(), 21);  // an lvalue still binds to Tensor&
  EXPECT_EQ(x.item(), 2);
}

TEST(ModuleExtension, CastsAreOnTheTape) {
  Identity module;
  module.attach(std::make_shared<Casts>());
  const Tensor x = variable({1});
  module(x).backward();
  EXPECT_EQ(x.grad().item(), 10);
}

/// Notes when it begins and ends.
class Notes final : public ModuleExtension {
 public:
  Notes(std::vector<std::string>& events, std::string name)
      : events_(events), name_(std::move(name)) {}
  TensorList around_forward(ForwardCall& call, const TensorList& inputs) override {
    events_.push_back("before " + name_);
    auto outputs = call.run(inputs);
    events_.push_back("after " + name_);
    return outputs;
  }

 private:
  std::vector<std::string>& events_;
  std::string name_;
};

TEST(ModuleExtension, RunsInsideTheForwardHooksTheLastOneOutermost) {
  Identity module;
  std::vector<std::string> events;
  module.attach(std::make_shared<Notes>(events, "first"));
  module.attach(std::make_shared<Notes>(events, "second"));
  module.register_forward_pre_hook([&](Module&) { events.emplace_back("pre"); });
  module.register_forward_hook([&](Module&) { events.emplace_back("post"); });
  module(scalar(1));
  EXPECT_THAT(events, ElementsAre("pre", "before second", "before first", "after first",
                                  "after second", "post"));
  EXPECT_EQ(module.extensions().size(), 2U);
  EXPECT_EQ(module.extension<Notes>(), module.extensions()[0].get());
  EXPECT_EQ(module.extension<Casts>(), nullptr);
}

/// Gives forward and the caller what it was told to.
class Wrong final : public ModuleExtension {
 public:
  explicit Wrong(int what) : what_(what) {}
  TensorList around_forward(ForwardCall& call, const TensorList& inputs) override {
    if (what_ == 0) return inputs;
    if (what_ == 1) return call.run({});
    if (what_ == 2) return call.run({scalar(1), scalar(2)});
    call.run(inputs);
    return {};
  }

 private:
  int what_;
};

TEST(ModuleExtension, RejectsAnExtensionThatDoesNotKeepToTheCall) {
  const auto message = [](int what) {
    Identity module;
    module.attach(std::make_shared<Wrong>(what));
    return test::message_of<Error>([&] { module(scalar(1)); });
  };
  EXPECT_EQ(message(0), "module extension: must run the call, got no result");
  EXPECT_EQ(message(1), "module extension: the arguments must be 1 tensors, got 0");
  EXPECT_EQ(message(2), "module extension: the arguments must be 1 tensors, got 2");
  EXPECT_EQ(message(3), "module extension: the result must be 1 tensors, got 0");
  Identity module;
  EXPECT_EQ(test::message_of<ValueError>([&] { module.attach(nullptr); }),
            "attach: the module must be given an extension, got null");
}

TEST(CallMethod, RunsAnotherMethodWithTheSameHooksAndCasts) {
  Probe probe;
  probe.attach(std::make_shared<Casts>());
  std::vector<std::string> events;
  probe.register_forward_pre_hook([&](Module&) { events.emplace_back("pre"); });
  probe.register_forward_hook([&](Module&) { events.emplace_back("post"); });
  EXPECT_EQ(probe.call_method(&Probe::encode, scalar(2), 3.0).item(), 61);
  EXPECT_THAT(events, ElementsAre("pre", "post"));
  const auto doubled = [](Probe& module, const Tensor& x) { return module.encode(x, 2.0); };
  EXPECT_EQ(probe.call_method(doubled, scalar(2)).item(), 41);
}

TEST(CallMethod, RunsBackwardHooksToo) {
  Probe probe;
  int entered = 0;
  probe.register_backward_pre_hook([&](Module&) { ++entered; });
  probe.call_method(&Probe::encode, variable({1}), 3.0).backward();
  EXPECT_EQ(entered, 1);
}

/// A module that owns one parameter and, maybe, another module.
class Node final : public Callable<Node> {
 public:
  explicit Node(Node* child = nullptr) : weight_(scalar(3)) {
    register_parameter("weight", weight_);
    if (child != nullptr) register_module("child", *child);
  }
  Tensor& weight() { return weight_; }

 private:
  Tensor weight_;
};

/// Stands a gathered tensor in for the module's parameter, as fully_shard does.
class Stand final : public ModuleExtension {
 public:
  explicit Stand(Node& node) : node_(node), kept_(node.weight()) {}
  void gather() { node_.weight() = scalar(99); }
  void restore_parameters() override { node_.weight() = kept_; }
  void zero_grad() override { kept_.set_grad(Tensor()); }
  const Tensor& kept() const { return kept_; }

 private:
  Node& node_;
  Tensor kept_;
};

TEST(ModuleExtension, StateDictsAreOfTheParametersThatTheModulesKeep) {
  Node child;
  Node root(&child);
  const auto stand = std::make_shared<Stand>(child);
  child.attach(stand);
  stand->gather();
  const auto& constant = root;
  const auto state = constant.state_dict();
  EXPECT_EQ(state[1].name, "child.weight");
  EXPECT_EQ(&state[1].tensor.storage(), &stand->kept().storage());
  stand->gather();
  root.load_state_dict({{"weight", scalar(5)}, {"child.weight", scalar(6)}});
  EXPECT_EQ(stand->kept().item(), 6);
  EXPECT_TRUE(child.weight().is(stand->kept()));
}

TEST(ModuleExtension, ZeroGradReachesThoseBelow) {
  Node child;
  Node root(&child);
  const auto stand = std::make_shared<Stand>(child);
  child.attach(stand);
  stand->kept().set_grad(scalar(1));
  stand->gather();
  child.weight().set_grad(scalar(2));
  root.zero_grad();
  EXPECT_FALSE(stand->kept().grad().defined());
  EXPECT_FALSE(child.weight().grad().defined());
}

/// Counts by dtype; casts nothing.
class Counts final : public ModuleExtension {
 public:
  TensorList around_forward(ForwardCall& call, const TensorList& given) override {
    for (const auto& tensor : given) ++inputs[tensor.dtype()];
    TensorList returned = call.run(given);
    for (const auto& tensor : returned) ++outputs[tensor.dtype()];
    return returned;
  }
  std::map<Dtype, int> inputs, outputs;
};

TEST(ModuleExtension, SeesEveryTensorOfAMixturesOutput) {
  MoE moe({.hidden_size = 4,
           .intermediate_size = 3,
           .num_experts = 2,
           .top_k = 1,
           .dtype = Dtype::kFloat64});
  const auto counts = std::make_shared<Counts>();
  moe.attach(counts);
  const auto router_counts = std::make_shared<Counts>();
  moe.named_modules()[1].second->attach(router_counts);
  moe(variable({5, 4}));
  EXPECT_EQ(counts->inputs, (std::map<Dtype, int>{{Dtype::kFloat64, 1}}));
  EXPECT_EQ(counts->outputs, (std::map<Dtype, int>{{Dtype::kFloat64, 3}, {Dtype::kInt64, 1}}));
  EXPECT_EQ(router_counts->outputs,
            (std::map<Dtype, int>{{Dtype::kFloat64, 2}, {Dtype::kInt64, 1}}));
}

}  // namespace
}  // namespace moegrad::nn::module_extension_test
