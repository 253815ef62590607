// SPDX-License-Identifier: Apache-2.0

// What a checkpoint makes of the tensors that a sharded program gives it.

#include <gmock/gmock.h>

#include "framework/io/checkpoint_reader.h"
#include "framework/io/checkpoint_saver.h"
#include "fsdp/fully_shard.h"
#include "optim/adamw.h"
#include "tests/framework/distributed/hand_shards.h"
#include "tests/framework/io/checkpoint_samples.h"
#include "tests/framework/io/files.h"
#include "tests/fsdp/random_sequences.h"
#include "tests/testing.h"

namespace moegrad::fsdp::state_dict_checkpoint_test {
namespace {

using namespace test;

// Odd sizes, so that ranks hold other numbers of rows.
Sequence three_blocks() {
  return {.width = 5, .blocks = 3, .recomputed = {false, false, false}, .calls = {0, 1, 2}};
}

class Program {
 public:
  Program(RankContext& context, std::uint64_t seed, int replicas = 1) : net(three_blocks()) {
    const DeviceMesh mesh(context.group(),
                          {{"replicate", replicas}, {"shard", context.world_size() / replicas}});
    for (auto& block : net.blocks) fully_shard(*block, mesh);
    fully_shard(net, mesh);
    optimizer = std::make_unique<optim::AdamW>(net.named_parameters(), optim::AdamW::Config{});
    net(test::randn({2, 5}, seed)).backward();
    optimizer->step();
    net(test::randn({2, 5}, seed));  // leaves values gathered
  }

  /// As a user writes it: detached tensors, of the model and of the optimizer.
  NamedTensors state() const {
    NamedTensors all = net.state_dict();
    for (const auto& [name, tensor] : optimizer->state_dict())
      all.push_back({name, tensor.detach()});
    return all;
  }

