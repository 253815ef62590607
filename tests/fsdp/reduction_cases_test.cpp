// SPDX-License-Identifier: Apache-2.0

// Reductions that are easy to get wrong: other cuts on every rank, odd numbers of ranks, parameters
// without gradient, modules of one group in other orders.

#include <algorithm>

#include "framework/distributed/collectives.h"
#include "tests/fsdp/conformance/event_log.h"
#include "tests/fsdp/conformance/sums.h"
#include "tests/fsdp/random_sequences.h"
#include "tests/testing.h"

namespace moegrad::fsdp::reduction_cases_test {
namespace {

using namespace test;

// --- cut differently

/// The bytes of `tensor`, cut at places that depend on the rank.
ByteParts cut(const Tensor& tensor, int rank) {
  const auto bytes = std::as_bytes(tensor.data<double>());
  ByteParts parts;
  std::size_t begin = 0;
  for (std::size_t i = 0; begin < bytes.size(); ++i) {
    const auto elements = 1 + (i * 5 + static_cast<std::size_t>(rank) * 3) % 7;
    const auto count = std::min(elements * sizeof(double), bytes.size() - begin);
    parts.push_back(bytes.subspan(begin, count));
    begin += count;
  }
  return parts;
}

TEST(ReductionCases, ReduceScatterOfOneToNineRanksThatCutTheirBuffersDifferently) {
  constexpr std::int64_t kChunk = 37;
  for (int world = 1; world <= 9; ++world) {
    const auto input = [&](int rank) {
      return randn({world * kChunk}, static_cast<std::uint64_t>(100 * world + rank));
    };
    const Tensor expected = tree_sum(world, input);
    launch(world, [&](RankContext& rank) {
      const auto group = rank.group();
      if (group == nullptr) return;
      const Tensor own = input(rank.rank());
      Tensor sum = Tensor::empty({kChunk}, Dtype::kFloat64);
      group
          ->reduce_scatter(cut(own, rank.rank()),
                           std::as_writable_bytes(sum.mutable_data<double>()), Dtype::kFloat64,
                           ReduceOp::kSum, {})
          ->wait();
      const Tensor part = clone(Tensor::as_strided(expected, {kChunk}, {1}, rank.rank() * kChunk));
      EXPECT_TRUE(bitwise_equal(sum, part)) << world << " ranks, rank " << rank.rank();
    });
  }
}

// --- parameters that only some ranks use, and their uneven shards

/// Two branches of odd sizes; `which` says which of them run.
class Forked final : public nn::Callable<Forked> {
 public:
  Forked() : left_(randn({5, 3}, 1)), right_(randn({5, 3}, 2)), scale_(randn({3}, 3)) {
    register_parameter("left", left_);
    register_parameter("right", right_);
    register_parameter("scale", scale_);
  }
  Tensor forward(const Tensor& x, bool left, bool right) {
    Tensor y = ops::mul(x, scale_);
    Tensor sum = ops::sum(ops::tanh(y));
    if (left) sum = sum + ops::sum(ops::tanh(ops::linear(y, left_)));
    if (right) sum = sum + ops::sum(ops::tanh(ops::linear(y, right_)));
    return sum;
  }

