// SPDX-License-Identifier: Apache-2.0

// Modules that end before what is left of them is used.

#include "tests/fsdp/random_sequences.h"
#include "tests/testing.h"

namespace moegrad::fsdp::lifetime_test {
namespace {

using namespace test;

/// A head around a backbone that belongs to somebody else.
class Head final : public nn::Callable<Head> {
 public:
  explicit Head(RealBlock& backbone) : backbone_(backbone), scale_(randn({4}, 3)) {
    register_module("backbone", backbone);
    register_parameter("scale", scale_);
  }
  Tensor forward(const Tensor& x) { return ops::sum(ops::mul(backbone_(x), scale_)); }

 private:
  RealBlock& backbone_;
  Tensor scale_;
};

Tensor input() { return test::variable({2, 4}, 5); }

TEST(Lifetime, ABackwardAfterItsModelIsAnError) {
  for (const int ranks : {1, 2}) {
    launch(ranks, [](RankContext& rank) {
      const auto loss = [&] {
        RealBlock block(randn({4, 4}, 2));
        fully_shard(block, DeviceMesh::flat(rank.group()));
        return ops::sum(block(input()));
      }();
      EXPECT_EQ(message_of<Error>([&] { loss.backward(); }),
                "backward: the module no longer exists, but has hooks that backward runs, as "
                "fully_shard's are; keep the model until backward has run");
    });
  }
}

TEST(Lifetime, AChildOutlivesItsRootAndTrainsOn) {
  const auto gradient_of = [](RealBlock& block) {
    ops::sum(block(input())).backward();
    return optim::clip_grad_norm(block.named_parameters(), 1e9);
  };
  RealBlock alone(randn({4, 4}, 2));
  const double expected = gradient_of(alone);
  launch(2, [&](RankContext& rank) {
    const auto mesh = DeviceMesh::flat(rank.group());
    RealBlock backbone(randn({4, 4}, 2));
    std::optional<Head> head(std::in_place, backbone);
    fully_shard(backbone, mesh);
    fully_shard(*head, mesh);
    (*head)(input()).backward();
    backbone.zero_grad();
    const Tensor unfinished = (*head)(input());
    head.reset();
    EXPECT_NEAR(gradient_of(backbone), 2 * expected, 1e-12);
    backbone.zero_grad();
    EXPECT_NEAR(gradient_of(backbone), 2 * expected, 1e-12);
    EXPECT_FALSE(message_of<Error>([&] { unfinished.backward(); }).empty());
  });
}

}  // namespace
}  // namespace moegrad::fsdp::lifetime_test