  RealNet net;
  std::unique_ptr<optim::AdamW> optimizer;
};

TEST(StateDictCheckpoint, ADetachedShardIsAShard) {
  launch(2, [](RankContext& context) {
    const Program program(context, 1);
    for (const auto& [name, parameter] : program.net.named_parameters()) {
      EXPECT_EQ(parameter.detach().shard_spec(), parameter.shard_spec()) << name;
    }
    for (const auto& [name, tensor] : program.net.state_dict()) {
      EXPECT_NE(tensor.shard_spec(), nullptr) << name;
    }
  });
}

TEST(StateDictCheckpoint, IsReadAtAnyWorldSize) {
  for (const int saved : {1, 2, 4}) {
    for (const int replicas : {1, 2}) {
      if (saved % replicas != 0) continue;
      const TemporaryFolder root;
      launch(saved, [&](RankContext& context) {
        const Program program(context, 1, replicas);
        write_checkpoint(root / "", 7, {.tensors = program.state()}, context.group());
      });
      // The same gradient from every rank: the sum is an exact multiple, which AdamW's step divides
      // out only up to eps, so that ranks read what their number wrote.
      NamedTensors whole;
      launch(1, [&](RankContext& context) {
        Program program(context, 2);
        CheckpointReader reader(root / "step-00000007");
        reader.read_all(program.state());
        for (const auto& [name, tensor] : program.state()) whole.push_back({name, clone(tensor)});
      });
      for (const int loaded : {2, 3}) {
        launch(loaded, [&](RankContext& context) {
          Program program(context, 2);
          CheckpointReader reader(root / "step-00000007");
          reader.read_all(program.state());
          const auto state = program.state();
          for (std::size_t i = 0; i < state.size(); ++i) {
            const auto& [name, tensor] = state[i];
            const auto& spec = tensor.shard_spec();
            const Tensor part = spec ? clone(shard_view(whole[i].tensor, *spec)) : whole[i].tensor;
            EXPECT_TRUE(bitwise_equal(tensor, part)) << name << ", " << saved << " to " << loaded;
          }
        });
      }
      launch(saved, [&](RankContext& context) {
        const Program written(context, 1, replicas);
        const auto state = written.state();
        for (std::size_t i = 0; i < state.size(); ++i) {
          const auto& [name, tensor] = state[i];
          const auto& spec = tensor.shard_spec();
          const Tensor part = spec ? clone(shard_view(whole[i].tensor, *spec)) : whole[i].tensor;
          EXPECT_TRUE(bitwise_equal(tensor, part)) << name << ", as " << saved << " wrote it";
        }
      });
    }
  }
}

// A shard without its spec looks like a whole tensor, and rank 0's would be written for all.
TEST(StateDictCheckpoint, WholeTensorsThatDifferBetweenRanksAreAnErrorThatNamesThem) {
  const std::string expected =
      "checkpoint: saving step 7 failed on rank 1: 'w' must have the same values as on rank 0, got "
      "others; a shard needs its ShardSpec";
  const TemporaryFolder root;
  launch(3, [&](RankContext& context) {
    CheckpointState state = test::one_tensor(context.rank() == 1 ? 2 : 1);
    state.tensors.push_back({"same", test::randn({3}, 1)});
    EXPECT_EQ(message_of<Error>([&] { write_checkpoint(root / "", 7, state, context.group()); }),
              expected);
    CheckpointSaver saver(root / "", context.group());
    saver.save(7, state);
    // What was saved counts, not what the tensors hold when the thread comes to them.
    for (auto& [name, tensor] : state.tensors) fill_(tensor, 0.0);
    EXPECT_EQ(message_of<Error>([&] { saver.wait(); }), expected);
    EXPECT_TRUE(test::steps_in(root / "").empty());
    saver.save(8, state);
    saver.wait();
    EXPECT_EQ(test::steps_in(root / ""), (std::vector<std::int64_t>{8}));
  });
}

TEST(StateDictCheckpoint, ShardsThatDifferBetweenReplicasAreAnErrorThatNamesThem) {
  const TemporaryFolder root;
  launch(4, [&](RankContext& context) {
    const Program program(context, 1, 2);
    if (context.rank() == 3) {
      Tensor shard = program.net.named_parameters()[0].tensor.detach();
      fill_(shard, 3.0);
    }
    EXPECT_EQ(
        message_of<Error>(
            [&] { write_checkpoint(root / "", 7, {.tensors = program.state()}, context.group()); }),
        "checkpoint: saving step 7 failed on rank 3: 'scale' [3, 5) of "
        "dimension 0 of [5] must have the same values as on rank 1, got others; a shard needs its "
        "ShardSpec");
  });
}

// Names that agree in all that an error shows of them.
TEST(StateDictCheckpoint, LongNamesAreToldApart) {
  const TemporaryFolder root;
  launch(2, [&](RankContext& context) {
    const std::string name(100, 'n');
    const CheckpointState state = {
        .tensors = {{name + "1", test::randn({3}, 1)}, {name + "2", test::randn({3}, 2)}}};
    write_checkpoint(root / "", 7, state, context.group());
    EXPECT_EQ(test::steps_in(root / ""), (std::vector<std::int64_t>{7}));
  });
}

// Parts of one shape at other places: the second save must not use the first one's.
TEST(StateDictCheckpoint, OneSaverTakesTwoPlacements) {
  const TemporaryFolder root;
  const Tensor whole = test::randn({6, 2}, 1);
  launch(2, [&](RankContext& context) {
    CheckpointSaver saver(root / "", context.group());
    for (const int step : {1, 2, 3}) {
      const int place = step == 2 ? 1 - context.rank() : context.rank();
      const auto spec =
          std::make_shared<const ShardSpec>(test::range_spec({6, 2}, 3 * place, 3 * place + 3));
      Tensor part = clone(shard_view(whole, *spec));
      part.set_shard_spec(spec);
      saver.save(step, {.tensors = {{"w", part}}});
      saver.wait();
      CheckpointReader reader(root / ("step-0000000" + std::to_string(step)));
      Tensor read = Tensor::zeros({6, 2}, Dtype::kFloat64);
      reader.read("w", read);
      EXPECT_TRUE(bitwise_equal(read, whole)) << step;
    }
  });
}

}  // namespace
}  // namespace moegrad::fsdp::state_dict_checkpoint_test
