// SPDX-License-Identifier: Apache-2.0
#include "fsdp/fully_shard.h"

#include <gmock/gmock.h>

#include "framework/autograd/checkpoint.h"
#include "framework/runtime/grad_mode.h"
#include "nn/linear.h"
#include "ops/elementwise.h"
#include "ops/reduce.h"
#include "ops/views.h"
#include "tests/fsdp/models.h"

namespace moegrad::fsdp::fully_shard_test {
namespace {

using test::message_of;
using ::testing::HasSubstr;

/// y = relu(x W^T), and what stood in the slot while it ran.
class Block final : public nn::Callable<Block> {
 public:
  Block(std::int64_t in, std::int64_t out) : linear_({.in_features = in, .out_features = out}) {
    register_module("linear", linear_);
  }
  Tensor forward(const Tensor& x) {
    seen = parameter_slots()[0].tensor->shape();
    return ops::relu(linear_(x));
  }
  Shape seen;

 private:
  nn::Linear linear_;
};

class Net final : public nn::Callable<Net> {
 public:
  Net() : first(6, 10), second(10, 5) {
    register_module("first", first);
    register_module("second", second);
    std::uint64_t seed = 1;
    for (const auto& slot : parameter_slots()) {
      Tensor values = slot.tensor->detach();
      copy_(values, test::randn(values.shape(), seed++, Dtype::kFloat32));
    }
  }
  Tensor forward(const Tensor& x) { return second(first(x)); }
  Block first, second;
};

Tensor input() { return test::randn({3, 6}, 9, Dtype::kFloat32); }

TEST(FullyShard, RegistersWholeParametersInForwardAndShardsOutside) {
  launch(4, [](RankContext& rank) {
    Net net;
    const auto mesh = DeviceMesh::flat(rank.group());
    fully_shard(net.first, mesh);
    fully_shard(net.second, mesh, {.reshard_after_forward = false});
    fully_shard(net, mesh);
    const auto registered = [&](std::size_t i) { return net.parameter_slots()[i].tensor->shape(); };
    EXPECT_EQ(registered(0), (Shape{rank.rank() == 3 ? 1 : 3, 6}));  // 10 rows: 3 3 3 1
    EXPECT_EQ(registered(1), (Shape{rank.rank() == 2 ? 1 : (rank.rank() == 3 ? 0 : 2), 10}));
    const Tensor out = net(input());
    EXPECT_EQ(net.first.seen, (Shape{10, 6}));
    EXPECT_EQ(registered(0), (Shape{rank.rank() == 3 ? 1 : 3, 6}));
    EXPECT_EQ(registered(1), (Shape{5, 10}));
    ops::sum(out).backward();
    EXPECT_EQ(registered(1), (Shape{rank.rank() == 2 ? 1 : (rank.rank() == 3 ? 0 : 2), 10}));
    for (const auto& parameter : net.named_parameters()) {
      EXPECT_EQ(parameter.tensor.grad().shape(), parameter.tensor.shape()) << parameter.name;
    }
  });
}

TEST(FullyShard, ReshardsAfterAForwardWithoutTape) {
  launch(2, [](RankContext& rank) {
    Net net;
    auto& root = fully_shard(net, DeviceMesh::flat(rank.group()));
    {
      const NoGradGuard no_grad;
      net(input());
    }
    EXPECT_TRUE(root.group()->is_sharded());
    const Tensor out = net(input());
    EXPECT_FALSE(root.group()->is_sharded());  // the root waits for its backward
  });
}

class Recomputed final : public nn::Callable<Recomputed> {
 public:
  Recomputed() { register_module("net", net); }
  Tensor forward(const Tensor& x) {
    return checkpoint([this](const TensorList& in) -> TensorList { return {net.first(in[0])}; },
                      {x})[0];
  }
  Net net;
};

/// "event group", of one group.
class Recorder final : public Observer {
 public:
  explicit Recorder(std::string group) : group_(std::move(group)) {}
  void on_event(Event event, const std::string& group) override {
    if (group == group_) events.emplace_back(to_string(event));
  }
  std::vector<std::string> events;

