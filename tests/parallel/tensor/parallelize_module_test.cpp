// SPDX-License-Identifier: Apache-2.0
#include "parallel/tensor/parallelize_module.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "framework/autograd/engine.h"
#include "framework/distributed/launch.h"
#include "framework/distributed/parallel_dims.h"
#include "framework/distributed/shard_runs.h"
#include "framework/runtime/grad_mode.h"
#include "framework/runtime/rank_context.h"
#include "fsdp/fully_shard.h"
#include "nn/deepcopy.h"
#include "nn/dropout.h"
#include "nn/embedding.h"
#include "nn/init.h"
#include "nn/linear.h"
#include "nn/module_list.h"
#include "nn/recompute.h"
#include "nn/rms_norm.h"
#include "nn/sequential.h"
#include "ops/elementwise.h"
#include "ops/reduce.h"
#include "parallel/tensor/check_division.h"
#include "parallel/tensor/redistribute.h"
#include "tests/ops/indices.h"
#include "tests/testing.h"

namespace moegrad::parallel::parallelize_module_test {
namespace {

using namespace test;

constexpr auto kF32 = Dtype::kFloat32, kF64 = Dtype::kFloat64;

/// y = x + down(up(norm(embed(ids)))), with biases; the head is tied to the embedding.
class Net final : public nn::Callable<Net> {
 public:
  Net()
      : embed_({.num_embeddings = 12, .embedding_dim = 6, .dtype = kF64}),
        norm_({.dim = 6, .dtype = kF64}),
        up_({.in_features = 6, .out_features = 8, .bias = true, .dtype = kF64}),
        down_({.in_features = 8, .out_features = 6, .bias = true, .dtype = kF64}),
        head_(embed_.weight()) {
    register_module("embed", embed_);
    register_module("norm", norm_);
    register_module("block.up", up_);
    register_module("block.down", down_);
    register_module("head", head_);
    nn::init_weights(*this, 3, 0.5);
    const NoGradGuard no_grad;
    for (const auto& slot : parameter_slots()) {
      if (slot.name.ends_with("bias")) copy_(*slot.tensor, randn(slot.tensor->shape(), 9));
    }
  }

  Tensor forward(const Tensor& ids) {
    const Tensor x = embed_(ids);
    const Tensor y = x + down_(ops::silu(up_(norm_(x))));
    return head_(y);
  }

