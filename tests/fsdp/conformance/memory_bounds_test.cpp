// SPDX-License-Identifier: Apache-2.0
// PyTorch's memory bounds, in float32 on two ranks, with S the shards, U all parameters, B those of
// the largest layer and R the root's own, in bytes:
//
//                        bound                  here
//     initialisation     S + B                  S
//     forward, true      S + R + 3B             S + R + 2B        the layer in use and the next
//     forward, false     S + U + B              S + U
//     backward, true     2S + R + 4B            2S + R/2 + 3B     (+ R)
//     backward, false    S + U + 1.5B           S + U + 1.5B      (+ R)
//     optimizer          4S                     4S
//     zero_grad          3S                     3S
//
// true, false: reshard_after_forward. PyTorch measures with a slack of 16 MB for activations and
// what else there is; here the right column is exact, since only the compute thread allocates, and
// a batch without tokens leaves no activations. (+ R): if the root's parameters were
// used last, their gradients come first, and stay until the root is
// reduced; PyTorch's slack covers them.
//
// Backward for true is at its peak in the layer before the first: S, R, 2B of parameters; B of
// gradients; B of input for the reduction of the layer after it; and the shards of all gradients
// but the root's (R/2) and two layers' (2 * B/2).
#include <algorithm>

#include "framework/distributed/launch.h"
#include "framework/runtime/arena.h"
#include "framework/tensor/meta.h"
#include "nn/init.h"
#include "optim/adamw.h"
#include "tests/fsdp/conformance/stack.h"

namespace moegrad::fsdp::conformance::memory_bounds_test {
namespace {

using namespace test;

constexpr std::size_t kLayers = 4;

struct Bytes {
  std::int64_t shards = 0;         // S
  std::int64_t own = 0;            // R
  std::int64_t whole = 0;          // U
  std::int64_t largest_layer = 0;  // B
};

Bytes bytes_of(Stack& stack, const State& root) {
  const auto own = root.group()->unsharded_bytes();
  Bytes bytes = {.shards = root.group()->sharded_bytes(), .own = own, .whole = own};
  for (std::size_t i = 0; i < stack.size(); ++i) {
    const auto& group = *stack.layer_state(i).group();
    bytes.shards += group.sharded_bytes();
    bytes.whole += group.unsharded_bytes();
    bytes.largest_layer = std::max(bytes.largest_layer, group.unsharded_bytes());
  }
  return bytes;
}

// Sizes that two ranks divide, so shards have no padding.
constexpr StackConfig config(bool own_first) {
  return {.layers = kLayers, .dim = 32, .hidden = 64, .own_first = own_first};
}

std::unique_ptr<Stack> make_on_meta(bool own_first) {
  const MetaGuard meta;
  return std::make_unique<Stack>(config(own_first), /*filled=*/false);
}

void expect_bounds(RankContext& rank, bool reshard_after_forward, bool own_first) {
  auto& arena = *rank.arena();
  arena.reset_peak();
  const auto stack = make_on_meta(own_first);
  auto& root = shard(*stack, DeviceMesh::flat(rank.group()),
                     {.reshard_after_forward = reshard_after_forward});
  stack->to_empty();
  nn::init_weights(*stack, 1, 0.1);
  const auto [s, r, u, b] = bytes_of(*stack, root);
  EXPECT_EQ(arena.peak().total(), s);
  const Tensor input = Tensor::empty({0, 32});
  optim::AdamW optimizer(stack->named_parameters(), {.lr = 1e-2});
  // And a count of steps for each parameter.
  const auto counts = 8 * std::ssize(stack->named_parameters());
  const auto moments = 2 * s + counts;
  for (int iteration = 0; iteration < 3; ++iteration) {
    SCOPED_TRACE(::testing::Message() << "iteration " << iteration << ", reshard after forward "
                                      << reshard_after_forward << ", own first " << own_first);
    EXPECT_EQ(arena.live().total(), s + moments);
    arena.reset_peak();
    {
      const Tensor output = (*stack)(input);
      // Without an order recorded, the first forward has nothing to gather ahead.
      const auto ahead = iteration == 0 ? 0 : b;
      EXPECT_EQ(arena.peak().total() - moments, reshard_after_forward ? s + r + b + ahead : s + u);
      EXPECT_LE(arena.peak().total() - moments, reshard_after_forward ? s + r + 3 * b : s + u + b);
      arena.reset_peak();
      output.backward(input);
    }
    const auto root_gradients = own_first ? 0 : r;
    EXPECT_EQ(arena.peak().total() - moments - root_gradients,
              reshard_after_forward ? 2 * s + r / 2 + 3 * b : s + u + 3 * b / 2);
    EXPECT_LE(arena.peak().total() - moments - root_gradients,
              reshard_after_forward ? 2 * s + r + 4 * b : s + u + 3 * b / 2);
    EXPECT_EQ(arena.live().total(), 2 * s + moments);
    arena.reset_peak();
    optimizer.step();
    EXPECT_EQ(arena.peak().total(), 4 * s + counts);
    optimizer.zero_grad();
    EXPECT_EQ(arena.live().total(), 3 * s + counts);
  }
}

// Row 26: memory after init, forward, backward, optimizer and zero_grad, to the byte.
TEST(Conformance, Row26_MemoryBounds) {
  for (const bool reshard_after_forward : {true, false}) {
    for (const bool own_first : {true, false}) {
      launch(2, [&](RankContext& rank) { expect_bounds(rank, reshard_after_forward, own_first); });
    }
  }
}

}  // namespace
}  // namespace moegrad::fsdp::conformance::memory_bounds_test
