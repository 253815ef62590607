// SPDX-License-Identifier: Apache-2.0
// Several micro-batches per step, over shards and replicas.
#include "framework/distributed/launch.h"
#include "optim/adamw.h"
#include "tests/framework/distributed/counting_process_group.h"
#include "tests/fsdp/conformance/parity.h"
#include "tests/fsdp/conformance/stack.h"
#include "tests/fsdp/conformance/sums.h"

namespace moegrad::fsdp::conformance::accumulation_test {
namespace {

using namespace test;

constexpr int kLayers = 5;    // M
constexpr int kDisabled = 2;  // of them, in mode kSome
constexpr int kBatches = 3;   // m

/// Which groups do not communicate until the last micro-batch.
enum class Mode { kAll, kRootOnly, kSome };

struct Case {
  Leaves leaves;
  bool reshard_after_forward = false;
  Mode mode = Mode::kAll;
  bool reshard_after_backward = false;
  bool scatter_only = false;  // communication that is left out: the all-reduce alone

  int disabled() const {
    return mode == Mode::kAll ? kLayers + 1 : mode == Mode::kRootOnly ? 1 : kDisabled;
  }
  bool is_disabled(const std::string& parameter) const {
    if (mode == Mode::kAll) return true;
    if (mode == Mode::kRootOnly) return parameter.starts_with("own");
    return parameter.starts_with("layers.0.") || parameter.starts_with("layers.1.");
  }
  Accumulation accumulation(const std::string& parameter) const {
    if (!is_disabled(parameter)) return Accumulation::kReduced;
    return scatter_only ? Accumulation::kScattered : Accumulation::kKept;
  }
  // Disabled groups communicate once, the others m times.
  std::int64_t synchronised() const { return disabled() + (kLayers + 1 - disabled()) * kBatches; }
  std::int64_t reduce_scatters() const {
    return scatter_only ? (kLayers + 1) * kBatches : synchronised();
  }
  std::int64_t all_reduces() const { return leaves.replicas > 1 ? synchronised() : 0; }
  // A forward gathers what the last backward has freed, a backward what its forward has.
  std::int64_t all_gathers() const {
    const auto in_backward = reshard_after_forward ? (kLayers + 1) * kBatches : 0;
    const auto kept = reshard_after_backward ? 0 : disabled();
    return kept + (kLayers + 1 - kept) * kBatches + in_backward;
  }
};

std::ostream& operator<<(std::ostream& out, const Case& test) {
  return out << test.leaves.replicas << "x" << test.leaves.shards << ", reshard after forward "
             << test.reshard_after_forward << " and backward " << test.reshard_after_backward
             << ", mode " << static_cast<int>(test.mode) << ", scatter only " << test.scatter_only;
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const int replicas : {1, 2}) {
    for (const bool after_forward : {true, false}) {
      for (const auto mode : {Mode::kAll, Mode::kRootOnly, Mode::kSome}) {
        for (const bool after_backward : {true, false}) {
          for (const bool scatter_only : {false, true}) {
            if (replicas == 1 && scatter_only) continue;
            cases.push_back({.leaves = {replicas, 4 / replicas, kBatches},
                             .reshard_after_forward = after_forward,
                             .mode = mode,
                             .reshard_after_backward = after_backward,
                             .scatter_only = scatter_only});
          }
        }
      }
    }
  }
  return cases;
}

void set_backward_switches(Stack& stack, State& root, const Case& test, bool last) {
  const auto set = [&](State& state, bool recurse) {
    if (test.scatter_only) {
      state.set_requires_all_reduce(last, recurse);
    } else {
      state.set_requires_gradient_sync(last, recurse);
    }
    if (!test.reshard_after_backward) state.set_reshard_after_backward(last, recurse);
  };
  if (test.mode != Mode::kSome) return set(root, test.mode == Mode::kAll);
  for (std::size_t i = 0; i < kDisabled; ++i) set(stack.layer_state(i), true);
}

Tensor loss_of(Stack& stack, int rank, int micro_batch) {
  return square_loss(stack(leaf_input({3, 6}, micro_batch, rank)));
}

// Row 13: gradient accumulation, with the exact number of collectives, over {FSDP, HSDP} x reshard
// after forward x {all, root only, some} x reshard after backward x reduce-scatter only. Gradients
// are the ordered sums of Note [Where a gradient is summed], bit for bit.
TEST(Conformance, Row13_GradientAccumulationWithExactCounts) {
  const StackConfig config = {.layers = kLayers};
  Stack whole(config);
  const auto leaf_gradients = test::gradients_of_leaves(
      whole, {.shards = 4, .micro_batches = kBatches},
      [&](int rank, int micro_batch) { return loss_of(whole, rank, micro_batch); });
  launch(4, [&](RankContext& rank) {
    for (const auto& test : all_cases()) {
      SCOPED_TRACE(::testing::Message() << test);
      const auto counts = std::make_shared<CallCounts>();
      Stack stack(config);
      const DeviceMesh mesh(std::make_shared<CountingProcessGroup>(rank.group(), counts),
                            {{"replicate", test.leaves.replicas}, {"shard", test.leaves.shards}});
      auto& root = shard(stack, mesh, {.reshard_after_forward = test.reshard_after_forward});
      for (int i = 0; i < kBatches; ++i) {
        set_backward_switches(stack, root, test, i == kBatches - 1);
        loss_of(stack, rank.rank(), i).backward();
      }
      EXPECT_EQ(counts->calls({.op = "all_gather"}), test.all_gathers());
      EXPECT_EQ(counts->calls({.op = "reduce_scatter"}), test.reduce_scatters());
      EXPECT_EQ(counts->calls({.op = "all_reduce"}), test.all_reduces());
      const auto parameters = stack.named_parameters();
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        const auto& [name, tensor] = parameters[i];
        const auto sum = test::sum_of(leaf_gradients, i, test.leaves, test.accumulation(name));
        EXPECT_TRUE(bitwise_equal(tensor.grad(), test::part_of(sum, tensor))) << name;
      }
    }
  });
}

