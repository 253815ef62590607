// SPDX-License-Identifier: Apache-2.0
#include "train/rank_memory.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "framework/distributed/launch.h"
#include "framework/io/checkpoint_saver.h"
#include "framework/runtime/arena.h"
#include "framework/runtime/random.h"
#include "framework/tensor/fill.h"
#include "framework/tensor/meta.h"
#include "models/causal_lm/config_json.h"
#include "nn/linear.h"
#include "tests/framework/io/files.h"
#include "tests/testing.h"
#include "train/optimizers.h"
#include "train/train_step.h"
#include "train/training_run.h"

namespace moegrad::training::rank_memory_test {
namespace {

MicroBatch batch_of(const TrainConfig& options, std::int64_t index) {
  const Random random(1, "rank memory test");
  const auto n = options.data.sequence_length;
  const auto draw = [&](std::int64_t i) {
    return random.integer(static_cast<std::uint64_t>(index * (n + 1) + i), 256);
  };
  std::vector<std::int64_t> tokens, targets;
  for (std::int64_t i = 0; i < n; ++i) {
    tokens.push_back(draw(i));
    targets.push_back(draw(i + 1));
  }
  return {.tokens = Tensor::from(tokens, {n}),
          .targets = Tensor::from(targets, {n}),
          .documents = Documents::one(n)};
}

/// What rank 0's arena has counted by the end of three steps, in the order of a run. Its
/// `backward` and `communication` are what was used, not bounds.
RankMemory measure(const TrainConfig& options,
                   const std::function<void(models::CausalLM&)>& change) {
  RankMemory memory;
  launch(options.parallel.world_size, [&](RankContext& context) {
    auto& arena = *context.arena();
    std::vector<MicroBatch> batches;
    for (std::int64_t i = 0; i < options.data.micro_batches; ++i) {
      batches.push_back(batch_of(options, i));
    }
    std::optional<models::CausalLM> model;
    {
      const MetaGuard no_bytes;
      model.emplace(options.model_config());
      change(*model);
    }
    recompute_layers(*model, options.memory.plan.recompute_layers);
    const auto dims = options.parallel_dims();
    auto& state = shard_model(*model, make_meshes(context.group(), dims), options.policy());
    model->to_empty();
    for (auto& [name, buffer] : model->named_buffers()) fill_(buffer, 1.0);
    model->init_weights(1);
    RankMemory own;
    own.parameters = arena.live()[MemoryTag::kParameters];
    const auto optimizer = make_optimizer(*model, options.optim);
    own.optimizer = arena.live()[MemoryTag::kOptimizer];
    std::optional<CheckpointSaver> saver;
    if (!options.checkpoint.dir.empty()) {
      saver.emplace(options.checkpoint.dir, context.group());
      CheckpointState all{.tensors = model->state_dict()};
      for (const auto& tensor : optimizer->state_dict()) all.tensors.push_back(tensor);
      saver->reserve(all);
      own.checkpoint = arena.live()[MemoryTag::kCheckpoint];
    }
    fsdp::StepPlan plan(state, options.data.micro_batches, fsdp::accumulation_on(dims));
    const auto mine = plan.own(batches);
    for (int step = 0; step < 3; ++step) {
      if (step == 1) arena.reset_peak();  // the first forward has no order to prefetch by
      train_step(*model, plan, mine, {.linear_cross_entropy = options.memory.linear_cross_entropy},
                 *optimizer);
    }
    own.gradients = arena.live()[MemoryTag::kGradients];
    own.gathered = arena.peak(MemoryTag::kParameters) - own.parameters;
    own.backward = arena.peak(MemoryTag::kGradients);
    own.communication = arena.peak(MemoryTag::kCommunication);
    if (context.rank() == 0) memory = own;
  });
  return memory;
}

/// Compares what is exact, and the bounds.
void expect_same_memory(const RankMemory& said, const RankMemory& held) {
  EXPECT_EQ(said.parameters, held.parameters);
  EXPECT_EQ(said.optimizer, held.optimizer);
  EXPECT_EQ(said.checkpoint, held.checkpoint);
  EXPECT_EQ(said.gradients, held.gradients);
  EXPECT_EQ(said.gathered, held.gathered);
  EXPECT_GE(said.backward, held.backward);
  EXPECT_GE(said.communication, held.communication);
  // A bound that is far off would tell a user little.
  EXPECT_LE(said.backward, 2 * held.backward);
  EXPECT_LE(said.communication, 2 * held.communication + 4096);
}

void expect_held(const TrainConfig& options) {
  expect_same_memory(rank_memory(options), measure(options, [](models::CausalLM&) {}));
}

/// y = mask * W x, with a mask that is not trained and one that is not saved.
class Masked final : public nn::Callable<Masked> {
 public:
  explicit Masked(std::int64_t dim)
      : linear_({.in_features = dim, .out_features = dim}),
        mask_(Tensor::ones({dim})),
        scratch_(Tensor::ones({3, dim})) {
    register_module("linear", linear_);
    register_buffer("mask", mask_);
    register_buffer("scratch", scratch_, /*persistent=*/false);
  }
  Tensor forward(const Tensor& x) { return linear_(x) * mask_; }