 private:
  std::string group_;
};

TEST(FullyShard, GathersARecomputedModuleOnceForForwardAndOnceForBackward) {
  launch(1, [](RankContext& rank) {
    Recomputed model;
    const auto mesh = DeviceMesh::flat(rank.group());
    fully_shard(model.net.first, mesh);
    auto& root = fully_shard(model, mesh);
    const auto recorder = std::make_shared<Recorder>("net.first");
    root.set_observer(recorder);
    Tensor x = input();
    x.set_requires_grad(true);
    ops::sum(model(x)).backward();
    EXPECT_THAT(recorder->events,
                ::testing::ElementsAre("pre_forward", "unshard", "reshard", "post_forward",
                                       "prefetch", "pre_backward", "reshard", "post_backward"));
  });
}

TEST(FullyShard, HoldsTheRowsOfTheWholeParameter) {
  const Net whole;
  launch(3, [&](RankContext& rank) {
    Net net;
    fully_shard(net, DeviceMesh::flat(rank.group()));
    const auto reference = whole.named_parameters();
    const auto sharded = net.named_parameters();
    for (std::size_t i = 0; i < sharded.size(); ++i) {
      const auto& spec = *sharded[i].tensor.shard_spec();
      const Tensor rows =
          ops::narrow(reference[i].tensor.detach(), 0, spec.box.begin[0], spec.box.shape[0]);
      EXPECT_TRUE(test::bitwise_equal(sharded[i].tensor.detach(), clone(rows)));
      EXPECT_EQ(spec.global_shape, reference[i].tensor.shape());
    }
  });
}

TEST(FullyShard, SumsGradientsOverRanks) {
  Net plain;
  ops::sum(plain(input())).backward();
  launch(2, [&](RankContext& rank) {
    Net net;
    fully_shard(net, DeviceMesh::flat(rank.group()));
    ops::sum(net(input())).backward();
    const auto reference = plain.named_parameters();
    const auto sharded = net.named_parameters();
    for (std::size_t i = 0; i < sharded.size(); ++i) {
      const auto& spec = *sharded[i].tensor.shard_spec();
      const Tensor rows =
          clone(ops::narrow(reference[i].tensor.grad(), 0, spec.box.begin[0], spec.box.shape[0]));
      // Twice the same number: exact.
      EXPECT_TRUE(test::bitwise_equal(sharded[i].tensor.grad(), ops::mul(rows, 2.0)));
    }
  });
}

TEST(FullyShard, KeepsGradientsWithoutSynchronisationUntilTheLastMicroBatch) {
  launch(2, [](RankContext& rank) {
    Net net, accumulated;
    const auto mesh = DeviceMesh::flat(rank.group());
    auto& state = fully_shard(net, mesh);
    fully_shard(accumulated, mesh);
    state.set_requires_gradient_sync(false);
    ops::sum(net(input())).backward();
    EXPECT_FALSE(net.named_parameters()[0].tensor.grad().defined());
    state.set_requires_gradient_sync(true);
    ops::sum(net(input())).backward();
    for (int i = 0; i < 2; ++i) ops::sum(accumulated(input())).backward();
    for (std::size_t i = 0; i < 2; ++i) {
      EXPECT_TRUE(test::bitwise_equal(net.named_parameters()[i].tensor.grad(),
                                      accumulated.named_parameters()[i].tensor.grad()));
    }
  });
}

TEST(FullyShard, UnshardsAndReshardsByHandAndReadingReleasedBytesNamesTheParameter) {
  launch(2, [](RankContext& rank) {
    Net net;
    auto& state = fully_shard(net, DeviceMesh::flat(rank.group()));
    {
      const NoGradGuard no_grad;
      net(input());
    }
    state.unshard();
    const Tensor whole = *net.parameter_slots()[0].tensor;
    EXPECT_EQ(whole.shape(), (Shape{10, 6}));
    state.reshard();
    state.reshard();
    EXPECT_EQ(message_of<Error>([&] { whole.data<float>(); }),
              "tensor: the bytes of 'first.linear.weight' have been released; unshard its module "
              "before reading it");
  });
}

TEST(FullyShard, RefillsWhatWasSavedForBackwardWithoutAVersionChange) {
  launch(2, [](RankContext& rank) {
    Net net;
    const auto mesh = DeviceMesh::flat(rank.group());
    fully_shard(net.first, mesh);
    fully_shard(net.second, mesh);
    fully_shard(net, mesh);
    const Tensor loss = ops::sum(net(input()));
    EXPECT_NO_THROW(loss.backward());
  });
}

TEST(FullyShard, LinearOnlyShardKeepsLinearWeightsAlignedTo512BytesAndLeavesTheRest) {
  for (const int world_size : {2, 3, 4, 8}) {
    launch(world_size, [](RankContext& rank) {
      models::CausalLM model(test::sharded_toy_config(), 1);
      auto& root =
          training::shard_model(model, DeviceMesh::flat(rank.group()), {.linear_only_shard = true});
      for (auto& layer : model.layers()) {
        const auto& group = *layer.extension<State>()->group();
        EXPECT_EQ(group.layout().entries.size(), 6U);  // q, k, v, o, gate_up, down
        for (int r = 0; r < rank.world_size(); ++r) {
          for (const auto& entry : group.layout().entries) {
            EXPECT_EQ((r * group.layout().slice_numel + entry.offset) * 4 % 512, 0);
          }
        }
      }
      // Per layer two norms, q_norm, k_norm and the router; embedding, final norm and head.
      EXPECT_EQ(root.group()->params().size(), 2U * 5U + 3U);
    });
  }
}

TEST(FullyShard, RefusesMisuse) {
  launch(1, [](RankContext& rank) {
    const auto mesh = DeviceMesh::flat(rank.group());
    Net net;
    fully_shard(net, mesh);
    EXPECT_EQ(
        message_of<Error>([&] { fully_shard(net, mesh); }),
        "fully_shard: the module has been sharded before; each rank needs a model of its own");
    Net other;
    EXPECT_EQ(message_of<DtypeError>([&] {
                fully_shard(other, mesh, {.mixed_precision = {.param_dtype = Dtype::kInt64}});
              }),
              "fully_shard: param_dtype must be a floating dtype, got int64");
    EXPECT_EQ(message_of<DtypeError>([&] {
                fully_shard(other, mesh, {.mixed_precision = {.reduce_dtype = Dtype::kInt64}});
              }),
              "fully_shard: reduce_dtype must be a floating dtype, got int64");
    EXPECT_EQ(message_of<DtypeError>([&] {
                fully_shard(other, mesh, {.mixed_precision = {.output_dtype = Dtype::kBFloat16}});
              }),
              "fully_shard: output_dtype must be float32 or float64, got bfloat16");
    EXPECT_EQ(message_of<ValueError>([&] { fully_shard(other, mesh, {.forward_prefetch = -1}); }),
              "fully_shard: forward_prefetch must not be negative, got -1");
    auto& state = fully_shard(other, mesh);
    Net plain;
    EXPECT_EQ(message_of<ValueError>([&] { state.set_modules_to_forward_prefetch({&plain}); }),
              "set_modules_to_forward_prefetch: every module must have been passed to fully_shard");
    EXPECT_EQ(
        message_of<ValueError>([&] { state.set_modules_to_backward_prefetch({&plain}); }),
        "set_modules_to_backward_prefetch: every module must have been passed to fully_shard");
    EXPECT_EQ(message_of<ValueError>([&] { state.set_modules_to_forward_prefetch({nullptr}); }),
              "set_modules_to_forward_prefetch: every module must have been passed to fully_shard");
    EXPECT_EQ(message_of<ValueError>([&] {
                fully_shard({&plain, nullptr}, mesh);
              }),
              "fully_shard: modules must not be null");
  });
}

TEST(FullyShard, RefusesAChildThatRanBeforeItsRoot) {
  launch(1, [](RankContext& rank) {
    const auto mesh = DeviceMesh::flat(rank.group());
    Net net;
    fully_shard(net.first, mesh);
    fully_shard(net, mesh);
    net.first(input());
    EXPECT_EQ(message_of<Error>([&] { net(input()); }),
              "fully_shard: module 'first' ran forward before its root did");
  });
}

TEST(FullyShard, EndsAllRanksWhenOneThrowsInForward) {
  const auto message = message_of<Error>([] {
    launch(4, [](RankContext& rank) {
      Net net;
      const auto mesh = DeviceMesh::flat(rank.group());
      fully_shard(net.first, mesh);
      fully_shard(net, mesh);
      if (rank.rank() == 2) {
        net.second.register_forward_pre_hook([](nn::Module&) { throw Error("no more memory"); });
      }
      for (int step = 0; step < 3; ++step) ops::sum(net(input())).backward();
    });
  });
  EXPECT_EQ(message, "no more memory; in module second");
}

TEST(FullyShard, EndsEveryRankThatWaitsForTheOneThatThrew) {
  std::vector<std::string> messages(3);
  EXPECT_THROW(launch(3,
                      [&](RankContext& rank) {
                        Net net;
                        fully_shard(net, DeviceMesh::flat(rank.group()));
                        if (rank.rank() == 1) throw Error("disk on fire");
                        try {
                          ops::sum(net(input())).backward();
                        } catch (const Error& error) {
                          messages[static_cast<std::size_t>(rank.rank())] = error.what();
                          throw;
                        }
                      }),
               Error);
  for (const std::size_t rank : {0U, 2U}) {
    EXPECT_THAT(messages[rank], HasSubstr("all_gather"));
    EXPECT_THAT(messages[rank], HasSubstr("rank 1"));
    EXPECT_THAT(messages[rank], HasSubstr("disk on fire"));
    EXPECT_THAT(messages[rank], HasSubstr("world"));
  }
}

TEST(FullyShard, EndsAllRanksWhenOneSkipsACollective) {
  std::vector<std::string> messages(2);
  EXPECT_THROW(
      launch(2,
             [&](RankContext& rank) {
               Net net;
               const auto mesh = DeviceMesh::flat(rank.group());
               fully_shard(net.first, mesh);
               fully_shard(net, mesh);
               try {
                 // Rank 1 goes to the barrier a step early and stays there.
                 for (int step = 0; step < 2 - rank.rank(); ++step) {
                   ops::sum(net(input())).backward();
                 }
                 rank.group()->barrier()->wait();
               } catch (const CollectiveError& error) {
                 messages[static_cast<std::size_t>(rank.rank())] = error.what();
                 throw;
               }
             },
             {.deadline = std::chrono::milliseconds(500), .on_failure = [](const std::string&) {}}),
      CollectiveError);
  for (const auto& message : messages) {
    EXPECT_THAT(message, HasSubstr("world"));
    EXPECT_THAT(message, HasSubstr("rank"));
    EXPECT_THAT(message, ::testing::AnyOf(HasSubstr("all_gather"), HasSubstr("barrier")));
  }
}

}  // namespace
}  // namespace moegrad::fsdp::fully_shard_test