 private:
  nn::Embedding embed_;
  nn::RMSNorm norm_;
  nn::Linear up_, down_, head_;
};

ParallelPlan plan_of(bool sequence) {
  const auto between = sequence ? Shard(0) : Replicate();
  ParallelPlan plan = {
      {"embed", RowwiseParallel{.input_layouts = Replicate(), .output_layouts = between}},
      {"block.up", ColwiseParallel{.input_layouts = between, .tiles = 2}},
      {"bl?ck.d*", RowwiseParallel{.output_layouts = between, .tiles = 3}},
      {"head", ColwiseParallel{.input_layouts = between, .output_layouts = Replicate()}}};
  if (sequence) plan.emplace_back("norm", SequenceParallel{});
  return plan;
}

Tensor ids() { return indices_of({1, 11, 5, 1, 0, 7, 3, 2}, {8}); }

Tensor objective_of(Net& net) { return ops::sum(net(ids()) * randn({8, 12}, 4)); }

NamedTensors gradients_of(Net& net) {
  objective_of(net).backward();
  NamedTensors gradients;
  for (const auto& [name, parameter] : net.named_parameters()) {
    gradients.push_back({name, clone(parameter.grad())});
  }
  return gradients;
}

// All of them, or this rank's part.
void expect_gradients_of_one_rank(Net& net) {
  Net plain;
  const auto expected = gradients_of(plain);
  const auto got = gradients_of(net);
  const auto parameters = net.named_parameters();
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const auto& spec = parameters[i].tensor.shard_spec();
    ASSERT_NE(spec, nullptr) << got[i].name;
    EXPECT_TRUE(
        all_close(got[i].tensor, clone(shard_view(expected[i].tensor, *spec)), 1e-12, 1e-12))
        << got[i].name;
  }
}

template <class Body>
void on_ranks(int ranks, const Body& body) {
  launch(ranks, [&](RankContext& context) {
    body(make_meshes(context.group(), {.tp = ranks}).dense["tp"]);
  });
}

TEST(ParallelizeModule, HasTheOutputsAndGradientsOfOneRank) {
  for (const int ranks : {2, 4}) {
    for (const bool sequence : {false, true}) {
      on_ranks(ranks, [&](const DeviceMesh& mesh) {
        Net plain, net;
        parallelize_module(net, mesh, plan_of(sequence));
        EXPECT_TRUE(all_close(net(ids()), plain(ids()), 1e-12, 1e-12));
        expect_gradients_of_one_rank(net);
        check_replicated_gradients(net, mesh);
      });
    }
  }
}

// Layers whose inputs or outputs are whole, and layouts that are asked for around a module.
TEST(ParallelizeModule, ChangesLayoutsWhereThePlanAsksForOthers) {
  const auto whole = Replicate();
  for (const auto& plan : std::vector<ParallelPlan>{
           {{"block.up", ColwiseParallel{.output_layouts = whole}},
            {"block.down", RowwiseParallel{.input_layouts = whole}}},
           {{"block.up", ColwiseParallel{}},
            {"block.down", PrepareModuleInput{{Shard(-1)}, {whole}}},
            {"block.down", RowwiseParallel{.input_layouts = whole}}},
           {{"norm", PrepareModuleInput{{whole}, {Shard(0)}}},
            {"norm", SequenceParallel{}},
            {"norm", PrepareModuleOutput{{Shard(0)}, {whole}}}},
           {{"embed", RowwiseParallel{.input_layouts = whole, .output_layouts = Shard(0)}},
            {"embed", PrepareModuleOutput{{Shard(0)}, {whole}}},
            {"head", ColwiseParallel{}},
            {"head", PrepareModuleOutput{{Shard(1)}, {whole}}}}}) {
    on_ranks(2, [&](const DeviceMesh& mesh) {
      Net plain, net;
      parallelize_module(net, mesh, plan);
      EXPECT_TRUE(all_close(net(ids()), plain(ids()), 1e-12, 1e-12)) << plan.front().first;
      expect_gradients_of_one_rank(net);
      check_replicated_gradients(net, mesh);
    });
  }
}

TEST(ParallelizeModule, RedistributesFromAnyLayoutToAnyOther) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    const auto& group = mesh.group();
    const Tensor whole = randn({4, 6}, 1);
    const auto part = [&](std::int64_t dim) {
      return clone(
          Tensor::narrow(whole, dim, group->rank() * whole.dim(dim) / 2, whole.dim(dim) / 2));
    };
    EXPECT_TRUE(bitwise_equal(redistribute(group, part(1), Shard(1), Shard(0)), part(0)));
    EXPECT_TRUE(bitwise_equal(redistribute(group, part(0), Shard(0), Replicate()), whole));
    EXPECT_TRUE(redistribute(group, whole, Shard(-1), Shard(-1)).is(whole));
  });
}

// The options of a layer: sums of so many rows, float32 from bfloat16 operands.
TEST(ParallelizeModule, ALayerKeepsItsOptions) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    const auto results = [](nn::Linear& layer) {
      const Tensor y = layer.product(randn({96, 24}, 2, kF32), kF32);
      y.backward(y.detach());
      return TensorList{y.detach(), layer.weight().grad()};
    };
    for (const std::optional<Dtype> compute : {std::optional<Dtype>(), {Dtype::kBFloat16}}) {
      const nn::Linear::Config config{.in_features = 24, .out_features = 64, .gradient_rows = 32};
      nn::Linear plain(config), layer(config);
      for (auto* each : {&plain, &layer}) {
        nn::init_weights(*each, 3, 0.5);
        each->compute_in(compute);
      }
      parallelize_module(layer, mesh, {{"", ColwiseParallel{.output_layouts = Replicate()}}});
      const auto got = results(layer), expected = results(plain);
      EXPECT_TRUE(bitwise_equal(got[0], expected[0]));
      EXPECT_TRUE(
          bitwise_equal(got[1], clone(shard_view(expected[1], *layer.weight().shard_spec()))));
    }
  });
}

