// SPDX-License-Identifier: Apache-2.0

// Gathered expert weights that serve several input gradients are copied transposed once (Note [A
// copy kept with the bytes]); whether they are changes no bit.
#include "ops/kept_transpose.h"

#include "models/qwen3_moe_loss.h"
#include "tests/fsdp/models.h"

namespace moegrad {
namespace {

using testing::bitwise_equal;

constexpr std::int64_t kWeights = 4;  // in NZ: two in each of two layers

/// When parameters are gathered: which gathers serve more than one backward?
struct Schedule {
  bool reshard_after_forward = false;
  bool reshard_after_backward = false;  // but for the last micro-batch
  std::int64_t forwards_first = 1;      // micro-batches that run forward before their backwards
  std::int64_t micro_batches = 3;
  std::int64_t recompute_layers = 0;
};

class Accumulating {
 public:
  Accumulating(RankContext& context, const Schedule& schedule)
      : context_(context), schedule_(schedule), model_(testing::sharded_toy_config(), 3) {
    examples::shard_model(model_, DeviceMesh::flat(context.group()),
                          {.reshard_after_forward = schedule.reshard_after_forward});
  }

  fsdp::State& root() { return dynamic_cast<fsdp::State&>(*model_.extension()); }
  models::Qwen3Moe& model() { return model_; }
  std::int64_t copies() const { return context_.counters().materialized_transposes; }

  Tensor objective(std::int64_t step, std::int64_t micro_batch) {
    const auto batches =
        testing::toy_batches(step, schedule_.micro_batches, model_.config().vocab_size);
    const auto& batch = batches[static_cast<std::size_t>(micro_batch)];
    const models::Qwen3Moe::ForwardOptions forward{.recompute_layers = schedule_.recompute_layers};
    const auto output = model_(batch.tokens, batch.cu_seqlens, forward);
    return models::qwen3_moe_loss(output, batch.targets, 16, 0.001).objective;
  }

  /// Forward and backward of all micro-batches; the sum of their losses.
  double accumulate(std::int64_t step) {
    double loss = 0;
    for (std::int64_t i = 0; i < schedule_.micro_batches; i += schedule_.forwards_first) {
      const auto end = std::min(i + schedule_.forwards_first, schedule_.micro_batches);
      TensorList objectives;
      for (auto j = i; j < end; ++j) objectives.push_back(objective(step, j));
      for (; !objectives.empty(); objectives.pop_back()) {
        const bool last = end == schedule_.micro_batches && objectives.size() == 1;
        root().set_reshard_after_backward(last || schedule_.reshard_after_backward);
        root().set_is_last_backward(objectives.size() == 1);
        loss += objectives.back().item();
        objectives.back().backward();
      }
    }
    return loss;
  }

  TensorList gradients() {
    TensorList result;
    for (const auto& [name, tensor] : model_.named_parameters()) result.push_back(tensor.grad());
    return result;
  }

