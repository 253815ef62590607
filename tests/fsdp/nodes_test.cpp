// SPDX-License-Identifier: Apache-2.0
// The nodes of decoder layers, called one by one, under fully_shard: a unit for each layer, and
// others inside it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string_view>
#include <vector>

#include "framework/autograd/engine.h"
#include "fsdp/fully_shard.h"
#include "nn/recompute.h"
#include "tests/fsdp/conformance/event_log.h"
#include "tests/fsdp/models.h"
#include "tests/models/causal_lm/toy_models.h"

namespace moegrad::fsdp::nodes_test {
namespace {

using models::DecoderLayer;
using namespace test;
using ::testing::ElementsAre;

constexpr std::int64_t kTokens = 12;

/// How layers are run.
enum class Run : std::uint8_t {
  kWhole,
  kNodes,        // one after the other
  kSharedFirst,  // the same, with the shared expert before tokens are dispatched
};

/// Two decoder layers, run as wholes or node by node.
class Layers final : public nn::Callable<Layers> {
 public:
  explicit Layers(Run how, const models::CausalLMConfig& config = test::sharded_toy_config())
      : how_(how), config_(config), whole_(config_, 3) {
    for (std::size_t i = 0; i < 2; ++i) register_module(std::to_string(i), whole_.layers()[i]);
  }

  Tensor forward(const Tensor& hidden) {
    const auto context = context_of(config_, {5, kTokens - 5});
    Tensor h = hidden;
    for (auto& layer : whole_.layers()) h = run(layer, h, context);
    return h;
  }

  std::int64_t hidden_size() const { return config_.hidden_size; }

 private:
  Tensor run(DecoderLayer& layer, const Tensor& h, const nn::SequenceContext& context) const {
    if (how_ == Run::kWhole) return layer(h, context).hidden;
    auto attended = layer.call_method(&DecoderLayer::attend, h, context, Tensor());
    if (how_ == Run::kSharedFirst) {
      attended.shared = layer.call_method(&DecoderLayer::shared, attended);
    }
    const auto dispatched = layer.call_method(&DecoderLayer::dispatch, attended);
    const Tensor rows = layer.call_method(&DecoderLayer::experts, dispatched);
    return layer.call_method(&DecoderLayer::combine, rows, dispatched, attended).hidden;
  }