 private:
  nn::Linear linear_;
  Tensor mask_, scratch_;
};

// Buffers are whole on each rank. A checkpoint has those that are saved.
TEST(RankMemory, CountsTheBuffersOfAModelWithPartsOfItsOwn) {
  for (const int world_size : {1, 3}) {
    TrainConfig options;
    options.model.preset = "tiny";
    options.parallel.world_size = world_size;
    options.data.micro_batches = world_size;
    options.data.sequence_length = 8;
    const test::TemporaryFolder folder;
    options.checkpoint.dir = (folder / "checkpoints").string();
    const auto hidden = options.model_config().hidden_size;
    const auto change = [&](models::CausalLM& model) {
      model.replace("model.layers.2.mlp", nn::TensorModule(std::make_shared<Masked>(hidden)));
    };
    std::optional<models::CausalLM> model;
    {
      const MetaGuard no_bytes;
      model.emplace(options.model_config());
      change(*model);
    }
    expect_same_memory(rank_memory(options, *model), measure(options, change));
  }
}

// Each value with each other; each three values only in the full suite.
TEST(RankMemory, IsWhatARankThenHolds) {
  int combinations = 0;
  for (const int world_size : {1, 2, 3, 4}) {
    for (const auto reshard : {std::optional<bool>(), std::optional(true), std::optional(false)}) {
      for (const bool linear_only : {false, true}) {
        for (const std::string narrow : {"", "wire", "reduce", "both"}) {
          if (combinations++ % 5 > 1 && !test::full_suite()) continue;
          TrainConfig options;
          options.model.preset = "tiny";
          options.parallel.world_size = world_size;
          options.data.micro_batches = world_size;
          options.data.sequence_length = 8;
          options.memory.reshard_after_forward = reshard;
          options.parallel.linear_only_shard = linear_only;
          if (narrow == "wire" || narrow == "both") options.parallel.wire_dtype = Dtype::kBFloat16;
          if (narrow == "reduce" || narrow == "both")
            options.parallel.reduce_dtype = Dtype::kBFloat16;
          SCOPED_TRACE(::testing::Message()
                       << world_size << " ranks, reshard "
                       << (reshard ? (*reshard ? "true" : "false") : "default")
                       << ", linear_only_shard " << linear_only << ", narrow '" << narrow << "'");
          expect_held(options);
        }
      }
    }
  }
}

TEST(RankMemory, IsWhatARankHoldsUnderExpertParallelism) {
  for (const auto& [ranks, experts] : {std::pair(2, 2), {4, 2}, {4, 4}, {8, 4}}) {
    if (ranks == 8 && !test::full_suite()) continue;
    for (const std::string what : {"", "bf16", "micro-batches", "kept", "hf", "glm4"}) {
      TrainConfig options;
      options.model.preset = what == "glm4" ? "tiny-glm4-moe" : "tiny";
      options.parallel.world_size = ranks;
      options.parallel.expert_parallel = experts;
      options.data.micro_batches = ranks * (what == "micro-batches" ? 4 : 1);
      options.data.sequence_length = 8;
      options.model.grouped_matmul_nz_transpose = what != "hf";
      if (what == "kept") options.memory.reshard_after_forward = false;
      if (what == "bf16") {
        options.parallel.wire_dtype = options.parallel.reduce_dtype = Dtype::kBFloat16;
      }
      SCOPED_TRACE(::testing::Message()
                   << ranks << " ranks, expert parallel " << experts << ", '" << what << "'");
      expect_held(options);
    }
  }
}

TEST(RankMemory, IsWhatARankOfAReplicaHolds) {
  for (const int experts : {1, 2}) {
    for (const bool bf16 : {false, true}) {
      TrainConfig options;
      options.model.preset = "tiny";
      options.parallel.world_size = 4;
      options.parallel.replicas = 2;
      options.parallel.expert_parallel = experts;
      options.data.micro_batches = 8;
      options.data.sequence_length = 8;
      if (bf16) options.parallel.wire_dtype = options.parallel.reduce_dtype = Dtype::kBFloat16;
      SCOPED_TRACE(::testing::Message() << "expert parallel " << experts << ", bf16 " << bf16);
      expect_held(options);
    }
  }
}

TEST(RankMemory, HasTheStateOfEachOptimizer) {
  const test::TemporaryFolder folder;
  for (const auto& kind : optimizers()) {
    for (const int world_size : {1, 3}) {
      TrainConfig options;
      options.model.preset = "tiny";
      options.parallel.world_size = world_size;
      options.data.sequence_length = 8;
      options.optim.optimizer = kind.name;
      options.checkpoint.dir = (folder / "checkpoints").string();
      const auto said = rank_memory(options), held = measure(options, [](models::CausalLM&) {});
      EXPECT_EQ(said.optimizer, held.optimizer) << kind.name;
      EXPECT_EQ(said.checkpoint, held.checkpoint) << kind.name;
      EXPECT_EQ(said.optimizer == 0, kind.name == "sgd");  // without momentum
    }
  }
}

/// A config.json of a model with a tied head, dense layers and experts, none of even sizes.
std::string tied_config(const test::TemporaryFolder& folder) {
  auto config = models::CausalLMConfig::preset("tiny");
  config.tie_word_embeddings = true;
  config.vocab_size = 301;
  config.moe_intermediate_size = 19;
  config.num_experts = 5;
  config.num_experts_per_tok = 2;
  config.mlp_only_layers = {1};
  const auto path = folder / "config.json";
  test::write_file(path, to_json(config));
  return path.string();
}

TEST(RankMemory, CountsEveryOtherOptionThatChangesIt) {
  const test::TemporaryFolder folder;
  const auto expect = [](const char* what, auto change) {
    for (const int world_size : {1, 2, 3}) {
      if (world_size == 2 && !test::full_suite()) continue;
      TrainConfig options;
      options.model.preset = "tiny";
      options.parallel.world_size = world_size;
      options.data.sequence_length = 8;
      change(options);
      SCOPED_TRACE(::testing::Message() << what << ", " << world_size << " ranks");
      expect_held(options);
    }
  };
  for (const int prefetch : {0, 2, 9}) {
    expect("prefetch", [&](TrainConfig& o) { o.parallel.prefetch = prefetch; });
    expect("prefetch, bf16", [&](TrainConfig& o) {
      o.parallel.prefetch = prefetch;
      o.parallel.wire_dtype = o.parallel.reduce_dtype = Dtype::kBFloat16;
    });
  }
  for (const int micro_batches : {1, 3, 4, 8, 11}) {
    expect("micro-batches", [&](TrainConfig& o) { o.data.micro_batches = micro_batches; });
    expect("micro-batches, bf16", [&](TrainConfig& o) {
      o.data.micro_batches = micro_batches;
      o.parallel.reduce_dtype = Dtype::kBFloat16;
    });
  }
  expect("recompute", [](TrainConfig& o) { o.memory.plan.recompute_layers = 3; });
  expect("fp64", [](TrainConfig& o) { o.model.dtype = Dtype::kFloat64; });
  expect("fp64, bf16", [](TrainConfig& o) {
    o.model.dtype = Dtype::kFloat64;
    o.parallel.wire_dtype = o.parallel.reduce_dtype = Dtype::kBFloat16;
  });
  const auto computed_narrow = [&](const char* what, auto change) {
    expect(what, [&](TrainConfig& o) {
      o.model.dtype = Dtype::kBFloat16;
      change(o);
    });
  };
  for (const auto wire : {Dtype::kBFloat16, Dtype::kFloat32}) {
    computed_narrow("products in bf16", [&](TrainConfig& o) { o.parallel.wire_dtype = wire; });
    computed_narrow("products in bf16, nd, prefetch", [&](TrainConfig& o) {
      o.parallel.wire_dtype = wire;
      o.parallel.reduce_dtype = Dtype::kBFloat16;
      o.model.layout = Layout::kND;
      o.parallel.prefetch = 2;
    });
  }
  computed_narrow("products in bf16, tied",
                  [&](TrainConfig& o) { o.model.config = tied_config(folder); });
  expect("hf", [](TrainConfig& o) { o.model.grouped_matmul_nz_transpose = false; });
  expect("hf, nz",
         [](TrainConfig& o) { o.model.expert_weights = nn::ExpertWeights::kHuggingFace; });
  expect("nd", [](TrainConfig& o) { o.model.layout = Layout::kND; });
  expect("cross entropy", [](TrainConfig& o) { o.memory.linear_cross_entropy = true; });
  expect("checkpoints",
         [&](TrainConfig& o) { o.checkpoint.dir = (folder / "checkpoints").string(); });
  expect("tied", [&](TrainConfig& o) { o.model.config = tied_config(folder); });
  expect("small", [](TrainConfig& o) { o.model.preset = "small"; });
  for (const auto* preset : {"tiny-qwen2-moe", "tiny-mixtral", "tiny-glm4-moe"}) {
    expect(preset, [&](TrainConfig& o) { o.model.preset = preset; });
  }
}

}  // namespace
}  // namespace moegrad::training::rank_memory_test
