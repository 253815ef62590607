// SPDX-License-Identifier: Apache-2.0
#include "optim/optimizer.h"

#include <gtest/gtest.h>

#include "framework/runtime/rank_context.h"
#include "optim/adamw.h"
#include "optim/sgd.h"
#include "tests/testing.h"

namespace moegrad::optim {
namespace {

TEST(Optimizer, AStepIsAPhaseOnTheOptimizerLane) {
  RankContext context;
  const RankContextGuard guard(context);
  const Tensor parameter = testing::variable({4});
  parameter.set_grad(testing::randn({4}, 2));
  AdamW adamw({{"p", parameter}}, AdamW::Config());
  SGD sgd({{"p", parameter}}, SGD::Config());
  context.spans().start(0);
  adamw.step();
  sgd.step();
  const auto spans = context.spans().spans();
  ASSERT_EQ(spans.size(), 2U);
  for (const auto& span : spans) {
    EXPECT_EQ(span.name, "optimizer");
    EXPECT_EQ(span.kind, SpanKind::kPhase);
    EXPECT_EQ(span.lane, Lane::kOptimizer);
  }
}

// --- steps that would train nothing

TEST(Optimizer, NeedsAParameter) {
  EXPECT_EQ(testing::message_of<ValueError>([] { SGD(NamedTensors(), SGD::Config()); }),
            "optimizer: at least one parameter is needed, got none");
  EXPECT_EQ(
      testing::message_of<ValueError>([] { AdamW(std::vector<ParamGroup>(2), AdamW::Config()); }),
      "optimizer: at least one parameter is needed, got none");
}

TEST(Optimizer, AStepNeedsAGradient) {
  const Tensor p = testing::variable({4}), q = testing::variable({4}, 2),
               empty = testing::variable({0});
  SGD optimizer({{"p", p}, {"q", q}}, {.lr = 0.1});
  EXPECT_EQ(testing::message_of<Error>([&] { optimizer.step(); }),
            "step: at least one parameter must have a gradient, got none");
  q.set_grad(testing::randn({4}, 2));
  optimizer.step();
  optimizer.zero_grad();
  EXPECT_EQ(testing::message_of<Error>([&] { optimizer.step(); }),
            "step: at least one parameter must have a gradient, got none");
  // What a rank has of parameters with fewer rows than ranks.
  AdamW without_rows({{"empty", empty}}, AdamW::Config());
  empty.set_grad(Tensor::zeros({0}, Dtype::kFloat64));
  without_rows.step();
}

}  // namespace
}  // namespace moegrad::optim
