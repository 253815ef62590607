// SPDX-License-Identifier: Apache-2.0
// Dropout masks that are the same where others may be meant.
#include <gmock/gmock.h>

#include <algorithm>
#include <concepts>
#include <functional>
#include <string>
#include <vector>

#include "framework/distributed/launch.h"
#include "nn/dropout.h"
#include "nn/jitter.h"
#include "nn/recompute.h"
#include "nn/sequential.h"
#include "ops/dropout.h"
#include "ops/jitter.h"
#include "tests/nn/dropping_block.h"

namespace moegrad::nn::dropout_draws_test {
namespace {

using namespace test;

template <class Ids>
concept HasNoStep = requires {
  Ids{.seed = 1};
};
template <class Ids>
concept HasAStep = requires {
  Ids{.seed = 1, .step = 0};
};

TEST(DropoutDraws, AStepMustBeGiven) {
  static_assert(HasAStep<DropoutIds>);
  static_assert(!HasNoStep<DropoutIds>);
  static_assert(!std::default_initializable<DropoutIds>);
}

struct Net {
  Net() {
    layers.emplace_back<Dropout>({.p = 0.5});
    layers.emplace_back<Jitter>({.noise = 0.5});
  }
  Sequential layers;
};

TEST(DropoutDraws, EachHasMasksOfItsOwnAndDrawZeroTheOnesWithoutADraw) {
  Net net;
  const Tensor x = Tensor::ones({4, 64});
  const auto run = [&](const DropoutIds& ids) {
    const DropoutIdsGuard guard(ids);
    return net.layers(x);
  };
  const Tensor first = run({.seed = 1, .step = 3});
  const Tensor dropped = ops::dropout(x, 0.5, Random(1, "0 dropout of step 3"));
  EXPECT_TRUE(bitwise_equal(first, ops::jitter(dropped, 0.5, Random(1, "1 jitter of step 3"))));
  EXPECT_TRUE(bitwise_equal(first, run({.seed = 1, .step = 3, .draw = 0})));
  const Tensor second = run({.seed = 1, .step = 3, .draw = 1});
  EXPECT_FALSE(bitwise_equal(first, second));
  EXPECT_TRUE(bitwise_equal(second, run({.seed = 1, .step = 3, .draw = 1})));
  EXPECT_FALSE(bitwise_equal(second, run({.seed = 1, .step = 3, .draw = 2})));
}

std::string logged(const std::function<void()>& body) {
  ::testing::internal::CaptureStderr();
  body();
  return ::testing::internal::GetCapturedStderr();
}

std::size_t lines_of(const std::string& text) {
  return static_cast<std::size_t>(std::ranges::count(text, '\n'));
}

constexpr auto* kAgain =
    " is called again under one DropoutIdsGuard, so it drops the same elements again; give each "
    "step a guard with its step, each micro-batch its token_ids, and another forward of the same "
    "tokens another draw\n";

TEST(DropoutDraws, AModelThatDropsAgainUnderOneGuardWarnsOnce) {
  DroppingBlock block;
  const Tensor x = randn({kTokens, kHidden}, 1);
  Tensor first, second;
  const auto text = logged([&] {
    const DropoutIdsGuard guard({.seed = 1, .step = 0});
    first = block(x, context_of(kTokens));
    second = block(x, context_of(kTokens));  // as R-Drop does
    block(x, context_of(kTokens));
  });
  EXPECT_TRUE(bitwise_equal(first.detach(), second.detach()));
  EXPECT_NE(text.find(std::string("warning [rank 0] attention dropout 'attention'") + kAgain),
            std::string::npos)
      << text;
  EXPECT_EQ(lines_of(text), 1U) << text;
  EXPECT_EQ(logged([&] {
              const DropoutIdsGuard guard({.seed = 1, .step = 1});
              for (int i = 0; i < 2; ++i) block(x, context_of(kTokens));
            }),
            "");
  Net other;
  const auto of_other = logged([&] {
    const DropoutIdsGuard guard({.seed = 1, .step = 1});
    for (int i = 0; i < 2; ++i) other.layers(Tensor::ones({4, 8}));
  });
  EXPECT_NE(of_other.find(std::string("Dropout '0'") + kAgain), std::string::npos) << of_other;
}

// With the ids of the next micro-batch it would drop others than forward did.
TEST(DropoutDraws, IdsThatAreWrittenToBetweenForwardAndBackwardAreAnError) {
  for (const bool recomputed : {false, true}) {
    DroppingBlock block;
    if (recomputed) recompute(block);
    Tensor ids = Tensor::arange(kTokens);
    const DropoutIdsGuard guard({.seed = 1, .step = 0, .token_ids = ids});
    const Tensor y = ops::sum(block(randn({kTokens, kHidden}, 1), context_of(kTokens)));
    copy_(ids, Tensor::arange(kTokens));
    EXPECT_THAT(message_of<Error>([&] { y.backward(); }),
                ::testing::HasSubstr("saved for backward has been modified in place since"));
  }
}

TEST(DropoutDraws, WhatIsMeantToBeTheSameDoesNotWarn) {
  for (const bool recomputed : {false, true}) {
    DroppingBlock block;
    if (recomputed) recompute(block);
    const Tensor x = randn({kTokens, kHidden}, 1);
    EXPECT_EQ(logged([&] {
                for (std::int64_t step = 0; step < 2; ++step) {
                  const DropoutIdsGuard guard({.seed = 1, .step = step});
                  const Tensor y = block(x, context_of(kTokens));
                  y.backward(randn({kTokens, kHidden}, 2));  // runs the block again, or not
                  const DropoutIdsGuard another({.seed = 1, .step = step, .draw = 1});
                  block(x, context_of(kTokens)).backward(randn({kTokens, kHidden}, 2));
                }
              }),
              "")
        << recomputed;
  }
  Net net;
  net.layers.eval();
  EXPECT_EQ(logged([&] {
              const DropoutIdsGuard guard({.seed = 1, .step = 0});
              for (int i = 0; i < 2; ++i) net.layers(Tensor::ones({4, 8}));
            }),
            "");
}

TEST(DropoutDraws, RanksWithoutTokenIdsWarnOnce) {
  const auto run = [](bool has_ids) {
    return logged([&] {
      launch(2, [&](RankContext& rank) {
        Net net;
        for (std::int64_t step = 0; step < 2; ++step) {
          DropoutIds ids = {.seed = 1, .step = step};
          if (has_ids) ids.token_ids = Tensor::arange(4 * rank.rank(), 4 * rank.rank() + 4);
          const DropoutIdsGuard guard(ids);
          net.layers(Tensor::ones({4, 8}));
        }
      });
    });
  };
  const auto text = run(/*has_ids=*/false);
  for (const char* rank : {"0", "1"}) {
    const auto line = std::string("warning [rank ") + rank +
                      "] Dropout '0' has no token_ids, so row i of each of the 2 ranks loses the "
                      "same elements; give DropoutIds::token_ids, an id of its own to each token "
                      "of the step\n";
    EXPECT_NE(text.find(line), std::string::npos) << text;
  }
  EXPECT_EQ(lines_of(text), 2U) << text;
  EXPECT_EQ(run(/*has_ids=*/true), "");
}

}  // namespace
}  // namespace moegrad::nn::dropout_draws_test