// Rounded once, after the sum: x W^T + b of float32, whose halves are subtrees.
TEST(ParallelizeModule, ABiasIsAddedAfterTheSum) {
  for (const auto& layout : {Replicate(), Shard(0)}) {
    on_ranks(2, [&](const DeviceMesh& mesh) {
      const nn::Linear::Config config{.in_features = 256, .out_features = 8, .bias = true};
      nn::Linear plain(config), layer(config);
      for (auto* each : {&plain, &layer}) {
        nn::init_weights(*each, 3, 0.5);
        const NoGradGuard no_grad;
        copy_(each->parameter_slots()[1].parameter(), randn({8}, 5, kF32));
      }
      parallelize_module(
          layer, mesh,
          {{"", RowwiseParallel{.input_layouts = Replicate(), .output_layouts = layout}}});
      const Tensor x = randn({6, 256}, 2, kF32), y = plain(x).detach();
      const Tensor expected =
          layout == Shard(0) ? clone(Tensor::narrow(y, 0, 3 * mesh.group()->rank(), 3)) : y;
      EXPECT_TRUE(bitwise_equal(layer(x).detach(), expected));
    });
  }
}

// Layers whose blocks several ranks have, each with another number.
TEST(ParallelizeModule, BlocksOfSeveralRanksMayDifferInNumber) {
  on_ranks(4, [](const DeviceMesh& mesh) {
    for (const std::int64_t blocks : {1, 2, 4}) {
      nn::Sequential net;
      for (int i = 0; i < 2; ++i) {
        net.emplace_back<nn::Linear>({.in_features = 8, .out_features = 8});
      }
      parallelize_module(
          net, mesh,
          {{"0", ColwiseParallel{.blocks = blocks}}, {"1", ColwiseParallel{.blocks = 2}}});
      const int rank = mesh.group()->rank();
      const auto box_of = [&](std::size_t i) {
        return net.named_parameters()[i].tensor.shard_spec()->box;
      };
      EXPECT_EQ(box_of(0).begin[0], rank * blocks / 4 * 8 / blocks);
      EXPECT_EQ(box_of(0).shape[0], 8 / blocks);
      EXPECT_EQ(box_of(1).begin[0], rank / 2 * 4);
      EXPECT_EQ(std::ranges::count(inexact_sums(net, mesh, 1),
                                   "0: sums over heads that several ranks have"),
                blocks < 4 ? 1 : 0);
    }
  });
}

TEST(ParallelizeModule, APartTakesThePlaceOfItsParameterAsItWas) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    Net net;
    const Tensor embed = net.named_parameters()[0].tensor, up = net.named_parameters()[2].tensor;
    Tensor(embed).set_requires_grad(false);
    parallelize_module(net, mesh, plan_of(false));
    const Tensor part = net.named_parameters()[0].tensor;
    EXPECT_FALSE(part.requires_grad());
    EXPECT_FALSE(part.is(embed));
    EXPECT_EQ(part.storage().name(), embed.storage().name());
    EXPECT_TRUE(net.named_parameters()[2].tensor.requires_grad());
    // An optimizer that was made before holds what has been replaced.
    EXPECT_TRUE(has_mark(embed, kReplaced) && has_mark(up, kReplaced));
    EXPECT_THAT(message_of<Error>([&] { nn::deepcopy<Net>(net); }),
                ::testing::AllOf(::testing::StartsWith("deepcopy: 'embed.weight' of the original"),
                                 ::testing::HasSubstr("before parallelize_module")));
  });
}

