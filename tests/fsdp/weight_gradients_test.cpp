// SPDX-License-Identifier: Apache-2.0
// Weight gradients that wait, of sharded modules.
#include "framework/autograd/weight_gradients.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "framework/distributed/launch.h"
#include "fsdp/fully_shard.h"
#include "nn/init.h"
#include "nn/linear.h"
#include "nn/recompute.h"
#include "ops/elementwise.h"
#include "ops/reduce.h"
#include "tests/fsdp/conformance/event_log.h"
#include "tests/fsdp/draining_hooks.h"
#include "tests/fsdp/models.h"
#include "tests/testing.h"

namespace moegrad::fsdp::weight_gradients_test {
namespace {

using namespace test;
using ::testing::ElementsAre;

constexpr std::int64_t kSize = 12;

/// Three layers, of which the second runs three times: between them, and at the end.
class Net final : public nn::Callable<Net> {
 public:
  explicit Net(bool recompute) {
    for (int i = 0; i < 3; ++i) {
      layers_.push_back(std::make_unique<nn::Linear>(
          nn::Linear::Config{.in_features = kSize, .out_features = kSize}));
      register_module(std::to_string(i), *layers_.back());
    }
    nn::init_weights(*this, 3, 0.4);
    if (recompute) {
      nn::recompute(*this, [](std::string_view path) { return !path.empty(); });
    }
  }
  Tensor forward(const Tensor& x) {
    const auto layer = [&](int i, const Tensor& h) {
      return ops::tanh((*layers_[static_cast<std::size_t>(i)])(h));
    };
    return layer(1, layer(2, layer(1, layer(1, layer(0, x)))));
  }
  void shard(const DeviceMesh& mesh) {
    for (auto& layer : layers_) fully_shard(*layer, mesh);
    fully_shard(*this, mesh);
  }

 private:
  std::vector<std::unique_ptr<nn::Linear>> layers_;
};

/// The gradients after three micro-batches; `kept`: reduced with the last one alone.
TensorList gradients(Net& net, RankContext& rank, Drained drained, bool kept) {
  for (std::uint64_t m = 0; m < 3; ++m) {
    net.extension<State>()->set_requires_gradient_sync(!kept || m == 2);
    const auto seed = 10 * static_cast<std::uint64_t>(rank.rank()) + m;
    const Tensor out = net(randn({5, kSize}, seed, Dtype::kFloat32));
    const DrainedQueue draining(net, drained, 7 + m);
    ops::sum(ops::square(out)).backward();
    EXPECT_EQ(draining.queue().size(), 0U);
    if (drained == Drained::kAtTheEnd) {
      EXPECT_GE(draining.most(), 3U);
    }
  }
  TensorList gradients;
  for (const auto& [name, parameter] : net.named_parameters())
    gradients.push_back(parameter.grad());
  return gradients;
}

TEST(WeightGradientsOfShards, HaveTheirBitsWheneverTheQueueIsDrained) {
  for (const bool recompute : {false, true}) {
    for (const ParallelDims dims : {ParallelDims{1, 1}, {1, 2}, {2, 1}, {2, 2}, {1, 4}}) {
      launch(dims.ranks(), [&](RankContext& rank) {
        const auto mesh = fsdp_mesh(rank.group(), dims);
        for (const bool kept : {false, true}) {
          const auto run = [&](Drained drained) {
            Net net(recompute);
            net.shard(mesh);
            return gradients(net, rank, drained, kept);
          };
          const auto expected = run(Drained::kNoQueue);
          for (const auto drained : kDrained) {
            const auto got = run(drained);
            for (std::size_t i = 0; i < expected.size(); ++i) {
              EXPECT_TRUE(bitwise_equal(got[i], expected[i]))
                  << "parameter " << i << ", drained " << static_cast<int>(drained)
                  << (recompute ? ", recomputed" : "") << (kept ? ", kept" : "");
            }
          }
        }
      });
    }
  }
}

/// Two layers, each in a group of its own.
class Pair final : public nn::Callable<Pair> {
 public:
  Pair() {
    register_module("a", a_);
    register_module("b", b_);
    nn::init_weights(*this, 3, 0.4);
  }
  Tensor forward(const Tensor& x) { return b_(a_(x)); }
  void shard(const DeviceMesh& mesh) {
    fully_shard(a_, mesh);
    fully_shard(b_, mesh);
    fully_shard(*this, mesh);
  }

 private:
  nn::Linear a_{{.in_features = kSize, .out_features = kSize}};
  nn::Linear b_{{.in_features = kSize, .out_features = kSize}};
};

// The weights' bytes are freed when the tape leaves, and their gradients reduced when they come.
TEST(WeightGradientsOfShards, AreReducedWhenTheyComeAndFreeTheirModulesBefore) {
  launch(2, [](RankContext& rank) {
    Pair net;
    net.shard(DeviceMesh::flat(rank.group()));
    const auto log =
        log_events(*net.extension<State>(), {Event::kPreBackward, Event::kReshard, Event::kReduce});
    const auto backward = [&](Drained drained) {
      const Tensor x = randn({5, kSize}, 1, Dtype::kFloat32, true);
      const Tensor out = net(x);
      log->take();
      const DrainedQueue draining(net, drained, 1);
      ops::sum(out).backward();
      return log->take();
    };
    EXPECT_THAT(backward(Drained::kNoQueue),
                ElementsAre("pre_backward ", "pre_backward b", "reshard b", "reduce b",
                            "pre_backward a", "reshard a", "reduce a"));
    EXPECT_THAT(backward(Drained::kAtTheEnd),
                ElementsAre("pre_backward ", "pre_backward b", "reshard b", "pre_backward a",
                            "reshard a", "reduce b", "reduce a"));
  });
}

// The gradients of a group are one reduction, which waits for the last.
TEST(WeightGradientsOfShards, OfOneGroupAreReducedTogether) {
  launch(2, [](RankContext& rank) {
    for (const auto drained : {Drained::kNoQueue, Drained::kAtTheEnd}) {
      Pair net;
      fully_shard(net, DeviceMesh::flat(rank.group()));
      const auto log = log_events(*net.extension<State>(), {Event::kReduce});
      const Tensor out = net(randn({5, kSize}, 1, Dtype::kFloat32, true));
      const DrainedQueue draining(net, drained, 1);
      ops::sum(out).backward();
      EXPECT_THAT(log->take(), ElementsAre("reduce "));
    }
  });
}

// After an exception nothing waits for a later backward.
TEST(WeightGradientsOfShards, AreForgottenWithTheBackwardThatFailed) {
  launch(2, [](RankContext& rank) {
    const auto run = [&](bool fails_first) {
      Pair net;
      net.shard(DeviceMesh::flat(rank.group()));
      auto& root = *net.extension<State>();
      WeightGradientQueue queue;
      const WeightGradientsGuard guard(queue);
      const auto backward = [&](bool fails) {
        const Tensor x = randn({5, kSize}, 1, Dtype::kFloat32, true);
        const auto hook = x.register_hook([fails](const Tensor&) {
          if (fails) throw Error("no more");
          return Tensor();
        });
        ops::sum(net(x)).backward();
      };
      if (fails_first) {
        EXPECT_EQ(message_of<Error>([&] { backward(true); }), "no more; in module a");
        EXPECT_EQ(queue.size(), 0U);
        root.reset_iter_state();
      }
      backward(false);
      return net.named_parameters().front().tensor.grad();
    };
    EXPECT_TRUE(bitwise_equal(run(true), run(false)));
  });
}

}  // namespace
}  // namespace moegrad::fsdp::weight_gradients_test
