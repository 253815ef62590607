// SPDX-License-Identifier: Apache-2.0

// Long runs, for tests/run.sh --full: every combination, random delays, random failures, random
// input.

#include <thread>

#include "tests/fsdp/models.h"

namespace moegrad {
namespace {

using testing::sharded_toy_config;
using testing::train_sharded;

TEST(Sweep, EveryCombinationOfRanksAndPoliciesTrainsBitwiseTheSame) {
  const auto base = train_sharded(sharded_toy_config(), 1, 3, 8);
  int runs = 0;
  for (const int world_size : {1, 2, 4, 8}) {
    for (const auto layout : {Layout::kNZ, Layout::kND}) {
      for (const bool reshard : {true, false}) {
        for (const bool linear_only : {true, false}) {
          for (const int prefetch : {0, 1, 3}) {
            for (const std::int64_t recompute : {0, 2}) {
              auto config = sharded_toy_config();
              config.gathered_layout = layout;
              const fsdp::Policy policy = {.reshard_after_forward = reshard,
                                           .linear_only_shard = linear_only,
                                           .forward_prefetch = prefetch};
              EXPECT_EQ(
                  train_sharded(config, world_size, 3, 8, policy, {.recompute_layers = recompute}),
                  base)
                  << world_size << " ranks, " << layout << ", reshard " << reshard
                  << ", linear only " << linear_only << ", prefetch " << prefetch << ", recompute "
                  << recompute;
              ++runs;
            }
          }
        }
      }
    }
  }
  EXPECT_EQ(runs, 4 * 2 * 2 * 2 * 3 * 2);
}

/// Steps of the toy model on `world_size` ranks; `before_layer(rank, call)` runs ahead of every
/// decoder layer's forward. Returns rank 0's losses.
std::vector<double> train_with(int world_size, const LaunchOptions& options,
                               const std::function<void(int, int)>& before_layer) {
  std::vector<double> losses;
  launch(
      world_size,
      [&](RankContext& context) {
        models::Qwen3Moe model(sharded_toy_config(), 3);
        auto& state = examples::shard_model(model, DeviceMesh::flat(context.group()), {});
        int call = 0;
        for (auto& layer : model.layers()) {
          layer.register_forward_pre_hook(
              [&](nn::Module&) { before_layer(context.rank(), call++); });
        }
        optim::AdamW optimizer(examples::decay_matrices(model.named_parameters(), 1e-2, 0.1), {});
        for (std::int64_t step = 0; step < 3; ++step) {
          const auto result = examples::train_step(
              model, state, testing::toy_batches(step, 8, sharded_toy_config().vocab_size), {},
              optimizer);
          if (context.rank() == 0) losses.push_back(result.loss);
        }
      },
      options);
  return losses;
}

TEST(Jitter, RandomDelaysOfRanksAndLinksChangeNoBit) {
  const auto expected = train_with(1, {}, [](int, int) {});
  const Random random(11, "jitter");
  for (std::uint64_t trial = 0; trial < 40; ++trial) {
    const int world_size = 1 << (1 + trial % 3);
    const LaunchOptions options = {
        .link = {.latency = std::chrono::microseconds(random.integer(trial, 800))}};
    const auto sleep = [&](int rank, int call) {
      const auto index = trial * 1000 + static_cast<std::uint64_t>(rank * 100 + call);
      std::this_thread::sleep_for(std::chrono::microseconds(random.integer(index, 1500)));
    };
    EXPECT_EQ(train_with(world_size, options, sleep), expected) << "trial " << trial;
  }
}

TEST(Kill, ARankThatThrowsAnywhereEndsTheLaunchWithItsOwnMessage) {
  const Random random(12, "kill");
  for (std::uint64_t trial = 0; trial < 60; ++trial) {
    const auto victim = static_cast<int>(random.integer(2 * trial, 4));
    const auto moment = static_cast<int>(random.integer(2 * trial + 1, 12));
    const auto message = testing::message_of<Error>([&] {
      train_with(4, {}, [&](int rank, int call) {
        if (rank == victim && call == moment) throw Error("killed rank " + std::to_string(rank));
      });
    });
    EXPECT_EQ(message, "killed rank " + std::to_string(victim)) << "at call " << moment;
  }
}

TEST(Fuzz, AConfigurationOfAnyBytesIsReadOrRefused) {
  const std::string seed =
      R"({"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
          "num_key_value_heads": 2, "head_dim": 8, "moe_intermediate_size": 16, "num_experts": 4,
          "num_experts_per_tok": 2, "mlp_only_layers": [1], "rope_theta": 1e4})";
  const Random random(13, "fuzz");
  int refused = 0;
  std::uint64_t draw = 0;
  for (int trial = 0; trial < 20000; ++trial) {
    std::string text = seed;
    const auto changes = 1 + random.integer(draw++, 4);
    for (std::int64_t i = 0; i < changes; ++i) {
      const auto at = static_cast<std::size_t>(random.integer(draw++, std::ssize(text)));
      const auto byte = static_cast<char>(random.integer(draw++, 256));
      if (random.integer(draw++, 3) == 0) {
        text.erase(at, 1);
      } else {
        text[at] = byte;
      }
    }
    try {
      models::Qwen3MoeConfig::parse_json(text).validate();
    } catch (const ValueError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 1000);
  EXPECT_LT(refused, 20000);
}

}  // namespace
}  // namespace moegrad
