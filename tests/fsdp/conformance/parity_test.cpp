// SPDX-License-Identifier: Apache-2.0

// Rows 3, 4, 5 and 17: training under fully_shard gives what training on one rank gives.

#include "tests/fsdp/conformance/parity.h"

#include <chrono>
#include <optional>
#include <thread>

#include "tests/framework/distributed/counting_process_group.h"

namespace moegrad::fsdp::conformance::parity_test {
namespace {

using namespace test;

/// Two affine layers of the shapes that PyTorch's test uses: (16, 15) (15, 8) and so on.
class TwoLayers final : public nn::Callable<TwoLayers> {
 public:
  TwoLayers(std::int64_t in, std::int64_t hidden, std::int64_t out)
      : first(in, hidden), second(hidden, out) {
    register_module("0", first);
    register_module("1", second);
    test::init_random(*this);
  }
  Tensor forward(const Tensor& x) { return second(ops::relu(first(x))); }
  test::Affine first, second;
};

Training<TwoLayers> two_layers(std::int64_t in, std::int64_t hidden, std::int64_t out) {
  return {.make = [=] { return std::make_unique<TwoLayers>(in, hidden, out); },
          .loss =
              [=](TwoLayers& model, int iteration, int leaf) {
                return test::square_loss(model(test::leaf_input({3, in}, iteration, leaf)));
              }};
}

// Row 3: one group, dimension 0, uneven shapes, 8 ranks. Bitwise.
TEST(Conformance, Row03_ParityOneGroupUnevenShapesOn8Ranks) {
  const auto shard = [](TwoLayers& model, RankContext& rank) {
    fully_shard(model, DeviceMesh::flat(rank.group()));
  };
  test::expect_parity(8, two_layers(16, 15, 8), shard);
  test::expect_parity(8, two_layers(7, 15, 3), shard);  // 3 rows on 8 ranks
  test::expect_parity(8, two_layers(16, 17, 8), shard);
}

// Row 4: one group, each parameter cut along its largest dimension. Bitwise.
std::int64_t largest_dim(const Shape& shape) {
  std::int64_t largest = 0;
  for (std::int64_t i = 1; i < shape.ndim(); ++i) {
    if (shape[i] > shape[largest]) largest = i;
  }
  return largest;
}

Policy cut_largest_dim() {
  return {.shard_placement = [](const nn::ParameterSlot& slot) {
    return ShardPlacement{.dim = largest_dim(slot.tensor->shape())};
  }};
}

TEST(Conformance, Row04_ParityOneGroupShardLargestDim) {
  const auto shard = [](TwoLayers& model, RankContext& rank) {
    fully_shard(model, DeviceMesh::flat(rank.group()), cut_largest_dim());
  };
  test::expect_parity(4, two_layers(16, 12, 20), shard);  // [12, 16] by 1, [20, 12] by 0
  test::expect_parity(2, two_layers(16, 10, 8), shard);   // both by 1
}

void shard_blocks(Transformer& model, const DeviceMesh& mesh, const Policy& policy = {}) {
  for (auto& block : model.blocks) fully_shard(*block, mesh, policy);
}

TEST(Conformance, Row04_ParityTransformerShardLargestDim) {
  auto training = transformer({});
  training.iterations = 5;
  test::expect_parity(2, training, [](Transformer& model, RankContext& rank) {
    const auto mesh = DeviceMesh::flat(rank.group());
    shard_blocks(model, mesh, cut_largest_dim());
    fully_shard(model, mesh, cut_largest_dim());
  });
}

// Row 5: several groups x reshard_after_forward x random delays after forward, before all-gather,
// before reduce-scatter and before the optimizer. An integer reshard is out of scope.
TEST(Conformance, Row05_ParityTransformerSeveralGroupsWhateverIsDelayed) {
  const auto training = transformer({});
  const auto reference = test::train_reference(training, 2);
  for (const auto reshard : {std::optional(true), std::optional(false), std::optional<bool>()}) {
    for (const int delay : {0, 1}) {
      const Jitter jitter = {.maximum = std::chrono::milliseconds(delay)};
      const auto body = [&](RankContext& rank) {
        const auto model = training.make();
        const auto mesh = DeviceMesh::flat(rank.group());
        shard_blocks(*model, mesh, {.reshard_after_forward = reshard});
        fully_shard(*model, mesh, {.reshard_after_forward = reshard});
        std::int64_t pauses = 0;
        const auto pause = [&] {
          if (delay > 0) std::this_thread::sleep_for(jitter.delay(rank.rank(), "pause", pauses++));
        };
        model->register_forward_hook([&](nn::Module&) { pause(); });
        test::compare_training(*model, training, reference, rank.rank(), pause);
      };
      launch(2, body, {.jitter = jitter});
    }
  }
}

// The same with unshard_async by hand for the layer after the one that runs.
TEST(Conformance, Row05_ParityWithAsyncUnshardByHand) {
  const auto training = transformer({});
  test::expect_parity(2, training, [](Transformer& model, RankContext& rank) {
    const auto mesh = DeviceMesh::flat(rank.group());
    shard_blocks(model, mesh, {.forward_prefetch = 0});
    fully_shard(model, mesh, {.forward_prefetch = 0});
    for (std::size_t i = 0; i + 1 < model.blocks.size(); ++i) {
      auto& next = *model.blocks[i + 1]->extension<State>();
      model.blocks[i]->register_forward_pre_hook([&next](nn::Module&) { next.unshard_async(); });
    }
  });
}

// Row 17: a world of one trains alike, without a single collective.
TEST(Conformance, Row17_WorldSizeOneParityAndZeroCollectives) {
  const auto training = transformer({});
  const auto reference = test::train_reference(training, 1);
  launch(1, [&](RankContext& rank) {
    const auto counts = std::make_shared<test::CallCounts>();
    const auto group = std::make_shared<test::CountingProcessGroup>(rank.group(), counts);
    const auto mesh = DeviceMesh::flat(group);
    const auto model = training.make();
    shard_blocks(*model, mesh);
    fully_shard(*model, mesh);
    test::compare_training(*model, training, reference, 0);
    EXPECT_EQ(counts->calls(), 0);
  });
}

}  // namespace
}  // namespace moegrad::fsdp::conformance::parity_test
