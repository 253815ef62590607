// SPDX-License-Identifier: Apache-2.0
#include "framework/runtime/rank_context.h"

#include <gtest/gtest.h>

#include <any>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "framework/autograd/anomaly.h"
#include "framework/autograd/checkpoint.h"
#include "framework/autograd/function.h"
#include "framework/autograd/saved_tensor.h"
#include "framework/autograd/scope.h"
#include "framework/runtime/arena.h"
#include "framework/runtime/grad_mode.h"
#include "framework/runtime/thread_state.h"
#include "framework/tensor/meta.h"
#include "tests/framework/autograd/test_functions.h"
#include "tests/testing.h"

namespace moegrad::rank_context_test {
namespace {

using test::message_of;

TEST(RankContext, OfTheMainThreadIsRankZeroOfOne) {
  auto* main = &RankContext::current();
  EXPECT_EQ(main, &RankContext::current());
  EXPECT_EQ(main->rank(), 0);
  EXPECT_EQ(main->world_size(), 1);
  EXPECT_EQ(main->pool().threads(), 1);
  EXPECT_EQ(main->group(), nullptr);
  EXPECT_EQ(RankContext::find(), main);
}

TEST(RankContext, AnotherThreadBelongsToNoRank) {
  std::jthread([] {
    EXPECT_EQ(RankContext::find(), nullptr);
    const std::string expected =
        "RankContext: this thread must belong to a rank; it is neither the main thread nor one of "
        "launch(): carry the ThreadState of a rank's thread over with ThreadStateGuard, or make a "
        "RankContext with a RankContextGuard";
    EXPECT_EQ(message_of<Error>([] { RankContext::current(); }), expected);
    EXPECT_EQ(message_of<Error>([] { Tensor::zeros({2}); }), expected);
    EXPECT_FALSE(log_enabled(LogLevel::kDebug));
    EXPECT_TRUE(log_enabled(LogLevel::kInfo));
    RankContext own({.rank = 3, .world_size = 4});
    const RankContextGuard guard(own);
    EXPECT_EQ(RankContext::current().rank(), 3);
    EXPECT_NO_THROW(Tensor::zeros({2}));
  }).join();
}

TEST(ThreadState, CarriesARanksWorkToAnotherThread) {
  RankContext context({.rank = 2, .world_size = 3});
  const RankContextGuard rank(context);
  const NoGradGuard no_grad;
  const MetaGuard meta;
  const AnomalyModeGuard anomaly;
  const MemoryTagGuard tag(MemoryTag::kOptimizer);
  int packed = 0;
  const SavedTensorHooksGuard hooks(
      {.pack = [&](const TensorToSave& saved) -> std::any {
         ++packed;
         return saved.tensor;
       },
       .unpack = [](const std::any& kept) { return std::any_cast<Tensor>(kept); }});
  const ScopeGuard scope("here", {}, {});
  const auto seen = [] {
    return std::tuple(RankContext::find() != nullptr ? RankContext::current().rank() : -1,
                      grad_enabled(), meta_enabled(), anomaly_detection_enabled(),
                      MemoryTagGuard::current(), ScopeGuard::current().get(),
                      ThreadState::current().saved_tensor_hooks);
  };
  const auto expected = seen();
  const auto fresh =
      std::tuple(-1, true, false, false, MemoryTag::kActivations,
                 static_cast<const Scope*>(nullptr), static_cast<const SavedTensorHooks*>(nullptr));
  EXPECT_EQ(std::get<0>(expected), 2);
  std::jthread([&, state = ThreadState::capture()] {
    EXPECT_EQ(seen(), fresh);
    {
      const ThreadStateGuard guard(state);
      EXPECT_EQ(seen(), expected);
      const GradModeGuard tape_on(true);
      const MetaGuard with_bytes(false);
      test::mul(test::variable({2}), test::variable({2}));
    }
    EXPECT_EQ(seen(), fresh);
  }).join();
  EXPECT_EQ(seen(), expected);
  EXPECT_EQ(packed, 2);
}

// y = x^2 and z = 3 y + y, of which another thread records 3 y: backward must reach y last.
TEST(ThreadState, ATapeMayGoOnInAnotherThread) {
  for (const bool carried : {true, false}) {
    const Tensor x = test::variable({3}, 1);
    for (int i = 0; i < 50; ++i) test::mul(x, x);  // this thread is further on than a new one
    const Tensor y = test::mul(x, x);
    int calls = 0;
    y.register_hook([&](const Tensor&) {
      ++calls;
      return Tensor();
    });
    Tensor times_three;
    RankContext own;
    std::jthread([&, state = ThreadState::capture()] {
      std::optional<ThreadStateGuard> guard;
      std::optional<RankContextGuard> rank;
      carried ? void(guard.emplace(state)) : void(rank.emplace(own));
      times_three = test::mul(y, Tensor::full({3}, 3, Dtype::kFloat64));
    }).join();
    const Tensor z = test::add(times_three, y);
    EXPECT_GT(times_three.grad_fn()->sequence(), y.grad_fn()->sequence());
    EXPECT_GT(z.grad_fn()->sequence(), times_three.grad_fn()->sequence());
    z.backward(Tensor::ones({3}, Dtype::kFloat64));
    EXPECT_EQ(calls, 1);
    EXPECT_TRUE(test::all_close(
        x.grad(), test::mul(x, Tensor::full({3}, 8, Dtype::kFloat64)).detach(), 1e-14, 0));
  }
}

// Backward leaves the scope when all that both threads recorded in it has run.
TEST(ThreadState, CarriesTheScopeAndTheCountOfTheTape) {
  const Tensor w = test::variable({3}, 1), v = test::variable({3}, 2);
  std::vector<std::string> events;
  Tensor inside, other;
  for (int i = 0; i < 20; ++i) test::mul(w, w);
  {
    const ScopeGuard scope("layer", {}, [&] { events.emplace_back("left"); });
    inside = test::mul(w, w);
    std::jthread([&, state = ThreadState::capture()] {
      const ThreadStateGuard guard(state);
      other = test::mul(v, v);
    }).join();
  }
  other.register_hook([&](const Tensor&) {
    events.emplace_back("other");
    return Tensor();
  });
  test::add(inside, other).backward(Tensor::ones({3}, Dtype::kFloat64));
  EXPECT_EQ(events, (std::vector<std::string>{"other", "left"}));
}

TEST(ThreadState, LetsTwoThreadsUseLeavesInTheBodyOfACheckpoint) {
  constexpr int kLeaves = 200;
  TensorList leaves;
  for (int i = 0; i < kLeaves; ++i) {
    leaves.push_back(test::variable({1}, static_cast<std::uint64_t>(i)));
  }
  // Every other leaf once.
  const auto sum_from = [&](std::size_t first) {
    Tensor sum = Tensor::zeros({1}, Dtype::kFloat64);
    for (auto i = first; i < leaves.size(); i += 2) sum = test::add(sum, leaves[i]);
    return sum;
  };
  const auto body = [&](const TensorList& in) -> TensorList {
    Tensor other;
    std::jthread thread([&, state = ThreadState::capture()] {
      const ThreadStateGuard guard(state);
      other = sum_from(1);
    });
    const Tensor own = sum_from(0);
    thread.join();
    return {test::mul(in[0], test::add(own, other))};
  };
  const Tensor x = test::variable({1}, 1000);
  checkpoint(body, {x})[0].backward(Tensor::ones({1}, Dtype::kFloat64));
  for (const auto& leaf : leaves) {
    ASSERT_TRUE(leaf.grad().defined());
    EXPECT_TRUE(test::bitwise_equal(leaf.grad(), x.detach()));
  }
}

TEST(ThreadState, CarriesTheBodyOfACheckpoint) {
  const Tensor x = test::variable({3}, 1), w = test::variable({3}, 2), v = test::variable({3}, 3);
  int calls = 0;
  w.register_hook([&](const Tensor&) {
    ++calls;
    return Tensor();
  });
  const auto body = [&](const TensorList& in) -> TensorList {
    Tensor product;
    std::jthread([&, state = ThreadState::capture()] {
      const ThreadStateGuard guard(state);
      EXPECT_EQ(in_checkpoint_forward(), !grad_enabled());
      product = test::mul(in[0], w);
    }).join();
    return {product};
  };
  const Tensor inside = checkpoint(body, {x})[0];
  const Tensor outside = test::mul(w, v);  // its gradient comes first
  test::add(inside, outside).backward(Tensor::ones({3}, Dtype::kFloat64));
  EXPECT_EQ(calls, 1);  // the engine knows that the body uses w
  EXPECT_TRUE(test::all_close(w.grad(), test::add(x, v).detach(), 1e-14, 0));
}

TEST(ThreadState, CarriesTheRankOfTheMainThreadToo) {
  std::jthread([state = ThreadState::capture(), main = &RankContext::current()] {
    const ThreadStateGuard guard(state);
    EXPECT_EQ(&RankContext::current(), main);
  }).join();
}

TEST(RankContext, GuardsNest) {
  RankContext a({.rank = 1, .world_size = 3, .threads = 2}), b({.rank = 2, .world_size = 3});
  const RankContextGuard outer(a);
  {
    const RankContextGuard inner(b);
    EXPECT_EQ(RankContext::current().rank(), 2);
  }
  EXPECT_EQ(RankContext::current().rank(), 1);
  EXPECT_EQ(RankContext::current().world_size(), 3);
  EXPECT_EQ(RankContext::current().pool().threads(), 2);
  EXPECT_NE(a.arena(), b.arena());
}

}  // namespace
}  // namespace moegrad::rank_context_test
