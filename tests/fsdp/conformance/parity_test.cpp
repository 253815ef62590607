// SPDX-License-Identifier: Apache-2.0

// Rows 3 to 5, 8, 17 and 25 of the conformance list: training under fully_shard is training.

#include "tests/fsdp/conformance/parity.h"

namespace moegrad::fsdp {
namespace {

using testing::MlpStack;
using testing::Training;

/// Two affine layers of the shapes that PyTorch's test uses: (16, 15) (15, 8) and so on.
class TwoLayers final : public nn::Callable<TwoLayers> {
 public:
  TwoLayers(std::int64_t in, std::int64_t hidden, std::int64_t out)
      : first(in, hidden), second(hidden, out) {
    register_module("0", first);
    register_module("1", second);
    testing::init_random(*this);
  }
  Tensor forward(const Tensor& x) { return second(ops::relu(first(x))); }
  testing::Affine first, second;
};

Training<TwoLayers> two_layers(std::int64_t in, std::int64_t hidden, std::int64_t out) {
  return {.make = [=] { return std::make_unique<TwoLayers>(in, hidden, out); },
          .loss =
              [=](TwoLayers& model, int iteration, int leaf) {
                return testing::square_loss(model(testing::leaf_input({3, in}, iteration, leaf)));
              }};
}

// Row 3: one group, dimension 0, uneven shapes, 8 ranks. Bitwise.
TEST(Conformance, Row03_ParityOneGroupUnevenShapesOn8Ranks) {
  const auto shard = [](TwoLayers& model, RankContext& rank) {
    fully_shard(model, DeviceMesh::flat(rank.group()));
  };
  testing::expect_parity(8, two_layers(16, 15, 8), shard);
  testing::expect_parity(8, two_layers(7, 15, 3), shard);  // 3 rows on 8 ranks
  testing::expect_parity(8, two_layers(16, 17, 8), shard);
}

}  // namespace
}  // namespace moegrad::fsdp
