// SPDX-License-Identifier: Apache-2.0

// Experts that another kind of parallelism has divided, gathered by fully_shard as FRACTAL_NZ.

#include <vector>

#include "framework/distributed/launch.h"
#include "fsdp/fully_shard.h"
#include "ops/elementwise.h"
#include "ops/npu_gmm.h"
#include "ops/reduce.h"
#include "ops/views.h"
#include "tests/framework/distributed/hand_shards.h"
#include "tests/testing.h"

namespace moegrad::fsdp::placements_nz_test {
namespace {

using namespace test;

constexpr std::int64_t kExperts = 4, kIn = 19, kOut = 34, kRows = 3;  // rows of each expert

/// Experts with the same number of rows each; `outer` says which part of the weight is here.
class Experts final : public nn::Callable<Experts> {
 public:
  explicit Experts(const ShardSpec* outer)
      : weight_(randn({kExperts * kIn, kOut}, 1)), x_(randn({kExperts * kRows, kIn}, 2)) {
    if (outer != nullptr) {
      weight_ = test::shard_of(weight_, *outer);
      const auto first = outer->box.begin[0] / kIn;
      x_ = clone(ops::narrow(x_, 0, first * kRows, weight_.dim(0) / kIn * kRows));
    }
    weight_.set_requires_grad(true);
    register_parameter("weight", weight_,
                       {.role = nn::ParameterLayout::Role::kExpertGateUp,
                        .stacked = {kExperts, kIn, kOut},
                        .in_first = true});
  }

  Tensor forward(const Tensor& share) {
    was_nz_ = weight_.layout() == Layout::kNZ;
    const auto experts = static_cast<std::size_t>(x_.dim(0) / kRows);
    return ops::sum(ops::square(ops::npu_gmm(weight_, x_, std::vector(experts, kRows)))) * share;
  }
  bool was_nz() const { return was_nz_; }

 private:
  Tensor weight_, x_;
  bool was_nz_ = false;
};

Tensor number(double value) { return Tensor::full({}, value, Dtype::kFloat64); }

TEST(PlacementsOfExperts, AreReadAsBlocksAndHaveTheSameGradients) {
  Experts whole(nullptr);
  whole(number(1)).backward();
  EXPECT_FALSE(whole.was_nz());
  for (const std::int64_t outer_dim : {0, 1}) {
    launch(6, [&](RankContext& rank) {
      const DeviceMesh mesh(rank.group(), {{"outer", 2}, {"shard", 3}});
      const auto outer =
          divided(whole_spec({kExperts * kIn, kOut}), mesh.group("outer"), outer_dim);
      Experts own(&outer);
      fully_shard(own, DeviceMesh::flat(mesh.group("shard")));
      own(number(mesh.coordinate("shard") == 0 ? 1 : 0)).backward();
      EXPECT_TRUE(own.was_nz());
      const Tensor shard = own.named_parameters()[0].tensor;
      const Tensor expected =
          clone(shard_view(whole.named_parameters()[0].tensor.grad(), *shard.shard_spec()));
      EXPECT_TRUE(bitwise_equal(shard.grad(), expected)) << outer_dim << ' ' << rank.rank();
    });
  }
}

}  // namespace
}  // namespace moegrad::fsdp::placements_nz_test