 private:
  Tensor left_, right_, scale_;
};

// So that memory that nobody has cleared does not happen to hold zeros.
void leave_garbage() {
  for (std::int64_t numel = 1; numel < 128; ++numel) {
    Tensor::full({numel}, std::nan(""), Dtype::kFloat64);
  }
}

TEST(ReductionCases, UnusedParametersCountAsZerosOnUnevenShards) {
  for (const int world : {1, 2, 3, 4, 7}) {
    const auto uses_left = [](int rank) { return rank % 2 == 0; };
    const auto uses_right = [](int rank) { return rank % 3 == 1; };
    Forked whole;
    std::vector<TensorList> gradients;  // [rank][parameter]
    for (int rank = 0; rank < world; ++rank) {
      whole(randn({2, 3}, static_cast<std::uint64_t>(10 + rank)), uses_left(rank), uses_right(rank))
          .backward();
      auto& own = gradients.emplace_back();
      for (const auto& [name, parameter] : whole.named_parameters()) {
        const Tensor grad = parameter.grad();
        own.push_back(grad.defined() ? grad : zeros_like(parameter));
      }
      whole.zero_grad();
    }
    launch(world, [&](RankContext& rank) {
      Forked net;
      fully_shard(net, DeviceMesh::flat(rank.group())).set_reduce_scatter_unused_params(true);
      leave_garbage();
      net(randn({2, 3}, static_cast<std::uint64_t>(10 + rank.rank())), uses_left(rank.rank()),
          uses_right(rank.rank()))
          .backward();
      const auto parameters = net.named_parameters();
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        const auto& [name, parameter] = parameters[i];
        ASSERT_TRUE(parameter.grad().defined()) << name;
        const Tensor sum =
            tree_sum(world, [&](int r) { return gradients[static_cast<std::size_t>(r)][i]; });
        EXPECT_TRUE(
            bitwise_equal(parameter.grad(), clone(shard_view(sum, *parameter.shard_spec()))))
            << name << " on rank " << rank.rank() << " of " << world;
      }
    });
  }
}

// With replicas alone nothing is scattered: the whole gradients lie in one buffer.
TEST(ReductionCases, UnusedParametersCountAsZerosOfReplicas) {
  launch(2, [](RankContext& rank) {
    Forked net;
    const DeviceMesh mesh(rank.group(), {{"replicate", 2}});
    fully_shard(net, mesh, {.mesh_dims = {.shard = std::nullopt, .replicate = "replicate"}})
        .set_reduce_scatter_unused_params(true);
    leave_garbage();
    net(randn({2, 3}, 1), rank.rank() == 0, false).backward();
    const auto parameters = net.named_parameters();
    const Tensor right = parameters[1].tensor.grad();
    EXPECT_TRUE(bitwise_equal(right, Tensor::zeros({5, 3}, Dtype::kFloat64)));
    Forked whole;
    whole(randn({2, 3}, 1), true, false).backward();
    EXPECT_TRUE(
        bitwise_equal(parameters[0].tensor.grad(), whole.named_parameters()[0].tensor.grad()));
  });
}

TEST(ReductionCases, HooksOfParametersWithoutGradientDoNotRun) {
  launch(2, [](RankContext& rank) {
    Forked net;
    fully_shard(net, DeviceMesh::flat(rank.group()));
    std::vector<std::string> called;
    std::vector<HookHandle> handles;
    for (const auto& [name, parameter] : net.named_parameters()) {
      handles.push_back(parameter.register_post_accumulate_grad_hook(
          [&called, name = name](const Tensor& reached) {
            EXPECT_TRUE(reached.grad().defined()) << name;
            called.push_back(name);
          }));
    }
    net(randn({2, 3}, 1), true, false).backward();
    EXPECT_EQ(called, (std::vector<std::string>{"left", "scale"}));
  });
}

// --- modules of one group in other orders

class TwoBlocks final : public nn::Callable<TwoBlocks> {
 public:
  TwoBlocks() : a(randn({3, 3}, 1)), b(randn({3, 3}, 2)) {
    register_module("a", a);
    register_module("b", b);
  }
  Tensor forward(const Tensor& x, bool a_first) {
    return ops::sum(ops::tanh(a_first ? b(a(x)) : a(b(x))));
  }
  RealBlock a, b;
};

// Backward leaves b last where the forward began with it, and a where it began with a. Only then is
// the group reduced and freed: once for each forward.
TEST(ReductionCases, TwoForwardsOfOneGroupInOppositeOrders) {
  for (const bool a_first : {true, false}) {
    const auto losses = [&](TwoBlocks& net, int leaf) {
      const auto seed = static_cast<std::uint64_t>(20 + leaf);
      return net(randn({2, 3}, seed), a_first) + net(randn({2, 3}, seed + 50), !a_first);
    };
    TwoBlocks whole;
    const auto gradients = test::gradients_of_leaves(
        whole, {.shards = 2}, [&](int rank, int /*m*/) { return losses(whole, rank); });
    launch(2, [&](RankContext& rank) {
      TwoBlocks net;
      const auto mesh = DeviceMesh::flat(rank.group());
      auto& pair = fully_shard({&net.a, &net.b}, mesh);
      auto& root = fully_shard(net, mesh);
      const Tensor loss = losses(net, rank.rank());
      const auto log = test::log_events(root, {Event::kReshard, Event::kReduce});
      loss.backward();
      EXPECT_EQ(log->take(),
                (std::vector<std::string>{"reshard a", "reduce a", "reshard a", "reduce a"}));
      EXPECT_TRUE(pair.group()->is_sharded());
      const auto parameters = net.named_parameters();
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        const auto& [name, parameter] = parameters[i];
        const Tensor sum = test::sum_of(gradients, i, {.shards = 2}, test::Accumulation::kReduced);
        EXPECT_TRUE(test::all_close(parameter.grad(),
                                    clone(shard_view(sum, *parameter.shard_spec())), 1e-14, 1e-14))
            << name;
      }
    });
  }
}

}  // namespace
}  // namespace moegrad::fsdp::reduction_cases_test
