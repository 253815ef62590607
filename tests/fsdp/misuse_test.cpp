// SPDX-License-Identifier: Apache-2.0

// What a model has, or leaves out, that sharding would change without a word: it is refused. And
// what looks like that and is not.

#include <gtest/gtest.h>

#include "framework/autograd/gradcheck.h"
#include "nn/linear.h"
#include "ops/elementwise.h"
#include "ops/reduce.h"
#include "optim/sgd.h"
#include "tests/fsdp/models.h"

namespace moegrad::fsdp::misuse_test {
namespace {

using test::message_of;

Tensor weight(const Shape& shape, std::uint64_t seed) {
  return test::randn(shape, seed, Dtype::kFloat32);
}

class Pair final : public nn::Callable<Pair> {
 public:
  Pair() : first(weight({10, 6}, 1)), second(weight({5, 10}, 2)) {
    register_module("first", first);
    register_module("second", second);
  }
  Tensor forward(const Tensor& x) { return second(first(x)); }
  nn::Linear first, second;
};

Tensor input() { return weight({3, 6}, 9); }

// PyTorch loses them without a word.
TEST(FullyShardMisuse, RefusesHooksThatWouldNotRun) {
  const char* const had =
      "fully_shard: parameter 'first.weight' must have no hooks yet, because its shard takes its "
      "place; register post-accumulate hooks on the shard";
  for (const int ranks : {1, 2}) {
    launch(ranks, [&](RankContext& rank) {
      const auto mesh = DeviceMesh::flat(rank.group());
      Pair early, late, removed;
      early.named_parameters()[0].tensor.register_hook([](const Tensor& grad) { return grad; });
      EXPECT_EQ(message_of<Error>([&] { fully_shard(early, mesh); }), had);
      late.named_parameters()[0].tensor.register_post_accumulate_grad_hook([](const Tensor&) {});
      EXPECT_EQ(message_of<Error>([&] { fully_shard(late, mesh); }), had);
      {
        auto handle = removed.named_parameters()[0].tensor.register_hook(
            [](const Tensor& grad) { return grad; });
        handle.remove();
      }
      fully_shard(removed, mesh);
      const Tensor shard = removed.named_parameters()[0].tensor;
      EXPECT_EQ(
          message_of<Error>([&] { shard.register_hook([](const Tensor& grad) { return grad; }); }),
          "register_hook: the tensor must not be a shard of a parameter, got [" +
              std::to_string(10 / ranks) +
              ", 6]: fully_shard computes with the gathered whole, so the hook would never "
              "run; use register_post_accumulate_grad_hook");
    });
  }
}

/// Two parameters on the same bytes, or on the halves of some.
class Overlapping final : public nn::Callable<Overlapping> {
 public:
  explicit Overlapping(bool apart) : whole_(Tensor::ones({4, 3})) {
    const std::int64_t rows = apart ? 2 : 4;
    a_ = Tensor::as_strided(whole_, {rows, 3}, {3, 1}, 0);
    b_ = Tensor::as_strided(whole_, {rows, 3}, {3, 1}, apart ? 6 : 0);
    register_parameter("a", a_);
    register_parameter("b", b_);
  }

