// SPDX-License-Identifier: Apache-2.0

// A whole model kept in float64 and computed with in float32.

#include "framework/distributed/shard_runs.h"
#include "fsdp/fully_shard.h"
#include "models/causal_lm/loss.h"
#include "tests/fsdp/models.h"

namespace moegrad::compute_dtype_test {
namespace {

TEST(ComputeDtype, AModelOfFloat64ComputesInFloat32LikeOneOfFloat32) {
  auto config = test::sharded_toy_config();
  const auto batch = test::toy_batches(0, 1, config.vocab_size)[0];
  const auto loss_of = [&](models::CausalLM& model) {
    return models::causal_lm_loss(model(batch.tokens, batch.documents), batch.targets, 16, 0.001)
        .objective;
  };
  models::CausalLM single(config, 3);
  const Tensor expected = loss_of(single);
  expected.backward();

  config.dtype = Dtype::kFloat64;
  launch(2, [&](RankContext& rank) {
    models::CausalLM model(config, 3);
    const auto mesh = DeviceMesh::flat(rank.group());
    const fsdp::Policy policy = {.mixed_precision = {.param_dtype = Dtype::kFloat32}};
    for (auto& layer : model.layers()) fsdp::fully_shard(layer, mesh, policy);
    fsdp::fully_shard(model, mesh, policy);
    const Tensor loss = loss_of(model);
    EXPECT_EQ(loss.dtype(), Dtype::kFloat32);
    EXPECT_EQ(loss.item(), expected.item());
    loss.backward();
    const auto reference = single.named_parameters();
    const auto sharded = model.named_parameters();
    for (std::size_t i = 0; i < sharded.size(); ++i) {
      const auto& [name, parameter] = sharded[i];
      EXPECT_EQ(parameter.dtype(), Dtype::kFloat64) << name;
      ASSERT_EQ(parameter.grad().dtype(), Dtype::kFloat64) << name;
      // Two ranks with the same loss.
      Tensor sum = clone(reference[i].tensor.grad());
      add_(sum, reference[i].tensor.grad());
      const Tensor rows =
          clone(shard_view(to_dtype(sum, Dtype::kFloat64), *parameter.shard_spec()));
      EXPECT_TRUE(test::bitwise_equal(parameter.grad(), rows)) << name;
    }
  });
}

}  // namespace
}  // namespace moegrad::compute_dtype_test
