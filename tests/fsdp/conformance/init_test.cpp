// SPDX-License-Identifier: Apache-2.0

// The init cases of the conformance list: what a call manages, aliases, names, roots. Devices and
// DTensors have no counterpart here.

#include <gmock/gmock.h>

#include "tests/fsdp/conformance/event_log.h"
#include "tests/fsdp/conformance/parity.h"

namespace moegrad::fsdp::conformance::init_test {
namespace {

using namespace test;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

MlpStack two_mlps() { return MlpStack({6, 5, 4}); }
Tensor input() { return test::leaf_input({3, 6}, 0, 0); }

std::vector<std::string> names(const State& state) {
  std::vector<std::string> all;
  for (const auto& group : state.groups()) {
    for (const auto& param : group->params()) all.push_back(param.name);
  }
  return all;
}

/// Rank 0 of a world of one.
template <class Body>
void on_one_rank(const Body& body) {
  launch(1, [&](RankContext& rank) { body(DeviceMesh::flat(rank.group())); });
}

TEST(ConformanceInit, ManagedModulesSingle) {
  on_one_rank([](const DeviceMesh& mesh) {
    Mlp mlp(6, 5, 4);
    auto& state = fully_shard(mlp, mesh);
    EXPECT_THAT(state.modules(), ElementsAre(&mlp));
    EXPECT_THAT(names(state),
                ElementsAre("in_proj.weight", "in_proj.bias", "out_proj.weight", "out_proj.bias"));
    EXPECT_EQ(mlp.extension<State>(), &state);
    EXPECT_EQ(mlp.in_proj.extension<State>(), nullptr);
  });
}

TEST(ConformanceInit, ManagedModulesNested) {
  on_one_rank([](const DeviceMesh& mesh) {
    auto model = two_mlps();
    auto& inner = fully_shard(model[0].in_proj, mesh);
    auto& middle = fully_shard(model[0], mesh);
    auto& outer = fully_shard(model, mesh);
    EXPECT_THAT(names(inner), ElementsAre("weight", "bias"));
    EXPECT_THAT(names(middle), ElementsAre("out_proj.weight", "out_proj.bias"));
    EXPECT_THAT(names(outer), ElementsAre("1.in_proj.weight", "1.in_proj.bias", "1.out_proj.weight",
                                          "1.out_proj.bias"));
    // All taken: a state without parameters.
    auto whole = two_mlps();
    fully_shard(whole[0], mesh);
    fully_shard(whole[1], mesh);
    auto& root = fully_shard(whole, mesh);
    EXPECT_THAT(root.groups(), IsEmpty());
    EXPECT_EQ(root.group(), nullptr);
  });
}

TEST(ConformanceInit, ManagedModulesList) {
  on_one_rank([](const DeviceMesh& mesh) {
    auto model = two_mlps();
    auto& state = fully_shard({&model[0].out_proj, &model[1]}, mesh);
    EXPECT_THAT(state.modules(), ElementsAre(&model[0].out_proj, &model[1]));
    EXPECT_EQ(model[0].out_proj.extension<State>(), &state);
    EXPECT_EQ(model[1].extension<State>(), &state);
    EXPECT_EQ(state.group()->params().size(), 6U);
    EXPECT_EQ(message_of<ValueError>([&] { fully_shard(std::vector<nn::Module*>{}, mesh); }),
              "fully_shard: at least one module");
    Mlp mlp(6, 5, 4);
    EXPECT_EQ(
        message_of<Error>([&] {
          fully_shard({&mlp, &mlp}, mesh);
        }),
        "fully_shard: the module has been sharded before; each rank needs a model of its own");
    EXPECT_EQ(mlp.extension<State>(), nullptr);
  });
}

/// The weight `a.weight` also stands in `b` and, if `nested`, in `c.inner`.
class Shared final : public nn::Callable<Shared> {
 public:
  struct Inner final : nn::Callable<Inner> {
    explicit Inner(const Tensor& weight) : inner(weight) { register_module("inner", inner); }
    Tensor forward(const Tensor& x) { return inner(x); }
    nn::Linear inner;
  };
  explicit Shared(bool nested)
      : a({.in_features = 5, .out_features = 5}),
        b(a.weight()),
        c(nested ? a.weight() : Tensor::zeros({5, 5})) {
    register_module("a", a);
    register_module("b", b);
    register_module("c", c);
    test::init_random(*this);
  }
  Tensor forward(const Tensor& x) { return c(b(a(x))); }
  nn::Linear a, b;
  Inner c;
};

// Every place of a shared parameter is on record, and changes with it.
template <class Model>
void expect_aliases(Model& model, const DeviceMesh& mesh, std::size_t params, std::size_t places) {
  auto& state = fully_shard(model, mesh);
  EXPECT_EQ(state.group()->params().size(), params);
  EXPECT_EQ(model.named_parameters().size(), params);
  const auto& first = state.group()->params()[0];
  EXPECT_EQ(first.slots.size(), places);
  const Tensor out = model(test::leaf_input({2, 5}, 0, 0));
  for (const auto* slot : first.slots) EXPECT_TRUE(slot->is(first.unsharded));
  EXPECT_EQ(model.named_parameters().size(), params);
  test::square_loss(out).backward();
  for (const auto* slot : first.slots) EXPECT_TRUE(slot->is(first.sharded));
}

TEST(ConformanceInit, AliasesOfAParameterInTwoModules) {
  on_one_rank([](const DeviceMesh& mesh) {
    Shared model(false);
    expect_aliases(model, mesh, 2, 2);
  });
}

TEST(ConformanceInit, AliasesOfAParameterInANestedModuleToo) {
  on_one_rank([](const DeviceMesh& mesh) {
    Shared model(true);
    expect_aliases(model, mesh, 1, 3);
  });
}

// Names are those below the root once the root is known, and those below the call until then.
TEST(ConformanceInit, NamesAreThoseBelowTheRoot) {
  launch(2, [](RankContext& rank) {
    auto model = two_mlps();
    const auto mesh = DeviceMesh::flat(rank.group());
    auto& inner = fully_shard(model[1].in_proj, mesh);
    auto& list = fully_shard({&model[0], &model[1].out_proj}, mesh);
    auto& root = fully_shard(model, mesh);
    EXPECT_THAT(names(inner), ElementsAre("weight", "bias"));
    model(input());
    EXPECT_THAT(names(inner), ElementsAre("1.in_proj.weight", "1.in_proj.bias"));
    EXPECT_THAT(names(list),
                ElementsAre("0.in_proj.weight", "0.in_proj.bias", "0.out_proj.weight",
                            "0.out_proj.bias", "1.out_proj.weight", "1.out_proj.bias"));
    EXPECT_EQ(inner.path(), "1.in_proj");
    EXPECT_EQ(list.path(), "0");  // of the first module
    EXPECT_EQ(root.path(), "");
    EXPECT_EQ(inner.group()->name(), "1.in_proj");
    const Tensor weight = inner.group()->params()[0].unsharded;
    inner.reshard();
    EXPECT_THAT(message_of<Error>([&] { weight.data<float>(); }),
                ::testing::HasSubstr("'1.in_proj.weight'"));
  });
}

// The outermost one to run first is root for good: it stays gathered, others do not, and a second
// forward finds nothing new. States are visited in the modules' pre-order.
TEST(ConformanceInit, RootIsFoundOnceByTheFirstForward) {
  launch(2, [](RankContext& rank) {
    test::MoeNet model(1);
    const auto mesh = DeviceMesh::flat(rank.group());
    auto& block = fully_shard(*model.blocks[0], mesh);
    auto& root = fully_shard(model, mesh);
    const Tensor x = test::leaf_input({3, 6}, 0, 0);
    for (int i = 0; i < 2; ++i) {
      const Tensor out = model(x);
      EXPECT_FALSE(root.group()->is_sharded());
      EXPECT_TRUE(block.group()->is_sharded());
      test::square_loss(out).backward();
      EXPECT_EQ(root.path(), "");
      EXPECT_EQ(block.path(), "blocks.0");
    }
    // Alone it is no root, and reshards.
    (*model.blocks[0])(test::leaf_input({3, 8}, 0, 0));
    EXPECT_TRUE(block.group()->is_sharded());
    EXPECT_EQ(message_of<Error>([&] { block.reset_iter_state(); }),
              "reset_iter_state: 'blocks.0' is not the root");
  });
}

TEST(ConformanceInit, AChildThatRanBeforeItsRootIsAnError) {
  launch(2, [](RankContext& rank) {
    auto model = two_mlps();
    const auto mesh = DeviceMesh::flat(rank.group());
    fully_shard(model[0], mesh);
    fully_shard(model, mesh);
    model[0](input());
    EXPECT_EQ(message_of<Error>([&] { model(input()); }),
              "fully_shard: module '0' ran forward before its root did");
  });
}

TEST(ConformanceInit, AListAsRootIsAnError) {
  launch(2, [](RankContext& rank) {
    auto model = two_mlps();
    fully_shard({&model[0], &model[1]}, DeviceMesh::flat(rank.group()));
    EXPECT_EQ(message_of<Error>([&] { model(input()); }),
              "fully_shard: '' ran forward first, but a group of several modules cannot be the "
              "root; register them in one module, pass that to fully_shard, too, and call it; in "
              "module 0");
  });
}

// What stood in the module is the shard from the call on, not from the first forward on.
TEST(ConformanceInit, OptimizersMadeAfterTheCallSeeTheShards) {
  launch(2, [](RankContext& rank) {
    auto model = two_mlps();
    fully_shard(model, DeviceMesh::flat(rank.group()));
    const auto before = model.named_parameters();
    test::square_loss(model(input())).backward();
    const auto after = model.named_parameters();
    for (std::size_t i = 0; i < before.size(); ++i) {
      EXPECT_TRUE(after[i].tensor.is(before[i].tensor)) << before[i].name;
    }
  });
}

// state: each call has a State of its own; a call cannot be repeated.
TEST(ConformanceState, CallsHaveDistinctStatesAndCannotBeRepeated) {
  on_one_rank([](const DeviceMesh& mesh) {
    auto model = two_mlps();
    auto& first = fully_shard(model[0], mesh);
    auto& second = fully_shard(model[1], mesh);
    auto& root = fully_shard(model, mesh);
    EXPECT_NE(&first, &second);
    EXPECT_NE(&first, &root);
    EXPECT_EQ(model[1].extension<State>(), &second);
    EXPECT_EQ(model.extension<State>(), &root);
    for (auto* module : std::vector<nn::Module*>{&model, &model[0]}) {
      EXPECT_EQ(
          message_of<Error>([&] { fully_shard(*module, mesh); }),
          "fully_shard: the module has been sharded before; each rank needs a model of its own");
    }
    EXPECT_EQ(
        message_of<Error>([&] {
          fully_shard({&model[0].in_proj, &model[1]}, mesh);
        }),
        "fully_shard: the module has been sharded before; each rank needs a model of its own");
    EXPECT_EQ(model[0].in_proj.extension<State>(), nullptr);
  });
}

// --- ignored parameters

// They stay whole, keep each rank's own gradient, and everything else trains as without them.
TEST(ConformanceInit, IgnoredParametersStayWholeAndNobodyReducesThem) {
  test::Training<MlpStack> training = {
      .make =
          [] {
            return std::make_unique<MlpStack>(std::vector<std::int64_t>{6, 5, 4});
          },
      .loss =
          [](MlpStack& model, int iteration, int leaf) {
            return test::square_loss(model(test::leaf_input({3, 6}, iteration, leaf)));
          },
      .iterations = 3};
  launch(2, [&](RankContext& rank) {
    const auto model = training.make();
    const auto mesh = DeviceMesh::flat(rank.group());
    const Tensor weight = (*model)[1].in_proj.weight;
    const Tensor bias = (*model)[0].in_proj.bias;
    const Policy policy = {.ignored_parameters = {weight, bias}};
    auto& layer = fully_shard((*model)[1], mesh, policy);
    auto& root = fully_shard(*model, mesh, policy);
    EXPECT_EQ(layer.group()->params().size(), 3U);
    EXPECT_EQ(root.group()->params().size(), 3U);
    EXPECT_TRUE((*model)[1].in_proj.weight.is(weight));
    EXPECT_FALSE(weight.shard_spec());
    training.loss(*model, 0, rank.rank()).backward();

    const auto whole = training.make();
    const auto expected = whole->named_parameters();
    TensorList sums;
    for (int leaf = 0; leaf < 2; ++leaf) {
      training.loss(*whole, 0, leaf).backward();
      for (const auto& [name, tensor] : expected) {
        // Where ignored, this rank's gradient; else the sum.
        const bool ignored = name == "1.in_proj.weight" || name == "0.in_proj.bias";
        if (ignored && leaf == rank.rank()) sums.push_back(clone(tensor.grad()));
      }
      for (const auto& [name, tensor] : expected) {
        const bool ignored = name == "1.in_proj.weight" || name == "0.in_proj.bias";
        if (ignored) tensor.set_grad(Tensor());
      }
    }
    EXPECT_TRUE(test::bitwise_equal(bias.grad(), sums[0]));
    EXPECT_TRUE(test::bitwise_equal(weight.grad(), sums[1]));
    const auto got = model->named_parameters();
    for (std::size_t i = 0; i < got.size(); ++i) {
      const auto& [name, tensor] = got[i];
      if (!tensor.shard_spec()) continue;
      EXPECT_TRUE(
          test::bitwise_equal(tensor.grad(), test::part_of(expected[i].tensor.grad(), tensor)))
          << name;
    }
  });
}

// Layers replicated, sharded and replicated (DDP, FSDP, DDP) in one model: three steps of parity.
TEST(ConformanceInit, ReplicatedAroundShardedParity) {
  const test::Training<MlpStack> training = {
      .make =
          [] {
            return std::make_unique<MlpStack>(std::vector<std::int64_t>{6, 5, 4, 3});
          },
      .loss =
          [](MlpStack& model, int iteration, int leaf) {
            return test::square_loss(model(test::leaf_input({3, 6}, iteration, leaf)));
          },
      .iterations = 3};
  test::expect_parity(4, training, [](MlpStack& model, RankContext& rank) {
    const auto mesh = DeviceMesh::flat(rank.group());
    const Policy replicated = {.mesh_dims = {.shard = std::nullopt, .replicate = "shard"}};
    fully_shard(model[0], mesh, replicated);
    fully_shard(model[1], mesh);
    fully_shard(model[2], mesh, replicated);
    fully_shard(model, mesh);
    EXPECT_EQ(model[0].in_proj.weight.shape(), (Shape{12, 6}));
    EXPECT_EQ(model[1].in_proj.weight.dim(0), rank.rank() < 3 ? 3 : 1);
  });
}

/// A root that is given nothing.
class NoInputs final : public nn::Callable<NoInputs> {
 public:
  NoInputs() : table(test::randn({5, 6}, 1, Dtype::kFloat32)), layer(6, 5, 4) {
    register_parameter("table", table);
    register_module("layer", layer);
    test::init_random(*this);
  }
  Tensor forward() { return layer(table); }
  Tensor table;
  Mlp layer;
};

TEST(ConformanceInit, RootWithoutInputsParity) {
  const test::Training<NoInputs> training = {
      .make = [] { return std::make_unique<NoInputs>(); },
      .loss = [](NoInputs& model, int,
                 int leaf) { return test::square_loss(ops::mul(model(), leaf + 1.5)); },
      .iterations = 3};
  test::expect_parity(2, training, [](NoInputs& model, RankContext& rank) {
    const auto mesh = DeviceMesh::flat(rank.group());
    fully_shard(model.layer, mesh);
    fully_shard(model, mesh);
  });
}

}  // namespace
}  // namespace moegrad::fsdp::conformance::init_test