 private:
  Tensor whole_, a_, b_;
};

TEST(FullyShardMisuse, RefusesParametersThatShareTheirBytes) {
  launch(2, [](RankContext& rank) {
    const auto mesh = DeviceMesh::flat(rank.group());
    Overlapping halves(true), same(false);
    fully_shard(halves, mesh);
    EXPECT_EQ(
        message_of<Error>([&] { fully_shard(same, mesh); }),
        "fully_shard: parameters 'a' and 'b' must not share their bytes; to tie them, register "
        "the same Tensor in both places");
  });
}

TEST(FullyShardMisuse, AStepRefusesAParameterThatNobodySpreads) {
  launch(2, [](RankContext& rank) {
    const auto mesh = DeviceMesh::flat(rank.group());
    Pair forgotten, ignored;
    fully_shard(forgotten.first, mesh);  // the second block, or the root, is left out
    optim::SGD drifts(forgotten.named_parameters(), {.lr = 0.1});
    ops::sum(forgotten(input())).backward();
    EXPECT_EQ(message_of<Error>([&] { drifts.step(); }),
              "step: 'second.weight' is whole on every rank while 'first.weight' is "
              "spread over them, so nobody adds up its gradients: call fully_shard on the module "
              "that holds all, or name it in Policy::ignored_parameters and add them up yourself");
    const Tensor own = ignored.second.named_parameters()[0].tensor;
    fully_shard(ignored, mesh, {.ignored_parameters = {own}});
    optim::SGD optimizer(ignored.named_parameters(), {.lr = 0.1});
    ops::sum(ignored(input())).backward();
    optimizer.step();
  });
}

class Vectors final : public nn::Callable<Vectors> {
 public:
  Vectors(const Shape& a, const Shape& b, Dtype dtype, bool tied)
      : a_(Tensor::ones(a)), b_(tied ? a_ : Tensor::ones(b, dtype)) {
    register_parameter("a", a_);
    register_parameter("b", b_);
  }

 private:
  Tensor a_, b_;
};

TEST(FullyShardMisuse, RefusesScalarsAndMixedDtypes) {
  launch(1, [](RankContext& rank) {
    const auto mesh = DeviceMesh::flat(rank.group());
    Vectors scalar({2}, {}, Dtype::kFloat32, false);
    EXPECT_EQ(message_of<ShapeError>([&] { fully_shard(scalar, mesh); }),
              "fully_shard: parameter 'b' is a scalar; give it a dimension to shard");
    Vectors mixed({2}, {2}, Dtype::kFloat64, false);
    EXPECT_EQ(message_of<DtypeError>([&] { fully_shard(mixed, mesh); }),
              "fully_shard: one group needs one dtype, got float32 and float64 of 'b'");
    Vectors tied({2}, {2}, Dtype::kFloat32, true);
    EXPECT_EQ(fully_shard(tied, mesh).group()->params().size(), 1U);
  });
}

class Tied final : public nn::Callable<Tied> {
 public:
  Tied()
      : inner({2, 2}, {2, 2}, Dtype::kFloat32, true), outer_(*inner.parameter_slots()[0].tensor) {
    register_module("inner", inner);
    register_parameter("outer", outer_);
  }
  Vectors inner;

 private:
  Tensor outer_;
};

TEST(FullyShardMisuse, RefusesAParameterTiedAcrossGroups) {
  launch(1, [](RankContext& rank) {
    const auto mesh = DeviceMesh::flat(rank.group());
    Tied tied;
    fully_shard(tied.inner, mesh);
    EXPECT_EQ(message_of<Error>([&] { fully_shard(tied, mesh); }),
              "fully_shard: parameter 'outer' is tied to one that an earlier fully_shard call has "
              "taken; shard both in one call, by fully_shard({&a, &b}, mesh) and then the module "
              "that holds a and b (or, if that call was for a module above, call fully_shard "
              "bottom-up)");
  });
}

// An edit between forward and backward is noticed without a backward that throws in the middle.
TEST(FullyShardMisuse, GradcheckPassesAndLeavesTheModelUsable) {
  launch(2, [](RankContext& rank) {
    nn::Linear linear(test::randn({6, 6}, 4));
    fully_shard(linear, DeviceMesh::flat(rank.group()));
    const auto f = [&](const TensorList& in) -> TensorList { return {linear(in[0])}; };
    const auto result = gradcheck(f, {test::variable({2, 6}, 5)});
    EXPECT_TRUE(result) << result.message;
    ops::sum(linear(test::variable({2, 6}, 6))).backward();
  });
}

}  // namespace
}  // namespace moegrad::fsdp::misuse_test
