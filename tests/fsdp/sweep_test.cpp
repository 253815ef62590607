// SPDX-License-Identifier: Apache-2.0

// Long runs, for tests/run.sh --full: every combination, random delays, random failures, random
// input.

#include <bit>
#include <sstream>
#include <thread>

#include "models/causal_lm/config_json.h"
#include "tests/fsdp/models.h"

namespace moegrad::sweep_test {
namespace {

using namespace test;
using fsdp::Accumulation;

TEST(Sweep, EveryCombinationOfRanksAndPoliciesTrainsBitwiseTheSame) {
  const auto base = train_sharded(sharded_toy_config(), {.steps = 3, .micro_batches = 8});
  int runs = 0;
  for (const int world_size : {1, 2, 4, 8}) {
    for (const auto layout : {Layout::kNZ, Layout::kND}) {
      for (const bool reshard : {true, false}) {
        for (const bool linear_only : {true, false}) {
          for (const int prefetch : {0, 1, 3}) {
            for (const std::int64_t recompute : {0, 2}) {
              const ToyTraining training = {.ranks = {.dp_shard = world_size},
                                            .steps = 3,
                                            .micro_batches = 8,
                                            .policy = {.reshard_after_forward = reshard,
                                                       .linear_only_shard = linear_only,
                                                       .forward_prefetch = prefetch,
                                                       .gathered_layout = layout},
                                            .recompute_layers = recompute};
              EXPECT_EQ(train_sharded(sharded_toy_config(), training), base)
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

/// Has `visit(rank, call)` called ahead of every decoder layer's forward.
std::function<void(RankContext&, models::CausalLM&)> before_layers(
    const std::function<void(int, int)>& visit) {
  return [visit](RankContext& context, models::CausalLM& model) {
    const auto call = std::make_shared<int>(0);
    for (auto& layer : model.layers()) {
      layer.register_forward_pre_hook(
          [visit, call, rank = context.rank()](nn::Module&) { visit(rank, (*call)++); });
    }
  };
}

/// The same training spread over ranks and delayed in another way at each trial.
class RandomTraining {
 public:
  explicit RandomTraining(std::uint64_t trial)
      : random_(11, "training " + std::to_string(trial)), trial_(trial) {}

  bool narrow() const { return narrow_; }
  ToyTraining training() {
    ToyTraining training = {.ranks = ranks_, .steps = 3, .micro_batches = 8};
    auto& policy = training.policy;
    if (narrow_) {
      policy.mixed_precision = {.wire_dtype = Dtype::kBFloat16, .reduce_dtype = Dtype::kBFloat16};
    }
    if (draw(3) > 0) policy.reshard_after_forward = draw(2) == 0;
    policy.linear_only_shard = draw(2) == 0;
    policy.forward_prefetch = static_cast<int>(draw(4));
    training.recompute_layers = draw(3);
    training.accumulation = accumulation_;
    if (experts_) training.experts = *experts_;
    // Up to 16 us, ... up to 1 ms.
    training.launch.jitter = {.maximum = std::chrono::microseconds(16 << draw(7)), .seed = trial_};
    if (draw(2) == 0) training.prepare = before_layers(sleeper());
    return training;
  }
  std::string describe() const {
    std::ostringstream out;
    out << "trial " << trial_ << " on " << to_string(ranks_);
    if (experts_) out << ", experts on " << to_string(*experts_);
    out << ", accumulation " << static_cast<int>(accumulation_) << (narrow_ ? ", narrow" : "");
    return out.str();
  }

 private:
  std::int64_t draw(std::int64_t limit) { return random_.integer(next_++, limit); }
  template <class T>
  T one_of(const std::vector<T>& all) {
    return all[static_cast<std::size_t>(draw(std::ssize(all)))];
  }
  /// Experts on another mesh of as many ranks, but where that gives other sums.
  std::optional<ParallelDims> draw_experts() {
    if (accumulation_ == Accumulation::kScatterEach || draw(3) > 0) return std::nullopt;
    const auto replicas = 1 << draw(std::bit_width(static_cast<unsigned>(ranks_.ranks())));
    return ParallelDims{.dp_replicate = replicas, .dp_shard = ranks_.ranks() / replicas};
  }
  std::function<void(int, int)> sleeper() const {
    return [random = random_](int rank, int call) {
      const auto index = static_cast<std::uint64_t>(1'000'000 + rank * 1000 + call);
      std::this_thread::sleep_for(std::chrono::microseconds(random.integer(index, 400)));
    };
  }

  Random random_;
  std::uint64_t trial_;
  std::uint64_t next_ = 0;
  ParallelDims ranks_ = one_of<ParallelDims>(
      {{1, 1}, {1, 2}, {2, 1}, {1, 4}, {2, 2}, {4, 1}, {1, 8}, {2, 4}, {4, 2}});
  Accumulation accumulation_ = one_of<Accumulation>(
      {Accumulation::kKeepUntilLast, Accumulation::kReduceEach, Accumulation::kScatterEach});
  std::optional<ParallelDims> experts_ = draw_experts();
  bool narrow_ = draw(2) == 0;
};

TEST(Jitter, RandomDelaysInAThousandTrainingsChangeNoBit) {
  ToyTraining one = {.steps = 3, .micro_batches = 8};
  const auto wide = train_sharded(sharded_toy_config(), one);
  one.policy.mixed_precision = {.wire_dtype = Dtype::kBFloat16, .reduce_dtype = Dtype::kBFloat16};
  const auto narrow = train_sharded(sharded_toy_config(), one);
  for (std::uint64_t trial = 0; trial < 1000; ++trial) {
    RandomTraining random(trial);
    EXPECT_EQ(train_sharded(sharded_toy_config(), random.training()),
              random.narrow() ? narrow : wide)
        << random.describe();
  }
}

TEST(Kill, ARankThatThrowsAnywhereEndsTheLaunchWithItsOwnMessage) {
  const Random random(12, "kill");
  for (std::uint64_t trial = 0; trial < 60; ++trial) {
    const auto victim = static_cast<int>(random.integer(2 * trial, 4));
    const auto moment = static_cast<int>(random.integer(2 * trial + 1, 12));
    const auto kill = [&](int rank, int call) {
      if (rank == victim && call == moment) throw Error("killed rank " + std::to_string(rank));
    };
    const auto message = test::message_of<Error>([&] {
      train_sharded(sharded_toy_config(), {.ranks = {.dp_shard = 4},
                                           .steps = 3,
                                           .micro_batches = 8,
                                           .prepare = before_layers(kill)});
    });
    const auto expected = "killed rank " + std::to_string(victim) + "; in module model.layers.";
    EXPECT_EQ(message.substr(0, expected.size()), expected) << "at call " << moment;
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
      models::parse_model_config(text).validate();
    } catch (const ValueError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 1000);
  EXPECT_LT(refused, 20000);
}

}  // namespace
}  // namespace moegrad::sweep_test