TEST(ParallelizeModule, LeavesOneRankAsItIs) {
  on_ranks(1, [](const DeviceMesh& mesh) {
    Net plain, net;
    parallelize_module(net, mesh, plan_of(true));
    EXPECT_TRUE(bitwise_equal(net(ids()), plain(ids())));
    for (const auto& [name, parameter] : net.named_parameters()) {
      EXPECT_EQ(parameter.shard_spec(), nullptr) << name;
    }
  });
}

TEST(ParallelizeModule, SaysWhichPartEachRankHas) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    Net net;
    parallelize_module(net, mesh, plan_of(false));
    std::vector<std::string> parts;
    for (const auto& [name, parameter] : net.named_parameters()) {
      parts.push_back(name + " " + part_text(*parameter.shard_spec()));
      EXPECT_TRUE(parameter.requires_grad()) << name;
      EXPECT_TRUE(is_spread(*parameter.shard_spec())) << name;
    }
    const std::string second = mesh.group()->rank() == 1 ? "1" : "";
    const auto half = [&](int size) {
      const int begin = second.empty() ? 0 : size / 2;
      return "[" + std::to_string(begin) + ", " + std::to_string(begin + size / 2) + ")";
    };
    EXPECT_THAT(parts,
                ::testing::ElementsAre("embed.weight " + half(12) + " of dimension 0 of [12, 6]",
                                       "norm.weight all of [6]",
                                       "block.up.weight " + half(8) + " of dimension 0 of [8, 6]",
                                       "block.up.bias " + half(8) + " of dimension 0 of [8]",
                                       "block.down.weight " + half(8) + " of dimension 1 of [6, 8]",
                                       "block.down.bias all of [6]"));
  });
}

// Recomputation and fully_shard go around it.
TEST(ParallelizeModule, FitsBelowRecomputationAndFullyShard) {
  for (const bool sequence : {false, true}) {
    launch(4, [&](RankContext& context) {
      const auto meshes = make_meshes(context.group(), {.dp_shard = 2, .tp = 2});
      Net plain, net;
      parallelize_module(net, meshes.dense["tp"], plan_of(sequence));
      nn::recompute(net);
      fsdp::fully_shard(net, meshes.fsdp());
      const auto expected = gradients_of(plain);
      const auto got = gradients_of(net);
      const auto parameters = net.named_parameters();
      for (std::size_t i = 0; i < expected.size(); ++i) {
        const auto& spec = *parameters[i].tensor.shard_spec();
        const Tensor part = clone(shard_view(expected[i].tensor, spec));
        // Two data-parallel ranks with the same tokens.
        EXPECT_TRUE(all_close(got[i].tensor, ops::add(part, part), 1e-12, 1e-12)) << got[i].name;
      }
    });
  }
}

// The gradient of what is forgotten differs between the ranks, and no loss shows it.
TEST(ParallelizeModule, AForgottenSumIsFoundByTheName) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    Net net;
    auto plan = plan_of(true);
    plan.pop_back();
    parallelize_module(net, mesh, plan);
    gradients_of(net);
    EXPECT_THAT(message_of<Error>([&] { check_replicated_gradients(net, mesh); }),
                ::testing::HasSubstr("'the gradient of norm.weight'"));
    for (const bool missing : {false, true}) {  // on the second rank alone
      Net whole;
      parallelize_module(
          whole, mesh,
          {{"head", ColwiseParallel{}}, {"embed", RowwiseParallel{.input_layouts = Replicate()}}});
      for (const auto& [name, parameter] : whole.named_parameters()) {
        parameter.set_grad(Tensor::ones(parameter.shape(), kF64));
      }
      for (const auto& [name, parameter] : whole.named_parameters()) {
        if (name == "embed.weight") continue;
        const Tensor kept = parameter.grad();
        if (mesh.group()->rank() == 1) {
          parameter.set_grad(missing ? Tensor() : Tensor::full(parameter.shape(), 1.5, kF64));
        }
        EXPECT_THAT(message_of<Error>([&] { check_replicated_gradients(whole, mesh); }),
                    ::testing::HasSubstr("'the gradient of " + name + "'"));
        parameter.set_grad(kept);
      }
      check_replicated_gradients(whole, mesh);
    }
    for (const auto& [name, parameter] : net.named_parameters()) parameter.set_grad(Tensor());
    EXPECT_EQ(message_of<Error>([&] { check_replicated_gradients(net, mesh); }),
              "check_replicated_gradients: must be called after backward, got no gradient");
  });
  // The same ranks may be another group in another mesh.
  launch(4, [](RankContext& context) {
    const ParallelDims dims{.dp_shard = 2, .tp = 2};
    Net net;
    auto plan = plan_of(true);
    plan.pop_back();
    parallelize_module(net, make_meshes(context.group(), dims).dense["tp"], plan);
    gradients_of(net);
    const auto again = make_meshes(context.group(), dims).dense["tp"];
    EXPECT_THROW(check_replicated_gradients(net, again), Error);
  });
}

