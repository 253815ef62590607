// SPDX-License-Identifier: Apache-2.0
#include "optim/weight_average.h"

#include <string>
#include <utility>

#include "framework/distributed/shard_spec.h"
#include "framework/runtime/arena.h"
#include "framework/runtime/rank_context.h"
#include "framework/tensor/fill.h"
#include "framework/tensor/tensor_mark.h"
#include "optim/sgd.h"
#include "tests/framework/distributed/hand_shards.h"
#include "tests/testing.h"

namespace moegrad::optim::weight_average_test {
namespace {

using namespace test;

void set(Tensor tensor, const Tensor& values) { copy_(tensor, values); }

TEST(WeightAverage, MovesTowardTheWeights) {
  for (const auto dtype : {Dtype::kFloat32, Dtype::kFloat64}) {
    const Tensor w = Tensor::ones({2}, dtype), empty = Tensor::zeros({0, 3}, dtype);
    WeightAverage average({{"w", w}, {"empty", empty}}, 0.75);
    const auto values = [&] {
      const Tensor now = to_dtype(average.state_dict()[0].tensor, Dtype::kFloat64);
      return std::vector<double>(now.data<double>().begin(), now.data<double>().end());
    };
    EXPECT_EQ(values(), (std::vector<double>{1, 1}));
    set(w, to_dtype(Tensor::from(std::vector<double>{5.0, -3.0}, {2}), dtype));
    average.update();
    EXPECT_EQ(values(), (std::vector<double>{2, 0}));
    average.update();
    EXPECT_EQ(values(), (std::vector<double>{2.75, -0.75}));
  }
}

TEST(WeightAverage, SwapsWithTheWeightsAndBack) {
  const Tensor w = randn({3, 2}), start = clone(w), later = randn({3, 2}, 2);
  WeightAverage average({{"w", w}}, 0.5);
  set(w, later);
  const Tensor kept = average.state_dict()[0].tensor;
  const auto version = w.storage().version();
  average.swap();
  EXPECT_GT(w.storage().version(), version);  // the tape, and fully_shard, see it
  EXPECT_TRUE(bitwise_equal(w, start));
  EXPECT_TRUE(bitwise_equal(kept, later));
  average.swap();
  EXPECT_TRUE(bitwise_equal(w, later));
}

TEST(WeightAverage, GoesOnFromALoadedState) {
  const Tensor w = randn({4});
  WeightAverage first({{"w", w}}, 0.9);
  set(w, randn({4}, 2));
  WeightAverage second({{"w", w}}, 0.9);
  second.load_state_dict({{"w.ema", clone(first.state_dict()[0].tensor)}});
  first.update();
  second.update();
  EXPECT_TRUE(bitwise_equal(first.state_dict()[0].tensor, second.state_dict()[0].tensor));
  EXPECT_EQ(message_of<ShapeError>([&] {
              second.load_state_dict({{"w.ema", randn({3})}});
            }),
            "WeightAverage load_state_dict: 'w.ema' must be [4], got [3]");
  EXPECT_EQ(message_of<Error>([&] { second.load_state_dict({}); }),
            "WeightAverage load_state_dict: missing key 'w.ema'");
}

TEST(WeightAverage, IsCutLikeTheWeights) {
  RankContext context;
  const RankContextGuard guard(context);
  const Tensor w = randn({4}, 1, Dtype::kFloat32);
  w.set_shard_spec(std::make_shared<const ShardSpec>(test::range_spec({8}, 4, 8)));
  const WeightAverage average({{"w", w}}, 0.9);
  EXPECT_EQ(average.state_dict()[0].tensor.shard_spec(), w.shard_spec());
  EXPECT_EQ(context.arena()->live()[MemoryTag::kOptimizer], 16);
}

TEST(WeightAverage, RejectsWhatCannotBe) {
  const Tensor w = randn({2});
  EXPECT_EQ(message_of<ValueError>([&] {
              WeightAverage({{"w", w}}, 1.0);
            }),
            "WeightAverage: decay must be in [0, 1), got 1");
  WeightAverage average({{"w", w}}, 0.5);
  w.set_shard_spec(std::make_shared<const ShardSpec>(whole_spec({2})));
  set_mark(w, kReplaced);
  for (const auto& message :
       {message_of<Error>([&] { average.update(); }), message_of<Error>([&] { average.swap(); })}) {
    EXPECT_EQ(message,
              "WeightAverage: 'w' must be a parameter of its module, got the whole tensor that "
              "fully_shard or expert_parallel has replaced by a part; take named_parameters() "
              "afterwards");
  }
}

TEST(WeightAverage, RefusesWhatItCannotAverageBeforeAnythingChanges) {
  const Tensor a = randn({2}), start = clone(a);
  EXPECT_EQ(message_of<DtypeError>([&] {
              WeightAverage({{"a", a}, {"n", Tensor::arange(2)}}, 0.5);
            }),
            "WeightAverage: parameter 'n' must be float32 or float64, got int64");
  Tensor b = randn({2});
  WeightAverage average({{"a", a}, {"b", b}}, 0.5);
  convert_(b, Dtype::kFloat32);
  set(a, Tensor::zeros({2}));
  for (const auto& message : {message_of<DtypeError>([&] { average.update(); }),
                              message_of<DtypeError>([&] { average.swap(); })}) {
    EXPECT_EQ(message,
              "WeightAverage: 'b' must be float64 as when it was made, got float32; make it after "
              "the module has been converted");
  }
  EXPECT_TRUE(bitwise_equal(a, Tensor::zeros({2}, Dtype::kFloat64)));
  EXPECT_TRUE(bitwise_equal(average.state_dict()[0].tensor, start));
}

TEST(WeightAverage, IsUpdatedSavedAndLoadedWhenTheWeightsAreInTheirPlace) {
  const Tensor w = randn({2}), start = clone(w), later = randn({2}, 2);
  WeightAverage average({{"w", w}}, 0.5);
  set(w, later);
  average.swap();
  const auto refusal = [](const std::string& call) {
    return "WeightAverage: " + call +
           " must find the weights in their place, got the averages there; call swap() again first";
  };
  EXPECT_EQ(message_of<Error>([&] { average.update(); }), refusal("update()"));
  EXPECT_EQ(message_of<Error>([&] { average.state_dict(); }), refusal("state_dict()"));
  EXPECT_EQ(message_of<Error>([&] {
              average.load_state_dict({{"w.ema", randn({2}, 3)}});
            }),
            refusal("load_state_dict()"));
  average.swap();
  EXPECT_TRUE(bitwise_equal(w, later));
  EXPECT_TRUE(bitwise_equal(average.state_dict()[0].tensor, start));
  EXPECT_NO_THROW(average.update());
}

TEST(WeightAverage, OneOfSeveralAtATimeIsInTheWeightsPlace) {
  const Tensor w = randn({2}), start = clone(w), later = randn({2}, 2);
  SGD optimizer({{"w", w}}, {.lr = 1});
  w.set_grad(Tensor::ones({2}, Dtype::kFloat64));
  WeightAverage slow({{"w", w}}, 0.9), fast({{"w", w}}, 0.5);
  set(w, later);
  slow.swap();
  for (const std::string call : {"swap()", "update()"}) {
    EXPECT_EQ(message_of<Error>([&] { call == "swap()" ? fast.swap() : fast.update(); }),
              "WeightAverage: " + call +
                  " must find the weights in their place, got the averages there; call swap() "
                  "again first");
  }
  EXPECT_EQ(message_of<Error>([&] {
              WeightAverage({{"w", w}}, 0.9);
            }),
            "WeightAverage: the constructor must find the weights in their place, got the averages "
            "there; call swap() again first");
  EXPECT_THROW(optimizer.step(), Error);
  EXPECT_TRUE(bitwise_equal(w, start));
  slow.swap();
  fast.swap();
  fast.swap();
  EXPECT_TRUE(bitwise_equal(w, later));
  EXPECT_NO_THROW(optimizer.step());
}

TEST(WeightAverage, NoOptimizerStepsFromTheAverages) {
  const Tensor w = randn({2}), start = clone(w), later = randn({2}, 2);
  SGD optimizer({{"w", w}}, {.lr = 1});
  w.set_grad(Tensor::ones({2}, Dtype::kFloat64));
  {
    WeightAverage average({{"w", w}}, 0.5);
    set(w, later);
    average.swap();
    EXPECT_EQ(
        message_of<Error>([&] { optimizer.step(); }),
        "step: 'w' must hold its weights, got the averages that WeightAverage::swap() has put "
        "in their place; call swap() again first");
    EXPECT_TRUE(bitwise_equal(w, start));
    average.swap();
    EXPECT_TRUE(bitwise_equal(w, later));
    optimizer.step();
    average.swap();
  }
  // Without the average what it has left are the weights.
  EXPECT_TRUE(bitwise_equal(w, start));
  EXPECT_NO_THROW(optimizer.step());
}

}  // namespace
}  // namespace moegrad::optim::weight_average_test
