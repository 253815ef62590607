// SPDX-License-Identifier: Apache-2.0
// In which order groups are gathered, freed and reduced.
#include <algorithm>
#include <functional>

#include "framework/distributed/launch.h"
#include "tests/fsdp/conformance/events.h"
#include "tests/fsdp/conformance/stack.h"

namespace moegrad::fsdp::conformance::event_order_test {
namespace {

using namespace test;

constexpr std::optional<bool> kReshards[] = {std::nullopt, true, false};

Tensor input() { return randn({3, 6}, 9, Dtype::kFloat32); }

/// For every setting, on two ranks.
void for_each_stack(
    const std::function<void(Stack&, StrictMockEvents&, std::optional<bool> reshard)>& body) {
  launch(2, [&](RankContext& rank) {
    for (const auto reshard : kReshards) {
      for (const auto recompute : kRecomputes) {
        Stack stack({.recompute = recompute});
        auto& root = shard(stack, DeviceMesh::flat(rank.group()),
                           {.reshard_after_forward = reshard, .forward_prefetch = 0});
        body(stack, *observe(root, "UP"), reshard);
      }
    }
  });
}

// Row 22: one forward, one backward, 3 layers: backward gathers the layer before the one it is in.
TEST(Conformance, Row22_BackwardEventOrder) {
  for_each_stack([](Stack& stack, StrictMockEvents& events, std::optional<bool> reshard) {
    for (int iteration = 0; iteration < 2; ++iteration) {
      Tensor loss;
      expect_events(events, "U U0 U1 U2", [&] { loss = ops::sum(stack(input())); });
      // The root stays gathered by default, all do for false.
      const auto* expected = !reshard.has_value() ? "U2 U1 P2 U0 P1 P0 P"
                             : *reshard           ? "U U2 U1 P2 U0 P1 P0 P"
                                                  : "P2 P1 P0 P";
      expect_events(events, expected, [&] { loss.backward(); });
    }
  });
}

// Row 22, two forwards before one backward. Differs from PyTorch, where the root's post-backward
// waits for the end of backward: it stands on the tape, so it comes once per forward, and in
// between the root is freed and gathered again.
TEST(Conformance, Row22_BackwardEventOrderOfTwoForwards) {
  for_each_stack([](Stack& stack, StrictMockEvents& events, std::optional<bool> reshard) {
    Tensor first, second;
    expect_events(events, "U U0 U1 U2", [&] { first = stack(input()); });
    const auto* again = !reshard.has_value() ? "U0 U1 U2" : *reshard ? "U U0 U1 U2" : "";
    expect_events(events, again, [&] { second = stack(input()); });
    const std::string layers = "U2 U1 P2 U0 P1 P0 ";
    const auto expected = !reshard.has_value() ? layers + "P U " + layers + "P"
                          : *reshard           ? "U " + layers + "P U " + layers + "P"
                                               : "P2 P1 P0 P U " + layers + "P";
    expect_events(events, expected, [&] { ops::sum(first + second).backward(); });
  });
}

/// Two branches with a loss each.
class Branches final : public nn::Callable<Branches> {
 public:
  Branches()
      : trunk({.in_features = 6, .out_features = 6}), left(trunk_config()), right(trunk_config()) {
    register_module("trunk", trunk);
    register_module("left", left);
    register_module("right", right);
    test::init_random(*this);
  }
  std::pair<Tensor, Tensor> forward(const Tensor& x) {
    const Tensor h = trunk(x);
    Tensor a = left(h);  // first, so that backward comes from the right
    Tensor b = right(h);
    return {std::move(a), std::move(b)};
  }
  nn::Linear trunk, left, right;

 private:
  static nn::Linear::Config trunk_config() { return {.in_features = 6, .out_features = 6}; }
};

// Row 22, two losses, each of which leaves one branch unused: the gather that was meant for the
// unused branch (Uleft) is of use to the next backward, and its post-backward does nothing.
TEST(Conformance, Row22_BackwardEventOrderWithAnUnusedBranch) {
  launch(2, [](RankContext& rank) {
    Branches model;
    const auto mesh = DeviceMesh::flat(rank.group());
    fully_shard(model.trunk, mesh);
    fully_shard(model.left, mesh);
    fully_shard(model.right, mesh);
    auto& root = fully_shard(model, mesh);
    const auto events = observe(root, "UP");
    std::pair<Tensor, Tensor> out;
    expect_events(*events, "Utrunk Uleft Uright", [&] { out = model(input()); });
    const Tensor left_loss = ops::sum(out.first), right_loss = ops::sum(out.second);
    root.set_is_last_backward(false);
    expect_events(*events, "Uright Uleft Pright Utrunk Ptrunk Pleft",
                  [&] { right_loss.backward({}, /*retain_graph=*/true); });
    root.set_is_last_backward(true);
    EXPECT_FALSE(model.left.weight().grad().defined());
    expect_events(*events, "Utrunk Pleft Ptrunk Pright", [&] { left_loss.backward(); });
    for (const auto& parameter : model.named_parameters()) {
      EXPECT_TRUE(parameter.tensor.grad().defined()) << parameter.name;
    }
  });
}

// What ★23 and ★24 have in common: 4 layers and a root, all with an explicit true.
struct Prefetching {
  explicit Prefetching(RankContext& rank, int forward_prefetch = 0)
      : stack({.layers = 4}),
        root(shard(stack, DeviceMesh::flat(rank.group()),
                   {.reshard_after_forward = true, .forward_prefetch = forward_prefetch})),
        events(observe(root, "URP")) {}