/// Trains the whole model on all ranks' micro-batches in turn: parameters after each iteration.
std::vector<NamedTensors> train_whole(const StackConfig& config, const Leaves& leaves,
                                      Accumulation accumulation, int iterations) {
  std::vector<NamedTensors> after;
  Stack stack(config);
  const auto parameters = stack.named_parameters();
  optim::AdamW optimizer(parameters, {.lr = 1e-2});
  for (int iteration = 0; iteration < iterations; ++iteration) {
    const auto gradients = test::gradients_of_leaves(stack, leaves, [&](int rank, int m) {
      return square_loss(stack(leaf_input({4, config.dim}, 10 * iteration + m, rank)));
    });
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      parameters[i].tensor.set_grad(test::sum_of(gradients, i, leaves, accumulation));
    }
    optimizer.step();
    optimizer.zero_grad();
    after.push_back(test::snapshot(stack).parameters);
  }
  return after;
}

// Row 15: HSDP on 2 x 2 ranks trains like the whole model, bit for bit, x checkpointing x dims
// {3, 16, 17} x gradients synchronised at the last or at every of 3 micro-batches.
TEST(Conformance, Row15_HsdpParity) {
  constexpr int kIterations = 5;
  const Leaves leaves = {.replicas = 2, .shards = 2, .micro_batches = kBatches};
  for (const std::int64_t dim : {3, 16, 17}) {
    for (const auto accumulation : {Accumulation::kKept, Accumulation::kReduced}) {
      const auto reference = train_whole({.layers = 2, .dim = dim, .hidden = 3 * dim}, leaves,
                                         accumulation, kIterations);
      launch(leaves.ranks(), [&](RankContext& rank) {
        for (const auto recompute : test::kRecomputes) {
          Stack stack({.layers = 2, .dim = dim, .hidden = 3 * dim, .recompute = recompute});
          const DeviceMesh mesh(rank.group(), {{"replicate", 2}, {"shard", 2}});
          auto& root = shard(stack, mesh, {});
          optim::AdamW optimizer(stack.named_parameters(), {.lr = 1e-2});
          for (int iteration = 0; iteration < kIterations; ++iteration) {
            for (int m = 0; m < kBatches; ++m) {
              const bool sync = accumulation == Accumulation::kReduced || m == kBatches - 1;
              root.set_requires_gradient_sync(sync);
              square_loss(stack(leaf_input({4, dim}, 10 * iteration + m, rank.rank()))).backward();
            }
            optimizer.step();
            optimizer.zero_grad();
            const auto& expected = reference[static_cast<std::size_t>(iteration)];
            const auto parameters = stack.named_parameters();
            for (std::size_t i = 0; i < parameters.size(); ++i) {
              const auto& [name, tensor] = parameters[i];
              EXPECT_TRUE(bitwise_equal(tensor.detach(), test::part_of(expected[i].tensor, tensor)))
                  << name << " in iteration " << iteration << ", dim " << dim;
            }
          }
        }
      });
    }
  }
}

}  // namespace
}  // namespace moegrad::fsdp::conformance::accumulation_test