TEST(ParallelizeModule, ListsSumsThatHaveOtherBits) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    Net net;
    parallelize_module(net, mesh, plan_of(true));
    EXPECT_THAT(inexact_sums(net, mesh, 256),
                ::testing::ElementsAre("block.up: sums over 8 out-features",
                                       "block.down: sums over 8 in-features",
                                       "head: sums over 12 out-features"));
    EXPECT_EQ(inexact_sums(net, mesh, 8)[0], "norm: sums over 8 tokens");
    nn::Linear wide({.in_features = 256, .out_features = 4}),
        odd({.in_features = 272, .out_features = 4});
    for (auto* layer : {&wide, &odd}) parallelize_module(*layer, mesh, {{"", RowwiseParallel{}}});
    EXPECT_THAT(inexact_sums(wide, mesh, 1), ::testing::IsEmpty());
    EXPECT_THAT(inexact_sums(odd, mesh, 1), ::testing::ElementsAre(": sums over 272 in-features"));
    wide.compute_in(Dtype::kBFloat16);
    EXPECT_THAT(inexact_sums(wide, mesh, 1), ::testing::SizeIs(1));
    nn::Linear thirds({.in_features = 288, .out_features = 4});  // 9 x 32
    parallelize_module(thirds, mesh, {{"", RowwiseParallel{}}});
    EXPECT_THAT(inexact_sums(thirds, mesh, 1), ::testing::IsEmpty());
    thirds.compute_in(Dtype::kBFloat16);
    EXPECT_THAT(inexact_sums(thirds, mesh, 1), ::testing::SizeIs(1));
    Net heads;
    parallelize_module(heads, mesh, {{"norm", SequenceParallel{1}}});
    EXPECT_THAT(inexact_sums(heads, mesh, 8), ::testing::IsEmpty());
  });
  on_ranks(3, [](const DeviceMesh& mesh) {
    nn::Linear wide({.in_features = 768, .out_features = 4});
    parallelize_module(wide, mesh, {{"", RowwiseParallel{}}});
    EXPECT_THAT(inexact_sums(wide, mesh, 1), ::testing::SizeIs(1));
  });
  on_ranks(4, [](const DeviceMesh& mesh) {
    nn::Linear heads({.in_features = 4, .out_features = 256});
    parallelize_module(heads, mesh, {{"", ColwiseParallel{.blocks = 2}}});
    EXPECT_THAT(inexact_sums(heads, mesh, 1),
                ::testing::ElementsAre(": sums over 256 out-features",
                                       ": sums over heads that several ranks have"));
  });
}

std::string refusal(const DeviceMesh& mesh, const ParallelPlan& plan) {
  Net net;
  const auto message = message_of<ValueError>([&] { parallelize_module(net, mesh, plan); });
  for (const auto& [name, parameter] : net.named_parameters()) {
    EXPECT_EQ(parameter.shard_spec(), nullptr) << name;
  }
  return message;
}