 private:
  RankContext& context_;
  Schedule schedule_;
  models::Qwen3Moe model_;
};

void expect_equal(const TensorList& a, const TensorList& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(bitwise_equal(a[i], b[i])) << i;
}

TEST(FsdpKeptTranspose, ChangesNoBitOfTwoSteps) {
  for (const int world_size : {1, 2}) {
    launch(world_size, [](RankContext& context) {
      for (const std::int64_t recompute_layers : {0, 2}) {
        Accumulating with(context, {.recompute_layers = recompute_layers});
        Accumulating without(
            context, {.reshard_after_backward = true, .recompute_layers = recompute_layers});
        optim::AdamW step_with(with.model().named_parameters(), {.lr = 0.1});
        optim::AdamW step_without(without.model().named_parameters(), {.lr = 0.1});
        for (std::int64_t step = 0; step < 2; ++step) {
          const auto before = with.copies();
          const double loss = with.accumulate(step);
          EXPECT_EQ(with.copies(), before + kWeights);
          EXPECT_EQ(without.accumulate(step), loss);
          EXPECT_EQ(with.copies(), before + kWeights);
          expect_equal(with.gradients(), without.gradients());
          step_with.step();
          step_without.step();
          with.model().zero_grad();
          without.model().zero_grad();
        }
      }
    });
  }
}

std::int64_t copies_of(const Schedule& schedule) {
  std::int64_t copies = -1;
  launch(2, [&](RankContext& context) {
    Accumulating training(context, schedule);
    training.accumulate(0);
    if (context.rank() == 0) copies = training.copies();
  });
  return copies;
}

TEST(FsdpKeptTranspose, IsMadeWhereAGatherServesAnotherInputGradientAlone) {
  EXPECT_EQ(copies_of({.micro_batches = 1}), 0);
  EXPECT_EQ(copies_of({.micro_batches = 2}), kWeights);
  EXPECT_EQ(copies_of({.micro_batches = 4}), kWeights);
  // Freed by backward or by the next forward: one gather, one input gradient.
  EXPECT_EQ(copies_of({.reshard_after_backward = true}), 0);
  EXPECT_EQ(copies_of({.reshard_after_forward = true}), 0);
  EXPECT_EQ(copies_of({.reshard_after_forward = true, .reshard_after_backward = true}), 0);
  // Two backwards one after the other.
  EXPECT_EQ(copies_of({.reshard_after_forward = true, .forwards_first = 2, .micro_batches = 2}),
            kWeights);
  EXPECT_EQ(copies_of({.reshard_after_forward = true,
                       .reshard_after_backward = true,
                       .forwards_first = 2,
                       .micro_batches = 2}),
            0);
}

TEST(FsdpKeptTranspose, TakesTheBytesOfTheWeightsUntilTheyAreFreed) {
  launch(2, [](RankContext& context) {
    Accumulating training(context, {});
    const auto& arena = *context.arena();
    std::int64_t shards = 0, whole = 0, in_nz = 0;
    for (auto* module : {static_cast<nn::Module*>(&training.model()),
                         static_cast<nn::Module*>(&training.model().layers()[0]),
                         static_cast<nn::Module*>(&training.model().layers()[1])}) {
      const auto& group = *dynamic_cast<fsdp::State&>(*module->extension()).group();
      shards += group.sharded_bytes();
      whole += group.unsharded_bytes();
      for (const auto& param : group.params()) {
        if (param.unsharded.layout() == Layout::kNZ) in_nz += param.unsharded.storage().bytes();
      }
    }
    training.root().set_reshard_after_backward(false);
    training.objective(0, 0).backward();
    EXPECT_EQ(arena.live()[MemoryTag::kParameters], shards + whole + in_nz);
    const auto after_first = arena.peak(MemoryTag::kParameters);
    EXPECT_EQ(after_first, shards + whole + in_nz);
    training.objective(0, 1).backward();
    training.root().set_reshard_after_backward(true);
    training.objective(0, 2).backward();
    EXPECT_EQ(arena.peak(MemoryTag::kParameters), after_first);
    EXPECT_EQ(arena.live()[MemoryTag::kParameters], shards);
  });
}

TEST(FsdpKeptTranspose, FollowsTheWeightsWhereTheyAreWrittenTo) {
  launch(2, [](RankContext& context) {
    const auto gradients = [&](bool copies) {
      Accumulating training(context, {});
      auto& root = training.root();
      root.set_reshard_after_backward(!copies);
      training.objective(0, 0).backward();
      training.model().zero_grad();
      for (auto& layer : training.model().layers()) {
        auto& state = dynamic_cast<fsdp::State&>(*layer.extension());
        state.unshard();
        for (auto& param : state.group()->params()) {
          if (param.unsharded.layout() != Layout::kNZ) continue;
          EXPECT_EQ(param.unsharded.storage().kept_copy() != nullptr, copies);
          for (auto& value : param.unsharded.mutable_nz_data<float>()) value *= 2;
        }
      }
      root.set_reshard_after_backward(true);
      training.objective(0, 1).backward();
      return training.gradients();
    };
    expect_equal(gradients(true), gradients(false));
  });
}

}  // namespace
}  // namespace moegrad
