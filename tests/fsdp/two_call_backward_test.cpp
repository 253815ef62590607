// SPDX-License-Identifier: Apache-2.0
// A pipeline stage of decoder layers, whole and sharded: the gradient of its input in one call,
// those of its weights in another.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "framework/autograd/engine.h"
#include "fsdp/fully_shard.h"
#include "tests/fsdp/conformance/event_log.h"
#include "tests/fsdp/models.h"

namespace moegrad::fsdp::two_call_backward_test {
namespace {

using namespace test;
using ::testing::ElementsAre;

constexpr std::int64_t kTokens = 12;

/// Two decoder layers, as a stage in the middle of a pipeline has them.
class Stage final : public nn::Callable<Stage> {
 public:
  explicit Stage(bool recompute) : config_(test::sharded_toy_config()), whole_(config_, 3) {
    if (recompute) training::recompute_layers(whole_, 2);
    for (std::size_t i = 0; i < 2; ++i) {
      register_module(std::to_string(i), whole_.layers()[i]);
    }
  }
  Tensor forward(const Tensor& hidden) {
    const auto context = context_of(config_, {5, kTokens - 5});
    Tensor h = hidden;
    for (auto& layer : whole_.layers()) h = layer(h, context).hidden;
    return h;
  }
  void shard(const DeviceMesh& mesh) {
    for (auto& layer : whole_.layers()) fully_shard(layer, mesh);
    fully_shard(*this, mesh);
  }
  std::int64_t hidden_size() const { return config_.hidden_size; }

 private:
  models::CausalLMConfig config_;
  models::CausalLM whole_;
};

/// Gradients of input and parameters after some micro-batches. `kept`: a sharded stage reduces with
/// the last one alone.
TensorList gradients(Stage& stage, bool in_two_calls, std::uint64_t micro_batches = 2,
                     bool kept = false) {
  TensorList result;
  for (std::uint64_t micro_batch = 0; micro_batch < micro_batches; ++micro_batch) {
    if (auto* const state = stage.extension<State>()) {
      state->set_requires_gradient_sync(!kept || micro_batch + 1 == micro_batches);
    }
    const Shape shape{kTokens, stage.hidden_size()};
    const Tensor input = randn(shape, 5 + micro_batch, Dtype::kFloat32, true);
    const Tensor cotangent = randn(shape, 7 + micro_batch, Dtype::kFloat32);
    const Tensor output = stage(input);
    if (in_two_calls) {
      auto weights = backward_to_inputs({output}, {cotangent}, {input});
      EXPECT_TRUE(input.grad().defined());
      if (micro_batch == 0) {
        for (const auto& parameter : stage.named_parameters()) {
          EXPECT_FALSE(parameter.tensor.grad().defined()) << parameter.name;
        }
      }
      weights.run();
    } else {
      output.backward(cotangent);
    }
    result.push_back(input.grad());
  }
  for (const auto& parameter : stage.named_parameters()) {
    EXPECT_TRUE(parameter.tensor.grad().defined()) << parameter.name;
    result.push_back(parameter.tensor.grad());
  }
  return result;
}

void expect_same_bits(const TensorList& one, const TensorList& two) {
  ASSERT_EQ(one.size(), two.size());
  for (std::size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(bitwise_equal(one[i], two[i])) << i;
}

class TwoCallBackwardOfDecoderLayers : public ::testing::TestWithParam<bool> {};

TEST_P(TwoCallBackwardOfDecoderLayers, GivesTheBitsOfOneCall) {
  Stage one(GetParam()), two(GetParam());
  expect_same_bits(gradients(one, false), gradients(two, true));
}

TEST_P(TwoCallBackwardOfDecoderLayers, GivesTheBitsOfOneCallUnderFullyShard) {
  for (const ParallelDims dims : {ParallelDims{1, 1}, {1, 2}, {1, 3}, {2, 1}, {2, 2}}) {
    launch(dims.ranks(), [dims](RankContext& rank) {
      const auto mesh = test::fsdp_mesh(rank.group(), dims);
      Stage one(GetParam()), two(GetParam());
      one.shard(mesh);
      two.shard(mesh);
      expect_same_bits(gradients(one, false), gradients(two, true));
    });
  }
}

// Else the places of the micro-batches in the tree of sums would not be theirs.
TEST_P(TwoCallBackwardOfDecoderLayers, KeepsEachMicroBatchOnce) {
  for (const ParallelDims dims : {ParallelDims{1, 1}, {1, 2}, {2, 1}}) {
    launch(dims.ranks(), [dims](RankContext& rank) {
      const auto mesh = test::fsdp_mesh(rank.group(), dims);
      for (const std::uint64_t micro_batches : {3, 4, 5}) {
        Stage one(GetParam()), two(GetParam());
        one.shard(mesh);
        two.shard(mesh);
        expect_same_bits(gradients(one, false, micro_batches, true),
                         gradients(two, true, micro_batches, true));
      }
    });
  }
}

TEST_P(TwoCallBackwardOfDecoderLayers, FreesEachLayerInBothCallsAndReducesInTheSecond) {
  launch(2, [](RankContext& rank) {
    Stage stage(GetParam());
    stage.shard(DeviceMesh::flat(rank.group()));
    const auto log = test::log_events(
        *stage.extension<State>(),
        {Event::kPreBackward, Event::kReshard, Event::kReduce, Event::kPostBackward});
    const Shape shape{kTokens, stage.hidden_size()};
    const Tensor input = randn(shape, 5, Dtype::kFloat32, true);
    const Tensor output = stage(input);
    log->take();
    auto weights = backward_to_inputs({output}, {randn(shape, 7, Dtype::kFloat32)}, {input});
    EXPECT_THAT(log->take(),
                ElementsAre("pre_backward ", "pre_backward 1", "reshard 1", "post_backward 1",
                            "pre_backward 0", "reshard 0", "post_backward 0"));
    weights.run();
    EXPECT_THAT(log->take(), ElementsAre("pre_backward ", "pre_backward 1", "reshard 1", "reduce 1",
                                         "post_backward 1", "pre_backward 0", "reshard 0",
                                         "reduce 0", "post_backward 0"));
  });
}

INSTANTIATE_TEST_SUITE_P(Recompute, TwoCallBackwardOfDecoderLayers, ::testing::Bool());

}  // namespace
}  // namespace moegrad::fsdp::two_call_backward_test