TEST(ParallelizeModule, RefusesWhatDoesNotFit) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    EXPECT_EQ(
        refusal(mesh, {{"block.*.up", ColwiseParallel{}}}),
        "parallelize_module: 'block.*.up' must be the path of a module, got none that matches");
    EXPECT_EQ(refusal(mesh, {{"norm", ColwiseParallel{}}}),
              "parallelize_module: ColwiseParallel is for a Linear, got another module at 'norm'");
    EXPECT_EQ(refusal(mesh, {{"norm", RowwiseParallel{}}}),
              "parallelize_module: RowwiseParallel is for a Linear or an Embedding, got another "
              "module at 'norm'");
    EXPECT_EQ(refusal(mesh, {{"block.up", ColwiseParallel{}}, {"block.*", RowwiseParallel{}}}),
              "parallelize_module: 'block.up' must have one style in the plan, got another "
              "RowwiseParallel");
    EXPECT_EQ(refusal(mesh, {{"block.up", ColwiseParallel{.output_layouts = Shard(0)}}}),
              "parallelize_module: output_layouts of ColwiseParallel 'block.up' must be one of "
              "{Shard(-1), Replicate()}, got Shard(0)");
    EXPECT_EQ(refusal(mesh, {{"embed", RowwiseParallel{}}}),
              "parallelize_module: input_layouts of RowwiseParallel 'embed' must be one of "
              "{Replicate()}, got Shard(-1)");
    EXPECT_EQ(refusal(mesh, {{"block.up", ColwiseParallel{.blocks = 3}}}),
              "parallelize_module: blocks of 'block.up' must divide its 8 rows, got 3");
    EXPECT_EQ(refusal(mesh, {{"block.down", RowwiseParallel{.tiles = 0}}}),
              "parallelize_module: tiles of 'block.down' must be at least 1, got 0");
    EXPECT_EQ(refusal(mesh, {{"*up", ColwiseParallel{}}}),
              "parallelize_module: '*up' must be the path of a module, got none that matches");
    EXPECT_EQ(refusal(mesh, {{"block.up", ColwiseParallel{}}, {"block.up", SequenceParallel{}}}),
              "parallelize_module: 'block.up' must have one style in the plan, got another "
              "SequenceParallel");
    EXPECT_EQ(refusal(mesh, {{"block.up", ColwiseParallel{.input_layouts = Shard(-1)}}}),
              "parallelize_module: input_layouts of ColwiseParallel 'block.up' must be one of "
              "{Replicate(), Shard(0)}, got Shard(-1)");
    EXPECT_EQ(refusal(mesh, {{"block.down", RowwiseParallel{.output_layouts = Shard(-1)}}}),
              "parallelize_module: output_layouts of RowwiseParallel 'block.down' must be one of "
              "{Replicate(), Shard(0)}, got Shard(-1)");
    EXPECT_EQ(
        refusal(mesh, {{"block.up", ColwiseParallel{.output_layouts = Replicate(), .blocks = 1}}}),
        "parallelize_module: output_layouts of 'block.up' must be Shard(-1) where several ranks "
        "have a block, got Replicate()");
    EXPECT_EQ(refusal(mesh, {{"block.up", ColwiseParallel{.blocks = -2}}}),
              "parallelize_module: blocks of 'block.up' must divide its 8 rows, got -2");
    EXPECT_EQ(refusal(mesh, {{"block.up", ColwiseParallel{.tiles = -1}}}),
              "parallelize_module: tiles of 'block.up' must be at least 1, got -1");
    EXPECT_EQ(refusal(mesh, {{"embed", RowwiseParallel{.input_layouts = Replicate()}}}),
              "parallelize_module: 'head.weight' is tied to 'embed.weight', which is cut, so it "
              "must be in the plan, too");
    EXPECT_EQ(message_of<ValueError>([&] {
                nn::Dropout dropout({.p = 0.5});
                parallelize_module(dropout, mesh, {{"", SequenceParallel{}}});
              }),
              "parallelize_module: SequenceParallel is for a module with parameters, got '' "
              "without");
    EXPECT_EQ(message_of<ValueError>([&] {
                nn::ModuleList<nn::Linear> list;
                parallelize_module(list, mesh, {{"", PrepareModuleInput{}}});
              }),
              "parallelize_module: PrepareModuleInput is for a module that is called, got ''");
    EXPECT_EQ(message_of<ValueError>([&] {
                Net net;
                parallelize_module(
                    net, mesh,
                    {{"norm", PrepareModuleInput{{Shard(0), Shard(0)}, {Shard(0), Shard(0)}}}});
                net(ids());
              }),
              "parallelize_module: the plan has layouts of 2 arguments of 'norm', got 1; in "
              "module norm");
    EXPECT_EQ(message_of<ValueError>(
                  [&] { nn::Linear({.in_features = 1, .out_features = 1}).divide({}); }),
              "Linear: divide needs a process group, got null");
    EXPECT_EQ(message_of<ValueError>([&] {
                nn::Embedding({.num_embeddings = 1, .embedding_dim = 1}).divide(nullptr, false);
              }),
              "Embedding: divide needs a process group, got null");
    for (const bool bias : {false, true}) {
      nn::Linear layer({.in_features = 2, .out_features = 2, .bias = bias});
      if (!bias) parallelize_module(layer, mesh, {{"", RowwiseParallel{}}});
      EXPECT_EQ(message_of<Error>([&] {
                  layer.cross_entropy(Tensor::ones({1, 2}), indices_of({0}), {});
                }),
                "Linear: cross_entropy needs a layer without bias, whole or column-parallel, got "
                "another");
    }
    EXPECT_EQ(refusal(mesh, {{"norm", SequenceParallel{2}}}),
              "parallelize_module: sequence_dim of 'norm' must be 0 or 1, got 2");
    EXPECT_EQ(
        refusal(mesh, {{"norm", PrepareModuleInput{{Replicate()}, {}}}}),
        "parallelize_module: PrepareModuleInput 'norm' must have a desired layout for each of "
        "1, got 0");
    EXPECT_THAT(
        refusal(mesh, {{"head", RowwiseParallel{}},
                       {"embed", RowwiseParallel{.input_layouts = Replicate()}}}),
        ::testing::AllOf(::testing::StartsWith("parallelize_module: 'embed.weight' is tied to "
                                               "'head.weight', so both must be cut alike, got "),
                         ::testing::HasSubstr("of dimension 0 of [12, 6] and "),
                         ::testing::EndsWith("of dimension 1 of [12, 6]")));
  });
  on_ranks(5, [](const DeviceMesh& mesh) {
    EXPECT_EQ(refusal(mesh, {{"block.up", ColwiseParallel{}}}),
              "parallelize_module: the 5 ranks of axis 'tp' must divide dimension 0 of "
              "'block.up.weight', got [8, 6]");
    EXPECT_EQ(refusal(mesh, {{"block.down", RowwiseParallel{}}}),
              "parallelize_module: the 5 ranks of axis 'tp' must divide dimension 1 of "
              "'block.down.weight', got [6, 8]");
    EXPECT_EQ(
        refusal(mesh, {{"block.up", ColwiseParallel{.blocks = 4}}}),
        "parallelize_module: the 5 ranks of axis 'tp' must divide the 4 blocks of 'block.up', "
        "or these the ranks");
  });
}

