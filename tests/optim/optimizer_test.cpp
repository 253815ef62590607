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

}  // namespace
}  // namespace moegrad::optim
