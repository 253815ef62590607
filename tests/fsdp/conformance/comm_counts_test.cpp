// SPDX-License-Identifier: Apache-2.0
// How many collectives an iteration costs.
#include "framework/distributed/launch.h"
#include "tests/framework/distributed/counting_process_group.h"
#include "tests/fsdp/conformance/stack.h"

namespace moegrad::fsdp::conformance::comm_counts_test {
namespace {

using namespace test;

constexpr std::int64_t kLayers = 3;

struct Calls {
  std::int64_t all_gathers = 0;
  std::int64_t reduce_scatters = 0;
  std::int64_t all_reduces = 0;

  friend bool operator==(const Calls&, const Calls&) = default;
  friend std::ostream& operator<<(std::ostream& out, const Calls& calls) {
    return out << calls.all_gathers << " all-gathers, " << calls.reduce_scatters
               << " reduce-scatters, " << calls.all_reduces << " all-reduces";
  }
};

/// A stack of 3 layers and a root over 4 ranks, and what it has issued since one last asked.
class Counted {
 public:
  Counted(RankContext& rank, int replicas, const Policy& policy)
      : mesh_(std::make_shared<CountingProcessGroup>(rank.group(), counts_),
              {{"replicate", replicas}, {"shard", rank.world_size() / replicas}}),
        root(shard(stack, mesh_, policy)) {}

  Tensor forward() { return ops::sum(stack(randn({3, 6}, 9, Dtype::kFloat32))); }
  Calls take() {
    const Calls calls = {.all_gathers = counts_->calls({.op = "all_gather"}),
                         .reduce_scatters = counts_->calls({.op = "reduce_scatter"}),
                         .all_reduces = counts_->calls({.op = "all_reduce"})};
    EXPECT_EQ(counts_->calls(), calls.all_gathers + calls.reduce_scatters + calls.all_reduces);
    counts_->clear();
    return calls;
  }
  /// Expects these calls of a forward and of its backward.
  void expect_iteration(const Calls& in_forward, const Calls& in_backward) {
    const Tensor loss = forward();
    EXPECT_EQ(take(), in_forward);
    loss.backward();
    EXPECT_EQ(take(), in_backward);
  }

 private:
  std::shared_ptr<CallCounts> counts_ = std::make_shared<CallCounts>();
  DeviceMesh mesh_;

 public:
  Stack stack{{.layers = kLayers}};
  State& root;
};

// Row 20: forward gathers each group once; backward the layers by default, the root too for an
// explicit true, none for false; each group is reduced once.
TEST(Conformance, Row20_CommunicationCounts) {
  launch(4, [](RankContext& rank) {
    for (const int replicas : {1, 2}) {
      for (const std::optional<bool> reshard : {std::optional<bool>(), {true}, {false}}) {
        Counted model(rank, replicas, {.reshard_after_forward = reshard});
        const auto gathers = !reshard.has_value() ? kLayers : *reshard ? kLayers + 1 : 0;
        const auto all_reduces = replicas > 1 ? kLayers + 1 : 0;
        for (int iteration = 0; iteration < 2; ++iteration) {
          model.expect_iteration({kLayers + 1, 0, 0}, {gathers, kLayers + 1, all_reduces});
        }
      }
    }
  });
}

// Differs from PyTorch, which compares nothing: the first forward exchanges checksums of the
// parameters, once for the shards and once for the replicas.
TEST(Conformance, Row20_TheFirstForwardComparesTheRanksWeights) {
  launch(4, [](RankContext& rank) {
    for (const int replicas : {1, 2, 4}) {
      const auto counts = std::make_shared<CallCounts>();
      const DeviceMesh mesh(std::make_shared<CountingProcessGroup>(rank.group(), counts),
                            {{"replicate", replicas}, {"shard", 4 / replicas}});
      Stack stack({.layers = kLayers});
      shard(stack, mesh, {});
      for (int iteration = 0; iteration < 2; ++iteration) {
        ops::sum(stack(randn({3, 6}, 9, Dtype::kFloat32))).backward();
        EXPECT_EQ(counts->calls({.queue = std::string(test::kSameValuesQueue)}),
                  replicas == 2 ? 2 : 1);
      }
    }
  });
}

// Row 20, resharding by hand what stays gathered after forward: backward gathers it again.
TEST(Conformance, Row20_CommunicationCountsWithManualReshard) {
  launch(4, [](RankContext& rank) {
    Counted model(rank, 1, {.reshard_after_forward = false});
    const Tensor loss = model.forward();
    EXPECT_EQ(model.take(), (Calls{kLayers + 1, 0, 0}));
    for (std::size_t i = 0; i < kLayers; ++i) model.stack.layer_state(i).reshard();
    model.root.reshard();
    loss.backward();
    EXPECT_EQ(model.take(), (Calls{kLayers + 1, kLayers + 1, 0}));
  });
}

// Row 20: set_reshard_after_forward at run time, of one call or of all below, the root included.
TEST(Conformance, Row20_SetReshardAfterForward) {
  launch(4, [](RankContext& rank) {
    Counted model(rank, 1, {});
    const auto expect_backward_gathers = [&](std::int64_t gathers) {
      model.expect_iteration({kLayers + 1, 0, 0}, {gathers, kLayers + 1, 0});
    };
    expect_backward_gathers(kLayers);
    model.root.set_reshard_after_forward(true, /*recurse=*/false);
    expect_backward_gathers(kLayers + 1);
    model.root.set_reshard_after_forward(false);
    expect_backward_gathers(0);
    model.root.set_reshard_after_forward(true, /*recurse=*/false);
    expect_backward_gathers(1);
    model.stack.layer_state(1).set_reshard_after_forward(true);
    expect_backward_gathers(2);
    model.root.set_reshard_after_forward(true);
    expect_backward_gathers(kLayers + 1);
  });
}

}  // namespace
}  // namespace moegrad::fsdp::conformance::comm_counts_test
