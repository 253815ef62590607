// SPDX-License-Identifier: Apache-2.0
#include "framework/autograd/swap_space.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "framework/autograd/checkpoint_policy.h"
#include "framework/autograd/engine.h"
#include "framework/autograd/micro_batch.h"
#include "framework/runtime/arena.h"
#include "framework/runtime/grad_mode.h"
#include "framework/runtime/rank_context.h"
#include "tests/framework/autograd/test_functions.h"
#include "tests/testing.h"

namespace moegrad::swap_space_test {
namespace {

using namespace test;
using namespace std::chrono_literals;

constexpr auto kSave = CheckpointPolicy::kMustSave, kOffload = CheckpointPolicy::kMustCpuOffload,
               kPreferOffload = CheckpointPolicy::kPreferCpuOffload;
constexpr std::int64_t kBytes = 1000 * 8;  // of a float64 [1000]

CheckpointPolicyFunction says(CheckpointPolicy what, const std::string& op) {
  return [what, op](const OpResult& result) { return result.op == op ? what : kSave; };
}
std::int64_t swapped_out() { return RankContext::current().counters().swapped_out_bytes; }
std::int64_t swapped_in() { return RankContext::current().counters().swapped_in_bytes; }
const Arena& arena() { return *RankContext::current().arena(); }
std::int64_t activation_bytes() { return arena().live()[MemoryTag::kActivations]; }

Tensor taken_gradient(const Tensor& leaf) {
  const Tensor grad = leaf.grad();
  leaf.set_grad({});
  return grad;
}

// The gradient of `factors` products in a row, each of which saves the one before. `at_end` runs
// between forward and backward.
template <class AtEnd>
Tensor gradient_of_chain(int factors, const AtEnd& at_end) {
  const Tensor x = randn({1000}, 1).set_requires_grad(true), w = randn({1000}, 2);
  Tensor y = x;
  for (int i = 0; i < factors; ++i) y = mul(y, y);
  at_end();
  y.backward(w);
  return x.grad();
}
Tensor gradient_of_chain(int factors) {
  return gradient_of_chain(factors, [] {});
}

TEST(SwapSpace, GivesTheBitsOfNoPolicyWhateverIsSwapped) {
  for (const auto dtype : {Dtype::kFloat32, Dtype::kFloat64, Dtype::kBFloat16}) {
    const TensorList expected = products_of_each_other(dtype);
    for (const std::int64_t window : {1, 100, 1 << 20}) {
      for (const auto* op : {"mul", "add", "every"}) {
        for (std::uint64_t seed = 0; seed < 3; ++seed) {
          const auto swap =
              SwapSpace::make({.window = window, .jitter = {.maximum = 300us, .seed = seed}});
          const auto policy = [op = std::string(op)](const OpResult& result) {
            return op == "every" || result.op == op ? kOffload : kSave;
          };
          const CheckpointPolicyGuard guard(policy, swap);
          const TensorList got = products_of_each_other(dtype);
          for (std::size_t i = 0; i < got.size(); ++i) {
            EXPECT_TRUE(bitwise_equal(got[i], expected[i])) << op << ' ' << window << ' ' << i;
          }
          EXPECT_EQ(swap->host().live().total(), 0);
        }
      }
    }
  }
}

TEST(SwapSpace, GoesWithResultsThatAreMadeAgain) {
  const TensorList expected = products_of_each_other(Dtype::kFloat32);
  for (const auto* swapped : {"mul", "add"}) {
    const auto swap = SwapSpace::make({.window = 100});
    const CheckpointPolicyGuard guard(
        [swapped = std::string(swapped)](const OpResult& result) {
          return result.op == swapped ? kOffload : CheckpointPolicy::kMustRecompute;
        },
        swap);
    const auto before = RankContext::current().counters().recomputed_ops.load();
    const auto in = swapped_in();
    const TensorList got = products_of_each_other(Dtype::kFloat32);
    for (std::size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(bitwise_equal(got[i], expected[i]));
    EXPECT_GT(RankContext::current().counters().recomputed_ops, before);
    EXPECT_GT(swapped_in(), in);
  }
}

// Forward leaves the window's bytes, and backward asks for no more at a time.
TEST(SwapSpace, HoldsNoMoreThanItsWindowWhateverTheDelays) {
  constexpr int kFactors = 12;
  const Tensor expected = gradient_of_chain(kFactors);
  for (const std::int64_t window : {1, 2, 3, 20}) {
    std::set<std::int64_t> after_forward, peaks;
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      const auto swap =
          SwapSpace::make({.window = window * kBytes, .jitter = {.maximum = 400us, .seed = seed}});
      const CheckpointPolicyGuard guard(says(kOffload, "mul"), swap);
      RankContext::current().arena()->reset_peak();
      const auto before = activation_bytes();
      const auto out = swapped_out(), in = swapped_in();
      const Tensor got =
          gradient_of_chain(kFactors, [&] { after_forward.insert(activation_bytes() - before); });
      EXPECT_TRUE(bitwise_equal(got, expected));
      peaks.insert(arena().peak(MemoryTag::kActivations) - before);
      EXPECT_EQ(swapped_out() - out, (kFactors - 1) * kBytes);
      EXPECT_EQ(swapped_in() - in, std::max<std::int64_t>(0, kFactors - 1 - window) * kBytes);
    }
    // x, w, y and what has not left the window.
    const auto resident = std::min<std::int64_t>(window, kFactors - 1);
    EXPECT_EQ(after_forward, std::set<std::int64_t>{(3 + resident) * kBytes});
    EXPECT_EQ(peaks.size(), 1U);
    // Beside these, in backward, what is in use and the gradients of a product.
    EXPECT_LE(*peaks.begin(), (3 + resident + 4) * kBytes) << window;
  }
}

TEST(SwapSpace, MovesOnceWhatIsSavedTwiceOrInParts) {
  const Tensor x = randn({12}, 1).set_requires_grad(true);
  const Tensor w = randn({6}, 2).set_requires_grad(true);
  const auto run = [&] {
    Tensor z;
    {
      const auto parts = halves(x);  // each is saved twice
      z = add(mul(parts[0], mul(parts[1], w)), mul(parts[1], mul(parts[0], w)));
    }
    z.backward(randn({6}, 3));
    return TensorList{taken_gradient(x), taken_gradient(w)};
  };
  const auto expected = run();
  const auto swap = SwapSpace::make({.window = 1});
  const CheckpointPolicyGuard guard(says(kOffload, "halves"), swap);
  const auto out = swapped_out(), in = swapped_in();
  const auto got = run();
  for (std::size_t i = 0; i < 2; ++i) EXPECT_TRUE(bitwise_equal(got[i], expected[i])) << i;
  EXPECT_EQ(swapped_out() - out, 2 * 6 * 8);
  EXPECT_EQ(swapped_in() - in, 1 * 6 * 8);  // the other has not left
}

TEST(SwapSpace, MovesAResultThatItsOwnOpHasSaved) {
  const Tensor x = randn({1000}, 1).set_requires_grad(true), w = randn({1000}, 2);
  const auto before = activation_bytes();
  const auto run = [&](std::int64_t results) {
    const Tensor z = mul(mul(softsign(x), w), w);
    EXPECT_EQ(activation_bytes() - before, results * kBytes);
    z.backward(w);
    return taken_gradient(x);
  };
  const Tensor expected = run(3);
  const CheckpointPolicyGuard guard([](const OpResult&) { return kOffload; },
                                    SwapSpace::make({.window = 1}));
  const auto out = swapped_out();
  EXPECT_TRUE(bitwise_equal(run(2), expected));  // the last and the one that is leaving
  EXPECT_EQ(swapped_out() - out, 2 * kBytes);
}

TEST(SwapSpace, GivesViewsBack) {
  const Tensor x = randn({12}, 1).set_requires_grad(true);
  const auto run = [&] {
    Tensor z;
    {
      const Tensor y = mul(x, x), other = mul(y, y);
      z = mul(second_half(y), second_half(other));
    }
    z.backward(randn({6}, 3));
    return taken_gradient(x);
  };
  const Tensor expected = run();
  const CheckpointPolicyGuard guard(says(kOffload, "mul"), SwapSpace::make({.window = 1}));
  EXPECT_TRUE(bitwise_equal(run(), expected));
}

// A write waits for the copy out.
TEST(SwapSpace, GivesBackWhatWasSavedThoughItHasBeenEditedSince) {
  for (const std::int64_t window : {1, 1 << 20}) {
    const Tensor x = randn({1000}, 1).set_requires_grad(true), w = randn({1000}, 2);
    const auto swap = SwapSpace::make({.window = window, .jitter = {.maximum = 2ms}});
    const CheckpointPolicyGuard guard(says(kOffload, "mul"), swap);
    Tensor y = mul(x, w);
    const Tensor z = mul(y, y);
    {
      const NoGradGuard no_grad;
      fill_(y, 3);
    }
    z.backward(w);
    const Tensor xw = mul(x.detach(), w);
    EXPECT_TRUE(bitwise_equal(x.grad(), mul(add(mul(w, xw), mul(w, xw)), w)));
  }
}

TEST(SwapSpace, KeepsWhatIsEditedBeforeItIsSaved) {
  const Tensor x = randn({4}, 1).set_requires_grad(true);
  const CheckpointPolicyGuard guard(says(kOffload, "mul"), SwapSpace::make());
  const auto out = swapped_out();
  Tensor y = mul(x, x);
  {
    const NoGradGuard no_grad;
    fill_(y, 3);
  }
  add(y, mul(y, y)).backward(x.detach());
  EXPECT_EQ(swapped_out(), out);
}

TEST(SwapSpace, SwapsForWhoeverSavesAndNobodyElse) {
  const Tensor x = randn({4}, 1).set_requires_grad(true), constant = randn({4}, 2);
  const auto swap = SwapSpace::make();
  const auto out = swapped_out();
  Tensor y;
  {
    const CheckpointPolicyGuard guard(says(kOffload, "mul"), swap);
    const Tensor off_the_tape = mul(constant, constant);
    mul(off_the_tape, off_the_tape);
    const NoGradGuard no_grad;
    mul(x, mul(x, x));
  }
  EXPECT_EQ(swapped_out(), out);
  {
    const CheckpointPolicyGuard guard(says(kOffload, "mul"), swap);
    y = mul(x, x);
  }
  const Tensor z = mul(y, y);  // after the guard
  EXPECT_EQ(swapped_out() - out, 4 * 8);
}

TEST(SwapSpace, AsksWhatComesNextInTheOrderOfTheTape) {
  std::vector<std::string> asked;
  SwapOptions options{.window = 2 * kBytes};
  options.next = [&](const SwappedTensor& used, std::span<const SwappedTensor* const> away) {
    const auto answer = in_tape_order(used, away);
    EXPECT_EQ(used.bytes, kBytes);
    asked.push_back(std::to_string(used.number) + " of " + std::to_string(away.size()) + ": " +
                    std::to_string(answer));
    return answer;
  };
  const CheckpointPolicyGuard guard(says(kOffload, "mul"), SwapSpace::make(options));
  gradient_of_chain(6);  // saves 0 to 4, of which 3 and 4 stay
  EXPECT_EQ(asked, (std::vector<std::string>{"4 of 3: 2", "2 of 2: 1", "2 of 2: 1", "1 of 1: 0",
                                             "1 of 1: 0"}));
}

// Two micro-batches, the first of which goes backward first, as in a pipeline.
TEST(SwapSpace, LetsAScheduleSayWhatComesNext) {
  const Tensor x = randn({1000}, 1).set_requires_grad(true), w = randn({1000}, 2);
  const auto run = [&] {
    std::vector<Tensor> results;
    for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
      const MicroBatchGuard guard(micro_batch);
      Tensor y = x;
      for (int i = 0; i < 5; ++i) y = mul(y, y);
      results.push_back(y);
    }
    for (auto& y : results) std::exchange(y, Tensor()).backward(w);
    return taken_gradient(x);
  };
  const Tensor expected = run();
  for (const bool by_schedule : {false, true}) {
    std::vector<int> fetched;  // ahead of their use
    SwapOptions options{.window = 2 * kBytes};
    options.next = [&](const SwappedTensor& used,
                       std::span<const SwappedTensor* const> away) -> std::ptrdiff_t {
      // One of the same micro-batch, else the last of the next one.
      auto answer = in_tape_order(used, away);
      if (by_schedule && answer < 0 && used.micro_batch == 0) answer = std::ssize(away) - 1;
      if (answer >= 0)
        fetched.push_back(static_cast<int>(away[static_cast<std::size_t>(answer)]->number));
      return answer;
    };
    const CheckpointPolicyGuard guard(says(kOffload, "mul"), SwapSpace::make(options));
    EXPECT_TRUE(bitwise_equal(run(), expected));
    EXPECT_EQ(std::ranges::count(fetched, 7) > 0, by_schedule);
  }
}

TEST(SwapSpace, RefusesAnAnswerThatNamesNothing) {
  SwapOptions options{.window = 1};
  options.next = [](const SwappedTensor&, std::span<const SwappedTensor* const>) { return 7; };
  const CheckpointPolicyGuard guard(says(kOffload, "mul"), SwapSpace::make(options));
  EXPECT_EQ(message_of<ValueError>([] { gradient_of_chain(4); }),
            "swap space: next must return -1 or a position in [0, 2), got 7");
}

TEST(SwapSpace, FreesWhatBackwardNeverAsksFor) {
  const auto swap = SwapSpace::make({.window = 2 * kBytes, .jitter = {.maximum = 1ms}});
  const auto before = activation_bytes();
  {
    const CheckpointPolicyGuard guard(says(kOffload, "mul"), swap);
    const Tensor x = randn({1000}, 1).set_requires_grad(true);
    Tensor y = x;
    for (int i = 0; i < 6; ++i) y = mul(y, y);
    EXPECT_EQ(swap->host().live().total(), 5 * kBytes);
  }
  EXPECT_EQ(activation_bytes(), before);
  EXPECT_EQ(swap->host().live().total(), 0);
}

TEST(SwapSpace, GoesBackwardTwiceWithTheGraphKept) {
  const Tensor x = randn({1000}, 1).set_requires_grad(true), w = randn({1000}, 2);
  const auto run = [&] {
    Tensor y = x;
    for (int i = 0; i < 5; ++i) y = mul(y, y);
    y.backward(w, true);
    y.backward(w);
    return taken_gradient(x);
  };
  const Tensor expected = run();
  const CheckpointPolicyGuard guard(says(kOffload, "mul"), SwapSpace::make({.window = kBytes}));
  EXPECT_TRUE(bitwise_equal(run(), expected));
}

// Between two backwards, where it has not left, and where it has come back.
TEST(SwapSpace, NoticesAnEditOfWhatIsBack) {
  for (const std::int64_t window : {std::int64_t{1}, 8 * kBytes}) {
    const CheckpointPolicyGuard guard(says(kOffload, "mul"), SwapSpace::make({.window = window}));
    const Tensor x = randn({1000}, 1).set_requires_grad(true), w = randn({1000}, 2);
    const Tensor kept = mul(x, x), y = mul(mul(kept, kept), kept);
    y.backward(w, true);
    const Tensor first = taken_gradient(x);
    Tensor alias = kept.detach();
    fill_(alias, 2);
    if (window == 1) {
      y.backward(w);  // it has left, as it was saved
      EXPECT_TRUE(bitwise_equal(taken_gradient(x), first));
    } else {
      EXPECT_EQ(message_of<Error>([&] { y.backward(w); }),
                "swap space: a tensor of 8000 bytes saved for backward in '' has been modified in "
                "place since");
    }
  }
}

TEST(SwapSpace, FetchesNothingAheadBeyondTheRanksBudget) {
  auto& budget = *RankContext::current().arena();
  const Tensor x = randn({1000}, 1).set_requires_grad(true), w = randn({1000}, 2);
  Tensor ballast;
  const auto run = [&](bool is_short) {
    const auto note = [&](const Tensor& grad) -> TensorList {
      if (is_short) {
        ballast = Tensor::empty({1000000});
        budget.set_budget(budget.live().total() + 2 * kBytes);
      }
      return {grad};
    };
    Tensor y = x;
    for (int i = 0; i < 10; ++i) y = i == 8 ? probe(mul(y, y), "probe", note) : mul(y, y);
    y.backward(w);
    budget.set_budget(0);
    return taken_gradient(x);
  };
  const Tensor expected = run(false);
  const CheckpointPolicyGuard guard(says(kOffload, "mul"), SwapSpace::make({.window = 8 * kBytes}));
  EXPECT_TRUE(bitwise_equal(run(true), expected));
}

TEST(SwapSpace, EndsWhereTheHostsArenaIsTooSmall) {
  const auto swap = SwapSpace::make({.window = 1, .host_budget = 2 * kBytes});
  const CheckpointPolicyGuard guard(says(kOffload, "mul"), swap);
  const auto message = message_of<MemoryBudgetError>([] { gradient_of_chain(6); });
  EXPECT_TRUE(message.starts_with("swap space, host's arena: ")) << message;
  EXPECT_EQ(swap->host().live().total(), 0);
  gradient_of_chain(3);
}

TEST(SwapSpace, RefusesWhatCannotBeSwapped) {
  const Tensor x = randn({4}, 1).set_requires_grad(true);
  const auto view = [&] {
    return unary(
        x, "same", [](const Tensor& given) { return given; },
        [](const Tensor& grad) { return grad; });
  };
  const auto refusal = [&](CheckpointPolicy what, const std::string& op, const auto& run) {
    const CheckpointPolicyGuard guard(says(what, op), SwapSpace::make());
    return message_of<Error>([&] { run(); });
  };
  EXPECT_EQ(refusal(kOffload, "same", view),
            "same: result 0 must be offloaded by its policy, but cannot: it is a view of an input; "
            "return kPreferCpuOffload or kMustSave for it");
  const auto parameter = [&] {
    const MemoryTagGuard tag(MemoryTag::kParameters);
    return mul(x, x);
  };
  EXPECT_EQ(refusal(kOffload, "mul", parameter),
            "mul: result 0 must be offloaded by its policy, but cannot: it is a parameter; return "
            "kPreferCpuOffload or kMustSave for it");
  const auto empty = [] {
    const Tensor none = Tensor::empty({0}, Dtype::kFloat64).set_requires_grad(true);
    return mul(none, none);
  };
  EXPECT_EQ(refusal(kOffload, "mul", empty),
            "mul: result 0 must be offloaded by its policy, but cannot: it has no bytes; return "
            "kPreferCpuOffload or kMustSave for it");
  const auto packed = [&] {
    return unary(
        x, "packed",
        [](const Tensor&) {
          return Tensor::empty_nz({16, 16}, {1, 16, 16}, Dtype::kFloat64);
        },
        [](const Tensor& grad) { return grad; });
  };
  EXPECT_EQ(refusal(kOffload, "packed", packed),
            "packed: result 0 must be offloaded by its policy, but cannot: it is FRACTAL_NZ; "
            "return kPreferCpuOffload or kMustSave for it");
  const CheckpointPolicyGuard prefers([](const OpResult&) { return kPreferOffload; },
                                      SwapSpace::make());
  const auto out = swapped_out();
  const Tensor same = view(), weight = parameter();
  mul(mul(same, weight), empty().numel() == 0 ? same : weight);
  EXPECT_EQ(swapped_out() - out, 4 * 8);  // the first product
}

// What should have filled them, such as a collective, has failed.
class LostBytes final : public PendingBytes {
 public:
  void wait() override { throw Error("lost"); }
};

// It saves a tensor that it does not read.
class Keeps final : public Function {
 public:
  std::string_view name() const override { return "keeps"; }
  Tensor forward(const Tensor& x) {
    x_ = x;
    return Tensor::ones(x.shape(), x.dtype());
  }
  TensorList backward(const TensorList& grads, InputMask /*needs*/) override {
    return {mul(grads[0], x_.unpack())};
  }