TEST(ParallelizeModule, RefusesWhatRanksHaveDifferently) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    const bool second = mesh.group()->rank() == 1;
    Net net;
    auto plan = plan_of(false);
    if (second) plan.pop_back();
    EXPECT_EQ(message_of<Error>([&] { parallelize_module(net, mesh, plan); }),
              "parallelize_module: every rank must pass the same values of 'the plan', got others "
              "on rank 1 than on rank 0 of group '" +
                  mesh.group()->name() + "'");
    const auto whole = Replicate(), rows = Shard(0);
    const std::string norm = "norm", up = "block.up", down = "block.down";
    for (const auto& [first, other] : std::vector<std::pair<ParallelPlan, ParallelPlan>>{
             {{{up, ColwiseParallel{.blocks = 2}}}, {{up, ColwiseParallel{.blocks = 4}}}},
             {{{up, ColwiseParallel{.tiles = 2}}}, {{up, ColwiseParallel{.tiles = 3}}}},
             {{{up, ColwiseParallel{.input_layouts = rows}}}, {{up, ColwiseParallel{}}}},
             {{{down, RowwiseParallel{.tiles = 2}}}, {{down, RowwiseParallel{.tiles = 3}}}},
             {{{down, RowwiseParallel{.output_layouts = rows}}}, {{down, RowwiseParallel{}}}},
             {{{norm, SequenceParallel{}}}, {{norm, SequenceParallel{1}}}},
             {{{norm, PrepareModuleInput{{rows}, {whole}}}},
              {{norm, PrepareModuleInput{{whole}, {rows}}}}},
             {{{norm, PrepareModuleOutput{{rows}, {whole}}}},
              {{norm, PrepareModuleOutput{{whole}, {rows}}}}}}) {
      EXPECT_THAT(message_of<Error>([&, &one = first, &two = other] {
                    parallelize_module(net, mesh, second ? two : one);
                  }),
                  ::testing::HasSubstr("'the plan'"))
          << first.front().first;
    }
    const NoGradGuard no_grad;
    if (second) copy_(net.parameter_slots()[1].parameter(), Tensor::zeros({6}, kF64));
    EXPECT_EQ(message_of<Error>([&] { parallelize_module(net, mesh, plan_of(false)); }),
              "parallelize_module: every rank must pass the same values of 'norm.weight', got "
              "others on rank 1 than on rank 0 of group '" +
                  mesh.group()->name() + "'");
  });
}

