// SPDX-License-Identifier: Apache-2.0

// Biases, buffers, Sequential and ModuleList under fully_shard.
#include <gmock/gmock.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "framework/distributed/launch.h"
#include "framework/io/checkpoint_reader.h"
#include "framework/io/checkpoint_writer.h"
#include "framework/tensor/meta.h"
#include "fsdp/fully_shard.h"
#include "fsdp/state_dict.h"
#include "nn/init.h"
#include "nn/linear.h"
#include "nn/mlp.h"
#include "nn/module_list.h"
#include "nn/recompute.h"
#include "nn/rms_norm.h"
#include "nn/sequential.h"
#include "ops/elementwise.h"
#include "ops/reduce.h"
#include "optim/adamw.h"
#include "tests/framework/io/files.h"
#include "tests/nn/small_modules.h"
#include "tests/testing.h"

namespace moegrad::fsdp::containers_test {
namespace {

using namespace test;
using ::testing::HasSubstr;

constexpr std::int64_t kMicroBatches = 4;

/// x + W (scale * x) + b, with a scale that is not trained.
class Block final : public nn::Callable<Block> {
 public:
  struct Config {
    std::int64_t dim = 0;
  };
  explicit Block(const Config& config)
      : scale(Tensor::full({config.dim}, 0.5)),
        linear_({.in_features = config.dim, .out_features = config.dim, .bias = true}) {
    register_buffer("scale", scale);
    register_buffer("scratch", scratch, /*persistent=*/false);
    register_module("linear", linear_);
  }
  Tensor forward(const Tensor& x) { return x + linear_(x * scale); }
  Tensor scale, scratch = Tensor::zeros({1});

