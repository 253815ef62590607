// SPDX-License-Identifier: Apache-2.0
// A weight that is used at both ends of a model.
#include "framework/autograd/weight_use.h"

#include <gtest/gtest.h>

#include <functional>
#include <utility>
#include <vector>

#include "framework/autograd/checkpoint.h"
#include "framework/autograd/engine.h"
#include "framework/autograd/grad.h"
#include "framework/autograd/gradient_sum.h"
#include "framework/autograd/micro_batch.h"
#include "framework/runtime/rank_context.h"
#include "framework/tensor/tensor_impl.h"
#include "tests/framework/autograd/test_functions.h"
#include "tests/testing.h"

namespace moegrad::weight_use_test {
namespace {

using namespace test;

constexpr int kMicroBatches = 4;
constexpr std::int64_t kSize = 64, kBytes = kSize * 8;

Tensor weight() { return variable({kSize}, 1); }
Tensor input(int m) { return randn({kSize}, 10 + static_cast<std::uint64_t>(m)); }
Tensor cotangent(int m) { return randn({kSize}, 20 + static_cast<std::uint64_t>(m)); }

Tensor embed(const Tensor& x, const Tensor& w) { return mul(x, add(x, w)); }
Tensor head(const Tensor& h, const Tensor& w) { return mul(h, w); }

Tensor forward(const Tensor& x, const Tensor& w) {
  const Tensor hidden = embed(x, w);
  const WeightUseGuard use(1);
  return head(hidden, w);
}

/// What use `use` brings in micro-batch m: found with a weight for each use.
Tensor term(int use, int m) {
  const Tensor w[2] = {weight(), weight()};
  head(embed(input(m), w[0]), w[1]).backward(cotangent(m));
  return w[use].grad();
}

Tensor sum(Tensor a, const Tensor& b) {
  a = clone(a);
  add_(a, b);
  return a;
}

/// (a_0 + a_1) + (a_2 + a_3)
Tensor tree(const std::function<Tensor(int)>& term_of) {
  return sum(sum(term_of(0), term_of(1)), sum(term_of(2), term_of(3)));
}

Tensor tree_of_use(int use) {
  return tree([use](int m) { return term(use, m); });
}
Tensor uses_added_last() { return sum(tree_of_use(0), tree_of_use(1)); }
Tensor uses_added_first() {
  return tree([](int m) { return sum(term(0, m), term(1, m)); });
}

using Forward = std::function<Tensor(const Tensor& x, const Tensor& w)>;

/// The sum over the micro-batches, one after the other.
Tensor one_by_one(const Forward& run, const Tensor& w = weight()) {
  GradientSum gradients({w});
  for (int m = 0; m < kMicroBatches; ++m) {
    run(input(m), w).backward(cotangent(m));
    gradients.push();
    EXPECT_FALSE(w.grad().defined());
  }
  gradients.finish();
  return w.grad();
}

TEST(TiedWeight, SumsEachUseOverMicroBatchesAndAddsTheSums) {
  EXPECT_TRUE(bitwise_equal(one_by_one(forward), uses_added_last()));
  EXPECT_FALSE(bitwise_equal(uses_added_last(), uses_added_first()));
}

TEST(TiedWeight, WithoutAGuardAddsItsUsesWithinTheMicroBatch) {
  const auto plain = [](const Tensor& x, const Tensor& w) { return head(embed(x, w), w); };
  EXPECT_TRUE(bitwise_equal(one_by_one(plain), uses_added_first()));
}

/// `body` recomputed, with w captured or as an input.
Tensor recomputed(const Forward& body, const Tensor& x, const Tensor& w, bool captured) {
  if (captured) {
    return checkpoint([=](const TensorList& in) -> TensorList { return {body(in[0], w)}; }, {x})[0];
  }
  return checkpoint([=](const TensorList& in) -> TensorList { return {body(in[0], in[1])}; },
                    {x, w})[0];
}

TEST(TiedWeight, KeepsItsUsesWhereTheyAreRecomputed) {
  for (const bool captured : {false, true}) {
    const auto around = [&](const Tensor& x, const Tensor& w) {
      const Tensor hidden = recomputed(embed, x, w, captured);
      const WeightUseGuard use(1);
      return recomputed(head, hidden, w, captured);
    };
    EXPECT_TRUE(bitwise_equal(one_by_one(around), uses_added_last())) << captured;
    const auto within = [&](const Tensor& x, const Tensor& w) {
      return recomputed(forward, x, w, captured);
    };
    EXPECT_TRUE(bitwise_equal(one_by_one(within), uses_added_last())) << captured;
    // The innermost guard counts, also where it sets use 0.
    const auto turned = [&](const Tensor& x, const Tensor& w) {
      const WeightUseGuard use(1);
      return recomputed(
          [](const Tensor& in, const Tensor& own) {
            const Tensor hidden = [&] {
              const WeightUseGuard inner(0);
              return embed(in, own);
            }();
            return head(hidden, own);
          },
          x, w, captured);
    };
    EXPECT_TRUE(bitwise_equal(one_by_one(turned), uses_added_last())) << captured;
  }
}

TEST(TiedWeight, ThatARecomputedBodyDoesNotReachGetsZerosOfItsUse) {
  const Tensor w = weight();
  GradientSum gradients({w});
  const WeightUseGuard use(1);
  recomputed([](const Tensor& x, const Tensor& /*w*/) { return mul(x, x); }, input(0), w,
             /*captured=*/false)
      .backward(cotangent(0));
  gradients.push();
  const auto uses = gradients.take_uses()[0];
  ASSERT_EQ(uses.size(), 2U);
  EXPECT_FALSE(uses[0].defined());
  EXPECT_TRUE(bitwise_equal(uses[1], zeros_like(w.detach())));
}

/// Each micro-batch under its guard, before or after that of the use.
TensorList pair_of_outputs(const Tensor& w, int first, bool use_outside, bool recompute) {
  TensorList hidden(2), outputs(2);
  for (int j = 0; j < 2; ++j) {
    const MicroBatchGuard guard(j);
    hidden[static_cast<std::size_t>(j)] = embed(input(first + j), w);
  }
  const auto run = [&](const Tensor& h) {
    return recompute ? recomputed(head, h, w, /*captured=*/true) : head(h, w);
  };
  for (int j = 0; j < 2; ++j) {
    const auto& h = hidden[static_cast<std::size_t>(j)];
    auto& output = outputs[static_cast<std::size_t>(j)];
    if (use_outside) {
      const WeightUseGuard use(1);
      const MicroBatchGuard guard(j);
      output = run(h);
    } else {
      const MicroBatchGuard guard(j);
      const WeightUseGuard use(1);
      output = run(h);
    }
  }
  return outputs;
}

TEST(TiedWeight, SumsEachUseOverTheMicroBatchesOfOneBackward) {
  for (const bool use_outside : {false, true}) {
    for (const bool recompute : {false, true}) {
      const Tensor w = weight();
      GradientSum gradients({w});
      for (const int first : {0, 2}) {
        run_backward(pair_of_outputs(w, first, use_outside, recompute),
                     {cotangent(first), cotangent(first + 1)}, /*retain_graph=*/false);
        gradients.push();
      }
      EXPECT_TRUE(bitwise_equal(gradients.take()[0], uses_added_last()))
          << use_outside << recompute;
    }
  }
}

TEST(TiedWeight, SumsEachUseInTwoCallsAndInGrad) {
  const Tensor w = weight();
  GradientSum gradients({w});
  for (int m = 0; m < kMicroBatches; ++m) {
    const Tensor x = input(m).set_requires_grad(true);
    backward_to_inputs({recomputed(forward, x, w, /*captured=*/true)}, {cotangent(m)}, {x}).run();
    gradients.push();
  }
  EXPECT_TRUE(bitwise_equal(gradients.take()[0], uses_added_last()));
  TensorList of_pairs;
  for (const int first : {0, 2}) {
    of_pairs.push_back(autograd::grad(pair_of_outputs(w, first, true, false), {w},
                                      {cotangent(first), cotangent(first + 1)})[0]);
    const auto of_use = [&](int use) { return sum(term(use, first), term(use, first + 1)); };
    EXPECT_TRUE(bitwise_equal(of_pairs.back(), sum(of_use(0), of_use(1)))) << first;
  }
}

// So that a hook may replace it.
TEST(TiedWeight, GivesAHookTheWholeGradientOfEachMicroBatch) {
  const Tensor w = weight();
  TensorList seen;
  auto hook = w.register_hook([&](const Tensor& grad) {
    seen.push_back(clone(grad));
    return Tensor();
  });
  EXPECT_TRUE(bitwise_equal(one_by_one(forward, w), uses_added_first()));
  ASSERT_EQ(seen.size(), 4U);
  for (int m = 0; m < kMicroBatches; ++m) {
    EXPECT_TRUE(bitwise_equal(seen[static_cast<std::size_t>(m)], sum(term(0, m), term(1, m))));
  }
  EXPECT_EQ(w.impl()->leaf_state().uses, nullptr);
  w.set_grad(Tensor());
  run_backward(pair_of_outputs(w, 0, true, false), {cotangent(0), cotangent(1)}, false);
  EXPECT_EQ(seen.size(), 6U);
  EXPECT_TRUE(
      bitwise_equal(w.grad(), sum(sum(term(0, 0), term(1, 0)), sum(term(0, 1), term(1, 1)))));
}

// --- grad() without a GradientSum

TEST(TiedWeight, ShowsTheSumOfItsUsesAfterEveryBackward) {
  const Tensor w = weight();
  Tensor first, second;
  for (int m = 0; m < kMicroBatches; ++m) {
    forward(input(m), w).backward(cotangent(m));
    first = m == 0 ? term(0, m) : sum(first, term(0, m));
    second = m == 0 ? term(1, m) : sum(second, term(1, m));
    EXPECT_TRUE(bitwise_equal(w.grad(), sum(first, second))) << m;
  }
}

TEST(TiedWeight, WhoseGradientWasClearedOrChangedBeginsAgainFromIt) {
  const auto second_of = [](const std::function<void(const Tensor&)>& change, GradientSum* sums,
                            const Tensor& w) {
    forward(input(0), w).backward(cotangent(0));
    change(w);
    forward(input(1), w).backward(cotangent(1));
    if (sums != nullptr) {
      sums->push();
      forward(input(2), w).backward(cotangent(2));
      sums->push();
      sums->finish();
    }
    return w.grad();
  };
  const auto expect = [&](const char* what, const std::function<void(const Tensor&)>& change,
                          const Tensor& left) {
    const Tensor first = left.defined() ? sum(left, term(0, 1)) : term(0, 1);
    EXPECT_TRUE(bitwise_equal(second_of(change, nullptr, weight()), sum(first, term(1, 1))))
        << what;
    const Tensor w = weight();
    GradientSum sums({w});
    EXPECT_TRUE(bitwise_equal(second_of(change, &sums, w),
                              sum(sum(first, term(0, 2)), sum(term(1, 1), term(1, 2)))))
        << what;
  };
  const Tensor threes = Tensor::full({kSize}, 3.0, Dtype::kFloat64);
  expect(
      "cleared", [](const Tensor& w) { w.set_grad(Tensor()); }, Tensor());
  expect(
      "replaced", [&](const Tensor& w) { w.set_grad(clone(threes)); }, threes);
  expect(
      "changed in place",
      [](const Tensor& w) {
        Tensor grad = w.grad();
        fill_(grad, 3.0);
      },
      threes);
}

// Whose handle on grad() somebody holds, as a logger may.
TEST(TiedWeight, WritesToNoGradientThatWasHandedOut) {
  const Tensor w = weight();
  forward(input(0), w).backward(cotangent(0));
  const Tensor held = w.grad(), copy = clone(held);
  forward(input(1), w).backward(cotangent(1));
  EXPECT_TRUE(bitwise_equal(held, copy));
  const Tensor alone = weight();  // only the further use brings something
  const WeightUseGuard use(1);
  head(input(0), alone).backward(cotangent(0));
  const Tensor only = alone.grad(), before = clone(only);
  head(input(1), alone).backward(cotangent(1));
  EXPECT_TRUE(bitwise_equal(only, before));
}

TEST(TiedWeight, ThatIsFrozenGetsNothing) {
  const Tensor w = weight();
  const Tensor x = input(0).set_requires_grad(true);
  const Tensor out = forward(x, w);
  Tensor frozen = w;
  frozen.set_requires_grad(false);
  out.backward(cotangent(0));
  EXPECT_FALSE(w.grad().defined());
  EXPECT_EQ(w.impl()->leaf_state().uses, nullptr);
  EXPECT_TRUE(x.grad().defined());
}

// --- memory

std::int64_t gradient_bytes() {
  return RankContext::current().arena()->live()[MemoryTag::kGradients];
}

TEST(TiedWeight, KeepsAGradientForEachUseAndOtherWeightsKeepNothing) {
  const auto before = gradient_bytes();
  const Tensor w = weight(), v = weight();
  GradientSum sums({w, v});
  const auto run = [&](int m) {
    head(forward(input(m), w), v).backward(cotangent(m));
    EXPECT_EQ(v.impl()->leaf_state().uses, nullptr);
  };
  for (const int m : {0, 1}) {
    run(m);
    EXPECT_EQ(gradient_bytes() - before, (3 + 1) * kBytes) << m;
  }
  w.set_grad(Tensor());
  EXPECT_EQ(gradient_bytes() - before, kBytes);
  v.set_grad(Tensor());
  run(0);
  sums.push();
  EXPECT_EQ(gradient_bytes() - before, (2 + 1) * kBytes);
  sums.finish();
  EXPECT_EQ(gradient_bytes() - before, 2 * kBytes);
  w.set_grad(Tensor());
  v.set_grad(Tensor());
  EXPECT_EQ(gradient_bytes() - before, 0);
  // On the last stage of a pipeline grad() is what the one use has brought.
  const WeightUseGuard use(1);
  for (const int m : {0, 1}) {
    head(input(m), v).backward(cotangent(m));
    EXPECT_EQ(gradient_bytes() - before, kBytes) << m;
  }
}

// --- Note [Sums that grad() shows]

std::vector<TensorList> terms_of(int m) { return {{term(0, m), term(1, m)}}; }

TEST(TiedWeight, IsShownByASumThatKeepsItsUsesApart) {
  const Tensor w = weight();
  const auto before = gradient_bytes();
  GradientSum sums({w});
  for (int m = 0; m < kMicroBatches; ++m) {
    sums.add_uses(terms_of(m));
    UseSums expected;
    for (int i = 0; i <= m; ++i) expected.push(terms_of(i)[0]);
    EXPECT_TRUE(bitwise_equal(w.grad(), expected.sum())) << m;
  }
  EXPECT_TRUE(bitwise_equal(w.grad(), uses_added_last()));
  EXPECT_FALSE(bitwise_equal(w.grad(), uses_added_first()));
  w.set_grad(Tensor());
  EXPECT_EQ(gradient_bytes() - before, 0);
  for (int m = 0; m < kMicroBatches; ++m) sums.add_uses(terms_of(m));
  EXPECT_TRUE(bitwise_equal(w.grad(), uses_added_last()));
}

TEST(TiedWeight, GoesOnFromWhatSomebodyLeftInTheGradientThatASumShows) {
  for (const int terms : {1, 2, 3}) {
    const Tensor w = weight();
    GradientSum sums({w});
    for (int m = 0; m < terms; ++m) sums.add_uses(terms_of(m));
    Tensor grad = w.grad();
    fill_(grad, 3.0);
    sums.add_uses(terms_of(3));
    const Tensor threes = Tensor::full({kSize}, 3.0, Dtype::kFloat64);
    EXPECT_TRUE(bitwise_equal(w.grad(), sum(sum(threes, term(0, 3)), term(1, 3)))) << terms;
  }
}

TEST(TiedWeight, SumsItsUsesInTheReducedDtype) {
  const Tensor w = weight();
  GradientSum sums({w}, Dtype::kBFloat16);
  UseSums expected;
  for (int m = 0; m < kMicroBatches; ++m) {
    TensorList terms;
    for (const int use : {0, 1}) terms.push_back(to_dtype(term(use, m), Dtype::kBFloat16));
    sums.add_uses({{clone(terms[0]), clone(terms[1])}});
    expected.push(std::move(terms));
    EXPECT_TRUE(bitwise_equal(w.grad(), to_dtype(expected.sum(), Dtype::kFloat64))) << m;
  }
}

// --- guard

TEST(WeightUseGuard, RefusesNumbersOutOfRangeAndLeavesTheMicroBatch) {
  const auto message = [](int use) {
    return message_of<ValueError>([&] { const WeightUseGuard guard(use); });
  };
  EXPECT_EQ(message(-1), "weight use guard: use must be in [0, 64), got -1");
  EXPECT_EQ(message(64), "weight use guard: use must be in [0, 64), got 64");
  const auto& place = ThreadState::current().micro_batch;
  const MicroBatchGuard micro_batch(3, 2);
  {
    const WeightUseGuard use(1);
    EXPECT_EQ(place.number, 3);
    EXPECT_EQ(place.part, 2);
    const MicroBatchGuard other(4);
    EXPECT_EQ(place.use, 1);
  }
  EXPECT_EQ(place.use, 0);
}

}  // namespace
}  // namespace moegrad::weight_use_test
