// SPDX-License-Identifier: Apache-2.0

// Rows 9 to 12: recomputation, two forwards before one backward, tied weights.

#include "framework/runtime/grad_mode.h"
#include "optim/adamw.h"
#include "tests/fsdp/conformance/parity.h"

namespace moegrad::fsdp::conformance::checkpoint_parity_test {
namespace {

using namespace test;

enum class Grouping : std::uint8_t {
  kBlocks,  // each block; the rest is the root's
  kLists,   // embeddings together, norm and output together: the root has nothing left
  kTied,    // token embedding and output together, sharing their weight
};

void shard(Transformer& model, const DeviceMesh& mesh, Grouping grouping) {
  if (grouping == Grouping::kLists) {
    fully_shard({&model.tok_embeddings, &model.pos_embeddings}, mesh);
    fully_shard({&model.norm, &model.output}, mesh);
  } else if (grouping == Grouping::kTied) {
    fully_shard({&model.tok_embeddings, &model.output}, mesh);
  }
  for (auto& block : model.blocks) fully_shard(*block, mesh);
  fully_shard(model, mesh);
}

// Row 9: parameters and gradients, bitwise those without recomputation.
TEST(Conformance, Row09_ParityWithCheckpointingTimesThreeGroupings) {
  for (const auto grouping : {Grouping::kBlocks, Grouping::kLists, Grouping::kTied}) {
    const bool tied = grouping == Grouping::kTied;
    const auto reference = test::train_reference(transformer({.tied = tied}), 2);
    for (const auto recompute :
         {Recompute::kNone, Recompute::kInsideHooks, Recompute::kAroundHooks}) {
      launch(2, [&](RankContext& rank) {
        const auto training = transformer({.tied = tied, .recompute = recompute});
        const auto model = training.make();
        shard(*model, DeviceMesh::flat(rank.group()), grouping);
        test::compare_training(*model, training, reference, rank.rank());
      });
    }
  }
}

/// The loss of the chosen tokens (0) or of the rejected ones (1).
Tensor half_loss(Transformer& model, int half, int iteration, int rank) {
  const Tensor tokens = test::leaf_tokens(half == 0 ? 7 : 5, 11, iteration, 10 * half + rank);
  return test::square_loss(model(tokens));
}

// Row 10: two forwards before one backward, with nested groups and recomputation. Backward reduces
// the second forward's gradients over the ranks before the first one's, and so does the reference:
// its leaves are (second forward, rank), (first forward, rank).
TEST(Conformance, Row10_DoubleForwardWithNestedGroupsAndCheckpointing) {
  Training<Transformer> leaves = {
      .make = [] { return std::make_unique<Transformer>(Transformer::Config{}); },
      .loss = [](Transformer& model, int iteration,
                 int leaf) { return half_loss(model, leaf < 2 ? 1 : 0, iteration, leaf % 2); }};
  auto reference = test::train_reference(leaves, 4);
  for (auto& losses : reference.loss) {  // on a rank: chosen + rejected
    for (std::size_t rank = 0; rank < 2; ++rank) {
      losses[rank] = static_cast<double>(static_cast<float>(losses[rank + 2]) +
                                         static_cast<float>(losses[rank]));
    }
  }
  for (const auto recompute :
       {Recompute::kNone, Recompute::kInsideHooks, Recompute::kAroundHooks}) {
    const Training<Transformer> training = {
        .make =
            [=] {
              return std::make_unique<Transformer>(Transformer::Config{.recompute = recompute});
            },
        .loss =
            [](Transformer& model, int iteration, int rank) {
              const Tensor chosen = half_loss(model, 0, iteration, rank);
              return chosen + half_loss(model, 1, iteration, rank);
            }};
    launch(2, [&](RankContext& rank) {
      const auto model = training.make();
      const auto mesh = DeviceMesh::flat(rank.group());
      for (auto& block : model->blocks) {
        fully_shard(block->mlp, mesh);
        fully_shard(*block, mesh);
      }
      fully_shard(*model, mesh);
      test::compare_training(*model, training, reference, rank.rank(), [&] {
        for (const auto& [name, tensor] : model->named_parameters()) {
          EXPECT_TRUE(tensor.grad().defined()) << name;
        }
      });
    });
  }
}

// Row 10, of the newer tests: twice a part of a grouped call, then the backward of both; nobody
// waits for the part that never ran.
TEST(Conformance, Row10_DoubleForwardOfPartOfAGroup) {
  launch(2, [](RankContext& rank) {
    Transformer model({});
    const auto mesh = DeviceMesh::flat(rank.group());
    auto& group = fully_shard({&model.norm, &model.output}, mesh);
    fully_shard(model, mesh);
    {
      const NoGradGuard no_grad;
      model(test::leaf_tokens(3, 11, 0, 0));  // finds the root
    }
    const Tensor x = test::leaf_input({3, 8}, 0, rank.rank());
    const Tensor loss = test::square_loss(model.norm(x)) + test::square_loss(model.norm(x));
    loss.backward();
    EXPECT_TRUE(group.group()->is_sharded());
    EXPECT_TRUE(model.norm.named_parameters()[0].tensor.grad().defined());
    EXPECT_FALSE(model.output.weight().grad().defined());
  });
}

// Row 11: tied weights, alone and in a grouped call, 11 rows on 4 ranks.
TEST(Conformance, Row11_TiedWeightsParityWithUnevenShards) {
  const auto training = transformer({.tied = true});
  test::expect_parity(4, training, [](Transformer& model, RankContext& rank) {
    fully_shard(model, DeviceMesh::flat(rank.group()));
  });
  test::expect_parity(4, training, [](Transformer& model, RankContext& rank) {
    shard(model, DeviceMesh::flat(rank.group()), Grouping::kTied);
  });
}

// Row 11: in PyTorch the last rank's rows once stayed as they were.
TEST(Conformance, Row11_TiedAndUnevenEveryRowChanges) {
  launch(4, [](RankContext& rank) {
    Transformer model({.tied = true});
    shard(model, DeviceMesh::flat(rank.group()), Grouping::kTied);
    const Tensor weight = model.named_parameters()[0].tensor;
    const Tensor before = clone(weight.detach());
    EXPECT_EQ(weight.dim(0), rank.rank() == 3 ? 2 : 3);
    test::square_loss(model(test::leaf_tokens(7, 11, 0, rank.rank()))).backward();
    optim::AdamW optimizer(model.named_parameters(), {.lr = 1e-2, .weight_decay = 0});
    optimizer.step();
    const auto was = before.data<float>();
    const auto is = weight.data<float>();
    for (std::size_t row = 0; row < static_cast<std::size_t>(weight.dim(0)); ++row) {
      EXPECT_NE(is[row * 8], was[row * 8]) << "row " << row << " of rank " << rank.rank();
    }
    EXPECT_TRUE(weight.is(model.output.weight()));
  });
}

// Row 12: tied across groups is an error, here already when the second group is made.
TEST(Conformance, Row12_TiedInSeparateGroupsIsAnError) {
  launch(1, [](RankContext& rank) {
    const auto mesh = DeviceMesh::flat(rank.group());
    Transformer model({.tied = true});
    fully_shard(model.tok_embeddings, mesh);
    EXPECT_EQ(
        test::message_of<Error>([&] { fully_shard(model, mesh); }),
        "fully_shard: parameter 'output.weight' is tied to one that an earlier fully_shard "
        "call has taken; shard both in one call, by fully_shard({&a, &b}, mesh) and then the "
        "module that holds a and b (or, if that call was for a module above, call fully_shard "
        "bottom-up)");
  });
}

/// Layers that are sharded one by one, while those to come do not exist yet.
class LayerByLayer final : public nn::Callable<LayerByLayer> {
 public:
  explicit LayerByLayer(const DeviceMesh& mesh) {
    for (int i = 0; i < 4; ++i) {
      layers_.push_back(std::make_unique<test::Mlp>(6, 5, 6));
      register_module(std::to_string(i), *layers_.back());
      test::init_random(*layers_.back());
      fully_shard(*layers_.back(), mesh);
    }
  }
  Tensor forward(const Tensor& x) {
    Tensor y = x;
    for (auto& layer : layers_) y = (*layer)(y);
    return y;
  }

 private:
  std::vector<std::unique_ptr<test::Mlp>> layers_;
};

// Row 12: memory of a parameter that was sharded and freed comes back for the next layer's; that
// makes them no tied pair.
TEST(Conformance, Row12_LayerByLayerBuildIsNoFalsePositive) {
  launch(2, [](RankContext& rank) {
    const auto mesh = DeviceMesh::flat(rank.group());
    LayerByLayer model(mesh);
    fully_shard(model, mesh);
    test::square_loss(model(test::leaf_input({3, 6}, 0, 0))).backward();
    EXPECT_EQ(model.named_parameters().size(), 16U);
  });
}

}  // namespace
}  // namespace moegrad::fsdp::conformance::checkpoint_parity_test
