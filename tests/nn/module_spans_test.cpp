// SPDX-License-Identifier: Apache-2.0
// What the span log shows of modules, phases and Functions.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "framework/autograd/checkpoint.h"
#include "framework/autograd/engine.h"
#include "framework/runtime/rank_context.h"
#include "nn/module.h"
#include "nn/rms_norm.h"
#include "tests/testing.h"

namespace moegrad::nn::module_spans_test {
namespace {

using namespace test;

class Block final : public Callable<Block> {
 public:
  explicit Block(bool recompute)
      : recompute_(recompute), norm_({.dim = 4, .dtype = Dtype::kFloat64}) {
    register_module("norm", norm_);
  }
  Tensor forward(const Tensor& x) {
    if (!recompute_) return norm_(x);
    return checkpoint([&](const TensorList& inputs) { return TensorList{norm_(inputs[0])}; }, {x})
        .at(0);
  }

 private:
  bool recompute_;
  RMSNorm norm_;
};

/// Names in order of begin, each after two blanks per span around it.
std::vector<std::string> outline(std::vector<Span> spans) {
  std::ranges::reverse(spans);  // a span is added when it ends, so what is around it comes first
  std::ranges::stable_sort(spans, {}, &Span::begin);
  std::vector<std::string> lines;
  std::vector<SpanClock::time_point> open;
  for (const auto& span : spans) {
    while (!open.empty() && open.back() <= span.begin && open.back() < span.end) open.pop_back();
    lines.push_back(std::string(2 * open.size(), ' ') + span.name);
    open.push_back(span.end);
  }
  return lines;
}

std::vector<std::string> train_step(int level, bool recompute = false) {
  RankContext context;
  const RankContextGuard guard(context);
  Block block(recompute);
  context.spans().start(level);
  block(variable({3, 4})).backward(randn({3, 4}, 2));
  return outline(context.spans().spans());
}

using Lines = std::vector<std::string>;

TEST(ModuleSpans, LevelZeroShowsThePhases) {
  EXPECT_EQ(train_step(0), (Lines{"forward", "backward"}));
}

TEST(ModuleSpans, LevelOneShowsModulesByPath) {
  EXPECT_EQ(train_step(1), (Lines{"forward", "  forward (root)", "    forward norm", "backward",
                                  "  backward (root)", "    backward norm"}));
}

TEST(ModuleSpans, LevelTwoShowsFunctionsByName) {
  EXPECT_EQ(train_step(2), (Lines{"forward", "  forward (root)", "    forward norm",
                                  "      forward rms_norm", "backward", "  backward (root)",
                                  "    backward norm", "      backward rms_norm"}));
}

TEST(ModuleSpans, WhatIsRecomputedBelongsToTheBackward) {
  EXPECT_EQ(train_step(0, /*recompute=*/true), (Lines{"forward", "backward"}));
  EXPECT_EQ(train_step(1, /*recompute=*/true),
            (Lines{"forward", "  forward (root)", "    forward norm", "backward",
                   "  backward (root)", "    forward norm", "    backward norm"}));
}

TEST(ModuleSpans, BothCallsOfABackwardInTwoArePhases) {
  RankContext context;
  const RankContextGuard guard(context);
  Block block(false);
  context.spans().start(0);
  const Tensor x = variable({3, 4});
  auto rest = backward_to_inputs({block(x)}, {randn({3, 4}, 2)}, {x});
  rest.run();
  EXPECT_EQ(outline(context.spans().spans()), (Lines{"forward", "backward", "backward"}));
}

TEST(ModuleSpans, AnExceptionEndsThem) {
  RankContext context;
  const RankContextGuard guard(context);
  Block block(false);
  context.spans().start(1);
  EXPECT_THROW(block(variable({3, 5})), ShapeError);
  EXPECT_EQ(outline(context.spans().spans()),
            (Lines{"forward", "  forward (root)", "    forward norm"}));
  context.spans().start(0);
  block(variable({3, 4}));
  EXPECT_EQ(outline(context.spans().spans()), Lines{"forward"});
}

}  // namespace
}  // namespace moegrad::nn::module_spans_test