TEST(ParallelizeModule, RefusesWhatHasBeenDividedOrHasHooks) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    Net net;
    parallelize_module(net, mesh, plan_of(false));
    EXPECT_THAT(message_of<Error>([&] { parallelize_module(net, mesh, plan_of(false)); }),
                ::testing::HasSubstr("'embed.weight' must not be divided over ranks yet"));
    Net sharded;
    fsdp::fully_shard(sharded, DeviceMesh::flat(RankContext::current().group()));
    EXPECT_THAT(message_of<Error>([&] { parallelize_module(sharded, mesh, plan_of(false)); }),
                ::testing::HasSubstr("'embed.weight' must not be divided over ranks yet"));
    sharded(ids());
    EXPECT_THAT(message_of<Error>([&] { parallelize_module(sharded, mesh, plan_of(false)); }),
                ::testing::HasSubstr("'embed.weight' must not be divided over ranks yet"));
    Net hooked;
    const auto handle =
        hooked.named_parameters()[2].tensor.register_hook([](const Tensor& g) { return g; });
    EXPECT_EQ(message_of<Error>([&] { parallelize_module(hooked, mesh, plan_of(false)); }),
              "parallelize_module: 'block.up.weight' must have no hooks yet, because a part takes "
              "its place; register them on that");
  });
  launch(4, [](RankContext& context) {
    const auto meshes = make_meshes(context.group(), {.dp_shard = 2, .tp = 2});
    Net net;
    // Not over other ranks, either: the layers have one group.
    parallelize_module(net, meshes.dense["tp"], plan_of(false));
    EXPECT_THAT(
        message_of<Error>([&] { parallelize_module(net, meshes.dense["shard"], plan_of(false)); }),
        ::testing::HasSubstr("'embed.weight' must not be divided over ranks yet"));
    EXPECT_EQ(message_of<ValueError>([&] { parallelize_module(net, meshes.dense, {}); }),
              "parallelize_module: the mesh must have one axis, got 4");
  });
}

}  // namespace
}  // namespace moegrad::parallel::parallelize_module_test