  std::vector<nn::Module*> layers(std::size_t begin, std::size_t end) {
    std::vector<nn::Module*> modules;
    for (auto i = begin; i < end; ++i) modules.push_back(&stack.layer(i));
    return modules;
  }
  void expect_forward_and_backward(const std::string& forward, const std::string& backward) {
    Tensor loss;
    expect_events(*events, forward, [&] { loss = ops::sum(stack(input())); });
    expect_events(*events, backward, [&] { loss.backward(); });
  }

  Stack stack;
  State& root;
  std::shared_ptr<test::StrictMockEvents> events;
};

constexpr auto kForwardOneAhead = "U U0 U1 R0 U2 R1 U3 R2 R3 R";
constexpr auto kForwardTwoAhead = "U U0 U1 U2 R0 U3 R1 R2 R3 R";
constexpr auto kForwardNoneAhead = "U U0 R0 U1 R1 U2 R2 U3 R3 R";
constexpr auto kBackwardOneAhead = "U U3 U2 R3 P3 U1 R2 P2 U0 R1 P1 R0 P0 R P";
constexpr auto kBackwardTwoAhead = "U U3 U2 U1 R3 P3 U0 R2 P2 R1 P1 R0 P0 R P";

// Row 23: explicit forward prefetch of one and of two layers.
TEST(Conformance, Row23_ForwardPrefetch) {
  launch(2, [](RankContext& rank) {
    for (const std::size_t ahead : {1U, 2U}) {
      Prefetching model(rank);
      for (std::size_t i = 0; i + ahead < 4; ++i) {
        model.stack.layer_state(i).set_modules_to_forward_prefetch(
            model.layers(i + 1, i + 1 + ahead));
      }
      for (int iteration = 0; iteration < 2; ++iteration) {
        model.expect_forward_and_backward(ahead == 1 ? kForwardOneAhead : kForwardTwoAhead,
                                          kBackwardOneAhead);
      }
    }
  });
}

// Row 23 without lists. Differs from PyTorch, which prefetches because the CPU runs ahead of the
// GPU: here compute is synchronous, and a policy gathers ahead by the order of the last forward,
// from the second one on.
TEST(Conformance, Row23_ForwardPrefetchInTheOrderOfTheLastForward) {
  launch(2, [](RankContext& rank) {
    for (const int ahead : {0, 1, 2}) {
      Prefetching model(rank, ahead);
      model.expect_forward_and_backward(kForwardNoneAhead, kBackwardOneAhead);
      const auto* forward = ahead == 0   ? kForwardNoneAhead
                            : ahead == 1 ? kForwardOneAhead
                                         : kForwardTwoAhead;
      for (int iteration = 0; iteration < 2; ++iteration) {
        model.expect_forward_and_backward(forward, kBackwardOneAhead);
      }
    }
  });
}

// Row 24: explicit backward prefetch of one layer, as by default, and of two.
TEST(Conformance, Row24_BackwardPrefetch) {
  launch(2, [](RankContext& rank) {
    for (const std::size_t ahead : {1U, 2U}) {
      Prefetching model(rank);
      for (std::size_t i = 1; i < 4; ++i) {
        auto layers = model.layers(i - std::min(i, ahead), i);
        std::ranges::reverse(layers);
        model.stack.layer_state(i).set_modules_to_backward_prefetch(layers);
      }
      model.root.set_modules_to_backward_prefetch(model.layers(3, 4));
      for (int iteration = 0; iteration < 2; ++iteration) {
        model.expect_forward_and_backward(kForwardNoneAhead,
                                          ahead == 1 ? kBackwardOneAhead : kBackwardTwoAhead);
      }
    }
  });
}

}  // namespace
}  // namespace moegrad::fsdp::conformance::event_order_test