 private:
  SavedTensor x_{*this};
};

TEST(SwapSpace, ThrowsWhatWentWrongWithTheBytesThatItCopies) {
  const Tensor x = randn({4}, 1).set_requires_grad(true);
  const auto lost = [&] {
    return unary(
        x, "lost",
        [](const Tensor& given) {
          const Tensor bytes = clone(given);
          bytes.storage().fill_by(std::make_unique<LostBytes>());
          return bytes;
        },
        [](const Tensor& grad) { return grad; });
  };
  const CheckpointPolicyGuard guard([](const OpResult&) { return kPreferOffload; },
                                    SwapSpace::make({.window = 1}));
  EXPECT_EQ(message_of<Error>([&] { apply<Keeps>(apply<Keeps>(lost())); }), "lost");
}

TEST(SwapSpace, RefusesAPolicyWithoutOne) {
  const Tensor x = randn({4}, 1).set_requires_grad(true);
  for (const auto what : {kOffload, kPreferOffload}) {
    const CheckpointPolicyGuard guard(says(what, "mul"));
    EXPECT_EQ(
        message_of<Error>([&] { mul(x, x); }),
        "mul: result 0 is to be offloaded by its policy, which has no SwapSpace; give it one");
  }
}

TEST(SwapSpace, RefusesOptionsOutOfRange) {
  const auto refusal = [](const SwapOptions& options) {
    return message_of<ValueError>([&] { SwapSpace::make(options); });
  };
  EXPECT_EQ(refusal({.window = 0}), "swap space: window must be above 0, got 0");
  EXPECT_EQ(refusal({.host_budget = -1}), "swap space: host_budget must not be negative, got -1");
  EXPECT_EQ(refusal({.link = {.latency = -5ns}}),
            "swap space: latency must not be negative, got -5 ns");
  EXPECT_EQ(refusal({.link = {.bytes_per_second = -1}}),
            "swap space: bytes_per_second must not be negative, got -1");
  EXPECT_EQ(refusal({.link = {.bytes_per_second = std::numeric_limits<double>::quiet_NaN()}}),
            "swap space: bytes_per_second must not be negative, got nan");
  EXPECT_EQ(refusal({.next = nullptr}), "swap space: next must be a function, got an empty one");
}

TEST(SwapSpace, CountsHowLongTheRankWaits) {
  const auto waited = [](std::chrono::nanoseconds latency) {
    auto& wait = RankContext::current().counters().swap_wait;
    const auto before = wait.load();
    const CheckpointPolicyGuard guard(says(kOffload, "mul"),
                                      SwapSpace::make({.window = 1, .link = {.latency = latency}}));
    gradient_of_chain(4);
    return wait - before;
  };
  // Three go out, one after the other, and two come back.
  EXPECT_GE(waited(5ms), std::chrono::nanoseconds(4 * 5ms).count() / 2);
}

}  // namespace
}  // namespace moegrad::swap_space_test
