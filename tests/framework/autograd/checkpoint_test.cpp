// SPDX-License-Identifier: Apache-2.0
#include "framework/autograd/checkpoint.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "framework/autograd/engine.h"
#include "framework/runtime/random.h"
#include "framework/runtime/rank_context.h"
#include "tests/framework/autograd/test_functions.h"
#include "tests/testing.h"

namespace moegrad::checkpoint_test {
namespace {

using namespace test;

using Body = std::function<TensorList(const TensorList&)>;
using Runner = std::function<TensorList(const Body&, const TensorList&)>;

TensorList plain(const Body& body, const TensorList& inputs) { return body(inputs); }
TensorList recomputed(const Body& body, const TensorList& inputs) {
  return checkpoint(body, inputs);
}
TensorList recomputed_twice(const Body& body, const TensorList& inputs) {
  return checkpoint([body](const TensorList& in) { return checkpoint(body, in); }, inputs);
}

TensorList square(const TensorList& in) { return {mul(in[0], in[0])}; }
Body times(const Tensor& w) {
  return [w](const TensorList& in) -> TensorList { return {mul(in[0], w)}; };
}

Tensor ones(std::int64_t n = 4) { return Tensor::ones({n}, Dtype::kFloat64); }

void expect_same_bits(const TensorList& got, const TensorList& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(bitwise_equal(got[i], expected[i])) << i;
  }
}

std::int64_t activation_bytes() {
  return RankContext::current().arena()->live()[MemoryTag::kActivations];
}

// x -> x * w * x + w, of which mul saves four tensors.
Tensor block(const Tensor& x, const Tensor& w) { return add(mul(mul(x, w), x), w); }

// The gradients of x and of three weights (the last used by two blocks), and the output.
TensorList train_step(const Runner& run, Dtype dtype) {
  const Tensor x = randn({17}, 1, dtype, true);
  const TensorList w = {randn({17}, 2, dtype, true), randn({17}, 3, dtype, true),
                        randn({17}, 4, dtype, true)};
  Tensor h = mul(x, w[2]);
  for (std::size_t i = 0; i < 3; ++i) {
    const Tensor weight = w[i % 2];
    const Body body = [=](const TensorList& in) -> TensorList { return {block(in[0], weight)}; };
    h = add(h, mul(run(body, {h})[0], h));  // h is used in the body, before and after it
  }
  h = mul(h, w[2]);
  h.backward(randn({17}, 5, dtype));
  return {h, x.grad(), w[0].grad(), w[1].grad(), w[2].grad()};
}

TEST(Checkpoint, GivesTheBitsOfNoRecomputation) {
  for (const auto dtype : {Dtype::kFloat32, Dtype::kFloat64, Dtype::kBFloat16}) {
    expect_same_bits(train_step(recomputed, dtype), train_step(plain, dtype));
  }
}

/// Keeps each element with probability one half, drawn by (seed, global token id, element).
Tensor dropout(const Tensor& x, std::uint64_t seed, std::uint64_t first_token) {
  const Random random(seed, "dropout");
  Tensor mask = zeros_like(x);
  std::uint64_t i = first_token * static_cast<std::uint64_t>(x.dim(-1));
  for (auto& value : mask.mutable_data<double>()) value = random.uniform(i++) < 0.5 ? 2.0 : 0.0;
  return mul(x, mask);
}

TEST(Checkpoint, ReplaysRandomNumbers) {
  const Tensor cotangent = randn({6, 5}, 3);
  const auto train = [&](bool recompute) {
    const Tensor x = variable({6, 5}, 1), w = variable({6, 5}, 2);
    const Body body = [&](const TensorList& in) -> TensorList {
      return {dropout(mul(dropout(in[0], 7, 100), w), 8, 100)};
    };
    const Tensor y = recompute ? checkpoint(body, {x})[0] : body({x})[0];
    y.backward(cotangent);
    return TensorList{y.detach(), x.grad(), w.grad()};
  };
  const auto plain = train(false), recomputed = train(true);
  expect_same_bits(recomputed, plain);
  // The mask dropped some elements and kept some.
  const auto dropped = std::ranges::count(plain[1].data<double>(), 0.0);
  EXPECT_GT(dropped, 0);
  EXPECT_LT(dropped, 30);
}

TEST(Checkpoint, NestedCheckpointsGiveTheSameBits) {
  expect_same_bits(train_step(recomputed_twice, Dtype::kFloat32),
                   train_step(plain, Dtype::kFloat32));
}

TEST(Checkpoint, GradientsMatchFiniteDifferences) {
  const auto f = [](const TensorList& in) {
    return checkpoint(
        [](const TensorList& t) -> TensorList {
          return {block(t[0], t[1]), mul(t[1], t[1])};
        },
        in);
  };
  EXPECT_TRUE(gradients_agree(f, {variable({5}, 1), variable({5}, 2)}));
}

TEST(Checkpoint, AddsToCapturedParametersThatHaveAGradient) {
  TensorList grads[2];
  for (int i = 0; i < 2; ++i) {
    const Tensor x = randn({9}, 1, Dtype::kFloat32, true), w = randn({9}, 2, Dtype::kFloat32, true);
    for (int step = 0; step < 3; ++step) {
      const Body body = [&w](const TensorList& in) -> TensorList { return {block(in[0], w)}; };
      (i == 0 ? plain : recomputed)(body, {x})[0].backward(randn({9}, 7, Dtype::kFloat32));
    }
    grads[i] = {x.grad(), w.grad()};
  }
  expect_same_bits(grads[1], grads[0]);
}

/// The hooks of w when two blocks and a product outside them use it: what each got, in order.
struct HookCalls {
  TensorList gradients;    // that the tensor hook got
  TensorList accumulated;  // w.grad() at each post-accumulate hook
};

HookCalls hook_calls(const Runner& run) {
  const Tensor x = variable({6}, 1), w = variable({6}, 2);
  HookCalls calls;
  w.register_hook([&](const Tensor& grad) {
    calls.gradients.push_back(clone(grad));
    return mul(grad, grad);
  });
  w.register_post_accumulate_grad_hook(
      [&](const Tensor& leaf) { calls.accumulated.push_back(clone(leaf.grad())); });
  const Body body = [w](const TensorList& in) -> TensorList { return {block(block(in[0], w), w)}; };
  for (int step = 0; step < 2; ++step) {
    const Tensor h = run(body, {mul(x, w)})[0];
    run(body, {h})[0].backward(randn({6}, 7));
  }
  return calls;
}

TEST(Checkpoint, HooksOfACapturedLeafRunOncePerBackward) {
  const auto expected = hook_calls(plain);
  ASSERT_EQ(expected.gradients.size(), 2U);
  ASSERT_EQ(expected.accumulated.size(), 2U);
  for (const auto& run : {recomputed, recomputed_twice}) {
    const auto got = hook_calls(run);
    expect_same_bits(got.gradients, expected.gradients);
    expect_same_bits(got.accumulated, expected.accumulated);
  }
}

// The engine cannot know of such a use, but loses no gradient.
TEST(Checkpoint, AUseThatOnlyTheSecondRunHasRunsTheHooksOfItsOwn) {
  const Tensor x = variable({4}, 1), w = variable({4}, 2);
  int calls = 0;
  w.register_hook([&](const Tensor& grad) {
    ++calls;
    return mul(grad, Tensor::full({4}, 2.0, Dtype::kFloat64));
  });
  const Body body = [w](const TensorList& in) -> TensorList {
    return {grad_enabled() ? mul(in[0], w) : mul(in[0], w.detach())};
  };
  mul(checkpoint(body, {x})[0], w).backward(ones());  // 2 x w
  EXPECT_EQ(calls, 2);
  const Tensor expected = mul(mul(x, w), Tensor::full({4}, 4.0, Dtype::kFloat64));
  EXPECT_TRUE(test::all_close(w.grad(), expected, 1e-14, 0));
}

TEST(Checkpoint, ABackwardWithinAHookHasHooksOfItsOwn) {
  const Tensor x = variable({4}, 1), w = variable({4}, 2);
  int calls = 0;
  w.register_hook([&](const Tensor&) {
    ++calls;
    return Tensor();
  });
  const Tensor aside = mul(x, w), product = mul(mul(x, x), w), h = mul(x, x);
  h.register_hook([&](const Tensor&) {
    const int before = calls;
    aside.backward(randn({4}, 3));
    EXPECT_EQ(calls, before + 1);
    return Tensor();
  });
  add(h, product).backward(randn({4}, 4));  // reaches h before w
  EXPECT_EQ(calls, 2);
}

TEST(Checkpoint, LeavesATensorThatTheBodyReturnsToWhoHasIt) {
  const Tensor x = variable({4}, 1), constant = randn({4}, 2), w = variable({4}, 3);
  const Body body = [=](const TensorList& in) -> TensorList {
    return {mul(in[0], in[0]), constant, w};
  };
  const auto outputs = checkpoint(body, {x});
  EXPECT_FALSE(constant.requires_grad());
  EXPECT_TRUE(w.is_leaf());
  EXPECT_FALSE(outputs[2].is_leaf());
}

TEST(Checkpoint, ALeafThatTheBodyReturnsHasItsGradientInOnePiece) {
  const Tensor x = variable({4}, 1), w = variable({4}, 2);
  const Tensor of_leaf = randn({4}, 3), of_product = randn({4}, 4);
  int calls = 0;
  w.register_hook([&](const Tensor&) {
    ++calls;
    return Tensor();
  });
  const Body body = [w](const TensorList& in) -> TensorList { return {mul(in[0], in[0]), w}; };
  const auto outputs = checkpoint(body, {x});
  run_backward({outputs[1], mul(x, w)}, {of_leaf, of_product}, false);
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(test::all_close(w.grad(), add(of_leaf, mul(x, of_product)).detach(), 1e-14, 0));
}

// The inner backward would go through the outer tape, and come there once more later.
TEST(Checkpoint, RefusesABodyThatCapturesWhatIsOnTheTape) {
  const Tensor x = variable({4}, 1), w = variable({4}, 2), h = mul(w, w);
  const auto message = [&](const Body& body, std::size_t output) {
    const auto outputs = checkpoint(body, {x});
    return message_of<Error>([&] { outputs[output].backward(ones()); });
  };
  const Body uses = times(h);
  const Body returns = [h](const TensorList& in) -> TensorList { return {in[0], h}; };
  const Body nested = [&](const TensorList& in) { return checkpoint(uses, in); };
  // What a body computes is on the tape for a checkpoint inside it.
  const Body inner = [](const TensorList& in) {
    const Tensor y = mul(in[0], in[0]);
    return checkpoint(times(y), in);
  };
  const std::string expected =
      "checkpoint: a tensor that the body captures must be a leaf, got the result of mul; give it "
      "to the body as an input";
  EXPECT_EQ(message(uses, 0), expected);
  EXPECT_EQ(message(returns, 1), expected);
  EXPECT_EQ(message(nested, 0), expected);
  EXPECT_EQ(message(inner, 0), expected);
  EXPECT_FALSE(w.grad().defined());
}

TEST(Checkpoint, TakesABodyThatUsesValuesFromTheTapeWithoutTheirGradient) {
  const Tensor x = variable({4}, 1), w = variable({4}, 2), h = mul(w, w);
  const Body values = [h](const TensorList& in) -> TensorList {
    const auto square = [&] {
      const NoGradGuard no_grad;
      return mul(h, h);
    }();
    return {mul(mul(in[0], square), h.detach())};
  };
  checkpoint(values, {x})[0].backward(ones());
  EXPECT_TRUE(test::all_close(x.grad(), mul(mul(h, h), h).detach(), 1e-14, 0));
  EXPECT_FALSE(w.grad().defined());
  // A body that differentiates something of its own.
  const Tensor y = variable({4}, 3);
  const Body differentiates = [](const TensorList& in) -> TensorList {
    const Tensor own = clone(in[0].detach()).set_requires_grad(true);
    {
      const GradModeGuard tape_on(true);
      mul(mul(own, own), own).backward(ones());
    }
    return {mul(in[0], own.grad())};  // 3 y^3, of which 3 y^2 counts as constant
  };
  checkpoint(differentiates, {y})[0].backward(ones());
  EXPECT_TRUE(test::all_close(
      y.grad(), mul(mul(y, y), Tensor::full({4}, 3, Dtype::kFloat64)).detach(), 1e-14, 0));
}

TEST(Checkpoint, HooksOfACapturedLeafThatNoGradientReachesDoNotRun) {
  const Tensor x = variable({4}, 1), w = variable({4}, 2);
  w.register_post_accumulate_grad_hook([](const Tensor&) { ADD_FAILURE(); });
  const Body body = [w](const TensorList& in) -> TensorList { return {in[0], mul(in[0], w)}; };
  checkpoint(body, {mul(x, x)})[0].backward(randn({4}, 3));
  EXPECT_TRUE(x.grad().defined());
  EXPECT_FALSE(w.grad().defined());
}

TEST(Checkpoint, WorksOnInputsThatNeedNoGradient) {
  const Tensor w = variable({4}, 2), x = randn({4}, 1), y = variable({4}, 3);
  int runs = 0;
  const Body body = [&](const TensorList& in) -> TensorList {
    ++runs;
    EXPECT_FALSE(in[0].requires_grad());
    return {mul(mul(in[0], w), in[1])};
  };
  checkpoint(body, {x, y})[0].backward(ones());
  EXPECT_FALSE(x.grad().defined());
  EXPECT_TRUE(bitwise_equal(w.grad(), mul(x, y).detach()));
  EXPECT_TRUE(bitwise_equal(y.grad(), mul(x, w).detach()));
  EXPECT_EQ(runs, 2);

  // None at all: the captured parameter still gets its gradient.
  w.set_grad(Tensor());
  checkpoint(times(w), {x})[0].backward(ones());
  EXPECT_TRUE(bitwise_equal(w.grad(), x));
}

TEST(Checkpoint, ABodyWithoutAnyGradientPassesNone) {
  const Tensor x = randn({4}, 1);
  const auto out = checkpoint(square, {x});
  EXPECT_TRUE(out[0].requires_grad());
  out[0].backward(ones());
  EXPECT_FALSE(x.grad().defined());
}

TEST(Checkpoint, PassesAbsentAndIntegerInputs) {
  const Tensor x = variable({2}, 1);
  const Tensor ids = Tensor::from(std::vector<std::int64_t>{1, 0}, {2});
  const auto out = checkpoint(
      [](const TensorList& in) -> TensorList {
        EXPECT_FALSE(in[1].defined());
        EXPECT_EQ(in[2].data<std::int64_t>()[0], 1);
        return {mul(in[0], in[0]), in[2]};
      },
      {x, Tensor(), ids});
  EXPECT_FALSE(out[1].requires_grad());
  out[0].backward(ones(2));
  EXPECT_TRUE(bitwise_equal(x.grad(), add(x, x).detach()));
}

TEST(Checkpoint, UnusedOutputsCostNothingAndUnusedInputsGetZeros) {
  const Tensor x = variable({4}, 1), y = variable({4}, 2), z = variable({4}, 3);
  int reached = 0;
  const Body body = [&](const TensorList& in) -> TensorList {
    const Tensor unused = test::probe(mul(in[0], in[1]), "unused", [&](const Tensor& grad) {
      ++reached;
      return TensorList{grad};
    });
    return {mul(in[0], in[0]), unused};
  };
  checkpoint(body, {x, y, z})[0].backward(ones());
  EXPECT_EQ(reached, 0);
  EXPECT_TRUE(bitwise_equal(x.grad(), add(x, x).detach()));
  EXPECT_TRUE(bitwise_equal(y.grad(), Tensor::zeros({4}, Dtype::kFloat64)));
  EXPECT_TRUE(bitwise_equal(z.grad(), Tensor::zeros({4}, Dtype::kFloat64)));
}

TEST(Checkpoint, RunsTheBodyAgainOnlyIfBackwardReachesIt) {
  const Tensor x = variable({4}, 1);
  int runs = 0;
  const Body body = [&](const TensorList& in) -> TensorList {
    ++runs;
    return {mul(in[0], in[0])};
  };
  const Tensor not_used = checkpoint(body, {x})[0];
  mul(x, x).backward(ones());
  EXPECT_EQ(runs, 1);
  {
    const NoGradGuard no_grad;
    EXPECT_FALSE(checkpoint(body, {x})[0].requires_grad());
  }
  EXPECT_EQ(runs, 2);
}

TEST(Checkpoint, CanRunBackwardTwiceWithRetainGraph) {
  const Tensor x = variable({4}, 1);
  const Tensor y = checkpoint(square, {x})[0];
  y.backward(ones(), /*retain_graph=*/true);
  y.backward(ones());
  EXPECT_TRUE(bitwise_equal(x.grad(), add(add(x, x), add(x, x)).detach()));
  EXPECT_EQ(message_of<Error>([&] { y.backward(ones()); }),
            "checkpoint: backward a second time, but the saved tensors have been freed; pass "
            "retain_graph to the first backward");
}

TEST(Checkpoint, DetectsAnInputThatWasModified) {
  Tensor x = randn({4}, 1);
  const Tensor w = variable({4}, 2);
  const Tensor y = checkpoint(times(w), {x})[0];
  fill_(x, 0);
  EXPECT_EQ(
      message_of<Error>([&] { y.backward(ones()); }),
      "checkpoint: a tensor of shape [4] saved for backward has been modified in place since");
}

TEST(Checkpoint, RefusesABodyThatReturnsAnotherNumberOfTensorsWhenRunAgain) {
  const Tensor x = variable({4}, 1);
  int runs = 0;
  const auto y = checkpoint(
      [&](const TensorList& in) { return TensorList(static_cast<std::size_t>(++runs), in[0]); },
      {x});
  EXPECT_EQ(message_of<Error>([&] { y[0].backward(ones()); }),
            "checkpoint: body must return the same 1 tensors when run again, got 2");
}

TEST(Checkpoint, KeepsOnlyItsInputsBetweenForwardAndBackward) {
  constexpr std::int64_t kBytes = 1000 * 4;
  constexpr int kBlocks = 8;
  const Tensor w = randn({1000}, 2, Dtype::kFloat32, true);
  const Tensor x = randn({1000}, 1, Dtype::kFloat32, true);
  const Body body = [&w](const TensorList& in) -> TensorList { return {block(in[0], w)}; };
  auto& arena = *RankContext::current().arena();
  std::int64_t kept[2], peak[2];
  for (int i = 0; i < 2; ++i) {
    const auto before = activation_bytes();
    arena.reset_peak();
    Tensor h = x;
    for (int j = 0; j < kBlocks; ++j) h = (i == 0 ? plain : recomputed)(body, {h})[0];
    kept[i] = activation_bytes() - before;
    h.backward(Tensor::ones({1000}));
    peak[i] = arena.peak(MemoryTag::kActivations) - before;
    x.set_grad(Tensor());
    w.set_grad(Tensor());
    h = Tensor();
    EXPECT_EQ(activation_bytes(), before);
  }
  // A plain block keeps its input and x * w; one that recomputes keeps its input. The first input
  // is no activation of ours, the output of the last block is.
  EXPECT_EQ(kept[0], (2 * kBlocks) * kBytes);
  EXPECT_EQ(kept[1], kBlocks * kBytes);
  EXPECT_LT(peak[1], peak[0]);
}

TEST(Checkpoint, GradientsOfInputsAreActivationsOnTheirWay) {
  const Tensor x = variable({8}, 1);
  auto& arena = *RankContext::current().arena();
  const auto before = arena.live()[MemoryTag::kGradients];
  std::int64_t during = -1;
  const Tensor h = test::probe(x, "look", [&](const Tensor& grad) {
    during = arena.live()[MemoryTag::kGradients];
    return TensorList{grad};
  });
  checkpoint(square, {h})[0].backward(ones(8));
  EXPECT_EQ(during, before);
  EXPECT_EQ(arena.live()[MemoryTag::kGradients], before + 64);
}

TEST(Checkpoint, DoesNotPackWhatForwardThrowsAway) {
  const Tensor x = variable({4}, 1);
  int packed = 0;
  const SavedTensorHooksGuard hooks(
      {.pack =
           [&](const TensorToSave& saved) {
             ++packed;
             return std::any(saved.tensor);
           },
       .unpack = [](const std::any& value) { return std::any_cast<Tensor>(value); }});
  const auto y = checkpoint(square, {x});
  EXPECT_EQ(packed, 1);
}

class CheckpointScopes : public ::testing::Test {
 protected:
  ScopeGuard open(const std::string& name) {
    return ScopeGuard(
        name, [this, name] { events_.push_back("enter " + name); },
        [this, name] { events_.push_back("exit " + name); });
  }
  std::vector<std::string> events_;
};

TEST_F(CheckpointScopes, RecomputationBelongsToTheScopeOfForward) {
  const Tensor x = variable({4}, 1);
  std::vector<std::string> paths;
  const Body body = [&](const TensorList& in) -> TensorList {
    paths.push_back(ScopeGuard::current() ? ScopeGuard::current()->path() : "none");
    Tensor h;
    {
      const auto scope = open("layer.attention");
      h = mul(in[0], in[0]);
      if (h.requires_grad()) {
        EXPECT_EQ(h.grad_fn()->scope()->parent->path(), "layer");
      }
    }
    const auto scope = open("layer.mlp");
    return {mul(h, h)};
  };
  Tensor y;
  {
    const auto model = open("model");
    Tensor h;
    {
      const auto layer = open("layer");
      h = checkpoint(body, {mul(x, x)})[0];
    }
    y = mul(h, h);
  }
  {
    const auto elsewhere = open("elsewhere");
    y.backward(ones());
    EXPECT_EQ(ScopeGuard::current()->path(), "elsewhere");
  }
  EXPECT_EQ(paths, (std::vector<std::string>{"layer", "layer"}));
  EXPECT_EQ(events_,
            (std::vector<std::string>{"enter model", "enter layer", "enter layer.mlp",
                                      "exit layer.mlp", "enter layer.attention",
                                      "exit layer.attention", "exit layer", "exit model"}));
}

TEST_F(CheckpointScopes, AModuleInsideEntersOnceForEachRecomputation) {
  const Tensor x = variable({4}, 1);
  const Body inner = [&](const TensorList& in) -> TensorList {
    const auto scope = open("inner");
    return {mul(in[0], in[0])};
  };
  const Body outer = [&](const TensorList& in) -> TensorList {
    const auto scope = open("outer");
    return checkpoint(inner, {mul(in[0], in[0])});
  };
  checkpoint(outer, {x})[0].backward(ones());
  EXPECT_EQ(events_,
            (std::vector<std::string>{"enter outer", "enter inner", "exit inner", "exit outer"}));
}

TEST_F(CheckpointScopes, AnExceptionInTheBodyRestoresScopeAndTape) {
  const Tensor x = variable({4}, 1);
  int runs = 0;
  const auto y = checkpoint(
      [&](const TensorList& in) -> TensorList {
        if (++runs == 2) throw ValueError("body: no");
        return {mul(in[0], in[0])};
      },
      {x});
  const auto scope = open("outside");
  const NoGradGuard no_grad;
  EXPECT_THROW(y[0].backward(ones()), ValueError);
  EXPECT_EQ(ScopeGuard::current()->path(), "outside");
  EXPECT_FALSE(grad_enabled());
  EXPECT_THROW(queue_backward_callback([] {}), Error);
}

TEST(Checkpoint, CallbacksRunAtTheEndOfTheOutermostBackward) {
  const Tensor x = variable({4}, 1);
  std::vector<std::string> events;
  const Body body = [&](const TensorList& in) -> TensorList {
    return {test::probe(in[0], "inside", [&](const Tensor& grad) {
      queue_backward_callback([&] { events.push_back("callback"); });
      return TensorList{grad};
    })};
  };
  const Tensor h = test::probe(x, "before", [&](const Tensor& grad) {
    events.push_back("before");
    return TensorList{grad};
  });
  checkpoint(body, {h})[0].backward(ones());
  EXPECT_EQ(events, (std::vector<std::string>{"before", "callback"}));
}

}  // namespace
}  // namespace moegrad::checkpoint_test