 private:
  nn::Linear linear_;
};

/// Five features, which neither 2 nor 4 ranks divide.
class Net final : public nn::Callable<Net> {
 public:
  Net() {
    embed.emplace_back<nn::Linear>({.in_features = 3, .out_features = 5, .bias = true});
    embed.emplace_back<Tanh>();
    embed.emplace_back<nn::RMSNorm>({.dim = 5});
    for (int i = 0; i < 3; ++i) blocks.emplace_back({.dim = 5});
    register_module("embed", embed);
    register_module("blocks", blocks);
    register_buffer("steps", steps);
    register_buffer("mask", mask);
  }
  Tensor forward(const Tensor& x) {
    Tensor y = embed(x);
    for (auto& block : blocks) y = block(y);
    return y;
  }
  nn::Sequential embed;
  nn::ModuleList<Block> blocks;
  Tensor steps = Tensor::zeros({1}, Dtype::kInt64), mask = Tensor::ones({3}, Dtype::kBool);
};

State& shard(Net& net, const DeviceMesh& mesh) {
  fully_shard(net.embed, mesh);
  for (auto& block : net.blocks) fully_shard(block, mesh);
  return fully_shard(net, mesh);
}

State& shard(Net& net, RankContext& context, int replicas = 1) {
  return shard(net, DeviceMesh(context.group(), {{"replicate", replicas},
                                                 {"shard", context.world_size() / replicas}}));
}

struct Training {
  int ranks = 1, replicas = 1;
  bool recomputed = false;
};

/// The whole state after three steps over four micro-batches each.
std::map<std::string, Tensor> train(const Training& run) {
  std::map<std::string, Tensor> state;
  launch(run.ranks, [&](RankContext& context) {
    Net net;
    nn::init_weights(net, 3, 0.5);
    if (run.recomputed) {
      nn::recompute(net.embed);
      nn::recompute(net.blocks[1]);
    }
    auto& root = shard(net, context, run.replicas);
    optim::AdamW optimizer(net.named_parameters(), {.lr = 0.1, .weight_decay = 0.1});
    const auto own = kMicroBatches / run.ranks;
    for (std::int64_t step = 0; step < 3; ++step) {
      net.zero_grad();
      for (std::int64_t k = 0; k < own; ++k) {
        const auto micro_batch = context.rank() * own + k;
        const auto seed = static_cast<std::uint64_t>(step * kMicroBatches + micro_batch + 1);
        root.set_requires_gradient_sync(k + 1 == own);
        ops::sum(ops::square(net(randn({7, 3}, seed, Dtype::kFloat32)))).backward();
      }
      optimizer.step();
      for (auto& block : net.blocks) fill_(block.scale, 0.5 + 0.1 * static_cast<double>(step));
      ++net.steps.mutable_data<std::int64_t>()[0];
    }
    for (const auto& [name, tensor] : full_state_dict(net)) state[name] = tensor;
  });
  return state;
}

void expect_same(const std::map<std::string, Tensor>& found,
                 const std::map<std::string, Tensor>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [name, tensor] : found) {
    EXPECT_TRUE(bitwise_equal(tensor, expected.at(name))) << name;
  }
}

TEST(Containers, TrainToTheSameBitsOnAnyNumberOfRanks) {
  const auto one = train({});
  ASSERT_EQ(one.size(), 14U);  // 3 + 3 * 2 parameters and 3 + 2 buffers
  EXPECT_EQ(one.at("steps").item<std::int64_t>(), 3);
  for (const auto& run :
       {Training{.ranks = 2}, Training{.ranks = 4}, Training{.ranks = 4, .replicas = 2},
        Training{.recomputed = true}, Training{.ranks = 2, .recomputed = true}}) {
    SCOPED_TRACE(::testing::Message() << run.ranks << ' ' << run.replicas << ' ' << run.recomputed);
    expect_same(train(run), one);
  }
}

TEST(Containers, BuffersStayWholeAndBiasesAreCut) {
  launch(2, [](RankContext& context) {
    Net net;
    shard(net, context);
    for (const auto& [name, tensor] : net.state_dict()) {
      const bool is_buffer = name == "steps" || name == "mask" || name.ends_with("scale");
      EXPECT_EQ(tensor.shard_spec() == nullptr, is_buffer) << name;
      if (!name.ends_with("bias")) continue;
      EXPECT_EQ(tensor.dim(0), context.rank() == 0 ? 3 : 2);
    }
    EXPECT_EQ(net.named_buffers().size(), 8U);
  });
}

/// Sharded, with other values in each of `net`'s tensors than at first.
void fill_for_test(Net& net) {
  nn::init_weights(net, 11, 0.5);
  for (std::int64_t i = 0; i < 3; ++i) fill_(net.blocks[i].scale, static_cast<double>(i) + 0.25);
  fill_(net.steps, 41.0);
  net.mask.mutable_data<bool>()[1] = false;
}

TEST(Containers, ACheckpointIsReadAtAnotherWorldSize) {
  for (const int saved : {1, 4}) {
    const TemporaryFolder root;
    std::map<std::string, Tensor> expected;
    launch(saved, [&](RankContext& context) {
      Net net;
      shard(net, context);
      fill_for_test(net);
      write_checkpoint(root / "", 7, {.tensors = net.state_dict()}, context.group());
      for (const auto& [name, tensor] : full_state_dict(net)) expected[name] = tensor;
    });
    for (const int loaded : {1, 2, 3}) {
      launch(loaded, [&](RankContext& context) {
        Net net;
        shard(net, context);
        CheckpointReader reader(root / "step-00000007");
        reader.read_all(net.state_dict());
        EXPECT_EQ(net.steps.item<std::int64_t>(), 41);  // on every rank
        EXPECT_FALSE(net.mask.data<bool>()[1]);
        std::map<std::string, Tensor> found;
        for (const auto& [name, tensor] : full_state_dict(net)) found[name] = tensor;
        if (context.rank() == 0) expect_same(found, expected);
      });
    }
  }
}

TEST(Containers, RanksWhoseBuffersDifferCannotSaveThem) {
  const TemporaryFolder root;
  launch(2, [&](RankContext& context) {
    Net net;
    shard(net, context);
    if (context.rank() == 1) fill_(net.steps, 1.0);
    EXPECT_EQ(message_of<Error>([&] {
                write_checkpoint(root / "", 7, {.tensors = net.state_dict()}, context.group());
              }),
              "checkpoint: saving step 7 failed on rank 1: 'steps' must have the same values as on "
              "rank 0, got others; a shard needs its ShardSpec");
  });
}

TEST(Containers, AFullStateDictGivesEveryRankTheBuffers) {
  launch(3, [](RankContext& context) {
    Net net, reference;
    fill_for_test(reference);
    shard(net, context);
    const auto given = context.rank() == 0 ? reference.state_dict() : NamedTensors{};
    load_full_state_dict(net, given);
    EXPECT_TRUE(bitwise_equal(net.steps, reference.steps));
    EXPECT_TRUE(bitwise_equal(net.mask, reference.mask));
    EXPECT_TRUE(bitwise_equal(net.blocks[0].scale, reference.blocks[0].scale));
    auto on_tape = given;
    for (auto& [name, tensor] : on_tape) {
      if (!is_floating(tensor.dtype()) || tensor.ndim() == 0) continue;
      Tensor leaf = clone(tensor).set_requires_grad(true);
      tensor = leaf.slice(0, 0, leaf.dim(0));
    }
    EXPECT_NO_THROW(load_full_state_dict(net, on_tape));
    auto incomplete = reference.state_dict();
    std::erase_if(incomplete, [](const auto& entry) { return entry.name == "mask"; });
    EXPECT_EQ(message_of<Error>([&] { load_full_state_dict(net, incomplete); }),
              "load_full_state_dict: missing key 'mask'");
  });
}

TEST(Containers, RanksThatBeginWithOtherBuffersAreAnErrorThatNamesThem) {
  for (const int replicas : {1, 2}) {
    launch(2, [&](RankContext& context) {
      Net net;
      if (context.rank() == 1) net.blocks[2].scale.mutable_data<float>()[4] = 3.0F;
      shard(net, context, replicas);
      EXPECT_THAT(message_of<Error>([&] {
                    net(randn({2, 3}, 1, Dtype::kFloat32));
                  }),
                  HasSubstr("fully_shard: every rank must pass the same values of "
                            "'blocks.2.scale', got others on rank 1 than on rank 0"));
    });
  }
  // One that is not persistent may be the rank's own.
  launch(2, [](RankContext& context) {
    Net net;
    fill_(net.blocks[0].scratch, context.rank());
    shard(net, context);
    EXPECT_NO_THROW(net(randn({2, 3}, 1, Dtype::kFloat32)));
  });
}

// As a large model is made: no rank holds all of it.
TEST(Containers, AreMadeOnTheMetaDeviceShardedAndFilled) {
  Net reference;
  fill_for_test(reference);
  const Tensor x = randn({2, 3}, 1, Dtype::kFloat32);
  const Tensor expected = reference(x).detach();
  launch(2, [&](RankContext& context) {
    std::optional<Net> net;
    {
      const MetaGuard meta;
      net.emplace();
    }
    shard(*net, context);
    EXPECT_TRUE(net->steps.is_meta());
    net->to_empty();
    for (auto& [name, buffer] : net->named_buffers()) fill_(buffer, 0.0);
    fill_for_test(*net);
    EXPECT_TRUE(bitwise_equal((*net)(x).detach(), expected));
  });
}

TEST(Containers, ABufferWithoutBytesIsAnErrorBeforeTheFirstForward) {
  launch(2, [](RankContext& context) {
    Net net;
    {
      const MetaGuard meta;
      net.blocks[1].scale = Tensor::zeros({5});
    }
    shard(net, context);
    EXPECT_EQ(message_of<Error>([&] {
                net(randn({2, 3}, 1, Dtype::kFloat32));
              }),
              "fully_shard: buffer 'blocks.1.scale' is still on the meta device; call to_empty() "
              "and fill it before the first forward");
  });
}

TEST(Containers, AListIsNotShardedItself) {
  launch(1, [](RankContext& context) {
    Net net;
    const auto mesh = DeviceMesh::flat(context.group());
    EXPECT_EQ(
        message_of<ValueError>([&] { fully_shard(net.blocks, mesh); }),
        "fully_shard: a module must be called to gather its parameters, but a list of modules "
        "is not; pass its elements");
    EXPECT_EQ(net.blocks.named_parameters()[0].tensor.shard_spec(), nullptr);
  });
}

TEST(Containers, AShardedModuleIsNeitherConvertedNorReplaced) {
  launch(2, [](RankContext& context) {
    Net net;
    shard(net, context);
    EXPECT_EQ(message_of<Error>([&] { net.to(Dtype::kFloat64); }),
              "to: parameter 'embed.0.weight' must not be sharded; convert the module before "
              "fully_shard, or give fully_shard a MixedPrecisionPolicy");
    EXPECT_EQ(net.blocks[0].scale.dtype(), Dtype::kFloat32);
    const nn::TensorModule other = std::make_shared<Tanh>();
    EXPECT_EQ(message_of<Error>([&] { net.replace("embed.0", other); }),
              "replace_module: '0' of module 'embed' must not be sharded yet, got a shard of its "
              "'weight'; replace modules before fully_shard");
    net.replace("embed.1", other);  // it has no parameters
    EXPECT_NO_THROW(net(randn({2, 3}, 1, Dtype::kFloat32)));
  });
}

TEST(Containers, AConvertedModuleIsShardedInItsNewDtype) {
  Net reference;
  nn::init_weights(reference, 3, 0.5);
  reference.to(Dtype::kFloat64);
  const Tensor x = randn({2, 3});
  const Tensor expected = reference(x).detach();
  launch(2, [&](RankContext& context) {
    Net net;
    nn::init_weights(net, 3, 0.5);
    net.to(Dtype::kFloat64);
    shard(net, context);
    EXPECT_TRUE(bitwise_equal(net(x).detach(), expected));
  });
}

}  // namespace
}  // namespace moegrad::fsdp::containers_test