  Run how_;
  models::CausalLMConfig config_;
  models::CausalLM whole_;
};

struct Way {
  std::string_view units = {};       // the end of the paths of those that are units, too
  std::string_view recomputed = {};  // the same of those that are recomputed
  std::optional<bool> reshard = {};
};

constexpr std::string_view kMixture = ".mlp", kExperts = ".mlp.experts";

void prepare(Layers& layers, const Way& way, const DeviceMesh& mesh) {
  const auto is_one_of = [](std::string_view picked, std::string_view path) {
    return !picked.empty() && path.ends_with(picked);
  };
  const int recomputed =
      nn::recompute(layers, [&](std::string_view path) { return is_one_of(way.recomputed, path); });
  EXPECT_EQ(recomputed, way.recomputed.empty() ? 0 : 2);
  const Policy policy = {.reshard_after_forward = way.reshard};
  for (const auto& [path, module] : layers.named_modules()) {
    if (is_one_of(way.units, path)) fully_shard(*module, mesh, policy);
  }
  for (const auto& [path, module] : layers.named_modules()) {
    if (path.size() == 1) fully_shard(*module, mesh, policy);
  }
  fully_shard(layers, mesh, policy);
}

/// Outputs and gradients of two micro-batches.
TensorList train(Layers& layers) {
  TensorList result;
  for (std::uint64_t micro_batch = 0; micro_batch < 2; ++micro_batch) {
    const Shape shape{kTokens, layers.hidden_size()};
    const Tensor input = randn(shape, 5 + micro_batch, Dtype::kFloat32, true);
    const Tensor output = layers(input);
    output.backward(randn(shape, 7 + micro_batch, Dtype::kFloat32));
    result.push_back(output.detach());
    result.push_back(input.grad());
  }
  for (const auto& parameter : layers.named_parameters()) {
    EXPECT_TRUE(parameter.tensor.grad().defined()) << parameter.name;
    result.push_back(parameter.tensor.grad());
  }
  return result;
}

TEST(DecoderLayerNodes, GiveTheBitsOfTheLayerUnderFullyShard) {
  for (const int ranks : {1, 2, 3}) {
    for (const auto units : {std::string_view(), kExperts, kMixture}) {
      for (const auto recomputed : {std::string_view(), kExperts, kMixture}) {
        for (const auto reshard : {std::optional<bool>(), {false}}) {
          launch(ranks, [&](RankContext& context) {
            const auto mesh = DeviceMesh::flat(context.group());
            const Way way = {units, recomputed, reshard};
            Layers whole(Run::kWhole), nodes(Run::kNodes);
            prepare(whole, way, mesh);
            prepare(nodes, way, mesh);
            const auto expected = train(whole), got = train(nodes);
            ASSERT_EQ(got.size(), expected.size());
            for (std::size_t i = 0; i < got.size(); ++i) {
              EXPECT_TRUE(bitwise_equal(got[i], expected[i]))
                  << ranks << " ranks, " << units << ", " << recomputed << ' ' << i;
            }
          });
        }
      }
    }
  }
}

// A shared expert may run at any time after attention.
TEST(DecoderLayerNodes, GiveTheBitsOfALayerWithASharedExpert) {
  auto config = test::toy_config_of(models::ModelType::kQwen2Moe);
  config.dtype = Dtype::kFloat32;
  for (const int ranks : {1, 2, 3}) {
    for (const auto recomputed : {std::string_view(), kExperts, kMixture}) {
      launch(ranks, [&](RankContext& context) {
        const auto mesh = DeviceMesh::flat(context.group());
        const Way way = {.recomputed = recomputed};
        Layers whole(Run::kWhole, config);
        prepare(whole, way, mesh);
        const auto expected = train(whole);
        for (const auto how : {Run::kNodes, Run::kSharedFirst}) {
          Layers nodes(how, config);
          prepare(nodes, way, mesh);
          const auto got = train(nodes);
          ASSERT_EQ(got.size(), expected.size());
          for (std::size_t i = 0; i < got.size(); ++i) {
            EXPECT_TRUE(bitwise_equal(got[i], expected[i]))
                << ranks << " ranks, " << static_cast<int>(how) << ", " << recomputed << ' ' << i;
          }
        }
      });
    }
  }
}

// Backward gathers each layer once, also where it leaves the weights to a second call.
TEST(DecoderLayerNodes, AreGatheredOnceInEachOfTwoBackwardCalls) {
  launch(2, [](RankContext& context) {
    Layers layers(Run::kNodes);
    prepare(layers, {}, DeviceMesh::flat(context.group()));
    const auto log =
        test::log_events(*layers.extension<State>(), {Event::kReshard, Event::kReduce});
    const Shape shape{kTokens, layers.hidden_size()};
    const Tensor input = randn(shape, 5, Dtype::kFloat32, true);
    const Tensor output = layers(input);
    log->take();
    auto weights = backward_to_inputs({output}, {randn(shape, 7, Dtype::kFloat32)}, {input});
    EXPECT_THAT(log->take(), ElementsAre("reshard 1", "reshard 0"));
    weights.run();
    EXPECT_THAT(log->take(), ElementsAre("reshard 1", "reduce 1", "reshard 0", "reduce 0"));
  });
}

// Without its hooks a layer has no gathered weights.
TEST(DecoderLayerNodes, CalledPastTheHooksFindTheShard) {
  launch(2, [](RankContext& context) {
    Layers layers(Run::kWhole);
    prepare(layers, {}, DeviceMesh::flat(context.group()));
    auto& layer = dynamic_cast<DecoderLayer&>(*layers.named_modules()[1].second);
    const auto documents = Documents::one(2);
    const auto table = ops::rope_table(documents.positions(), 8, 1e4, Dtype::kFloat32);
    const Tensor hidden = Tensor::zeros({2, layers.hidden_size()});
    EXPECT_THROW(layer.attend(hidden, {.documents = documents, .rope = table}, {}), Error);
  });
}

}  // namespace
}  // namespace moegrad::fsdp::nodes_test
