// SPDX-License-Identifier: Apache-2.0
// Beyond the numbered rows: groups of several modules, unshard by hand beside other collectives,
// switches of replicas, units inside a recomputed one.
#include <array>

#include "framework/distributed/collectives.h"
#include "framework/distributed/launch.h"
#include "nn/recompute.h"
#include "tests/framework/distributed/counting_process_group.h"
#include "tests/fsdp/conformance/events.h"
#include "tests/fsdp/conformance/parity.h"
#include "tests/fsdp/conformance/stack.h"

namespace moegrad::fsdp::conformance::groups_test {
namespace {

using namespace test;

Tensor input(int rank = 0) { return test::leaf_input({3, 6}, 0, rank); }

nn::Linear::Config square() { return {.in_features = 6, .out_features = 6}; }

/// Two layers, then "norm" and "output", which are one group.
class Tail final : public nn::Callable<Tail> {
 public:
  explicit Tail(bool uses_norm) : norm(square()), output(square()), uses_norm_(uses_norm) {
    register_module("layers.0", first);
    register_module("layers.1", second);
    register_module("norm", norm);
    register_module("output", output);
    test::init_random(*this);
  }
  Tensor forward(const Tensor& x) {
    if (!uses_norm_) return second(output(first(x)));
    return output(norm(second(first(x))));
  }
  State& shard_over(const DeviceMesh& mesh) {
    const Policy policy = {.reshard_after_forward = true, .forward_prefetch = 0};
    fully_shard(first, mesh, policy);
    fully_shard(second, mesh, policy);
    fully_shard({&norm, &output}, mesh, policy);
    return fully_shard(*this, mesh, policy);
  }

  Layer first{6, 10, test::Recompute::kNone, Dtype::kFloat32};
  Layer second{6, 10, test::Recompute::kNone, Dtype::kFloat32};
  nn::Linear norm, output;

 private:
  bool uses_norm_;
};

// A group of several modules is gathered at the first and freed after the last, and prefetched and
// reduced as one.
TEST(Conformance, Groups_OrderOfAGroupOfSeveralModules) {
  launch(2, [](RankContext& rank) {
    Tail model(/*uses_norm=*/true);
    auto& root = model.shard_over(DeviceMesh::flat(rank.group()));
    const auto events = observe(root, "URP");
    for (int iteration = 0; iteration < 2; ++iteration) {
      Tensor loss;
      expect_events(*events, "U0 R0 U1 R1 Unorm Rnorm", [&] { loss = ops::sum(model(input())); });
      expect_events(*events, "Unorm U1 Rnorm Pnorm U0 R1 P1 R0 P0", [&] { loss.backward(); });
    }
  });
}

// A group of which forward leaves out a module is freed when the outermost forward ends; backward
// gathers and reduces it all the same, without the parameters left out.
TEST(Conformance, Groups_WithAnUnusedModule) {
  launch(2, [](RankContext& rank) {
    Tail model(/*uses_norm=*/false);
    auto& root = model.shard_over(DeviceMesh::flat(rank.group()));
    const auto events = observe(root, "URP");
    for (int iteration = 0; iteration < 2; ++iteration) {
      Tensor loss;
      expect_events(*events, "U0 R0 Unorm U1 R1 Rnorm", [&] { loss = ops::sum(model(input())); });
      expect_events(*events, "U1 Unorm R1 P1 U0 Rnorm Pnorm R0 P0", [&] { loss.backward(); });
      EXPECT_FALSE(model.norm.weight().grad().defined());
      EXPECT_TRUE(model.output.weight().grad().defined());
    }
  });
}

// unshard_async beside an all-reduce of the user's: forward waits by itself, gathers nothing twice,
// and computes what it computes without.
TEST(Conformance, Groups_AsyncUnshardOverlapsAnAllReduceOfTheUsers) {
  launch(4, [](RankContext& rank) {
    const auto counts = std::make_shared<CallCounts>();
    const auto mesh =
        DeviceMesh::flat(std::make_shared<CountingProcessGroup>(rank.group(), counts));
    Stack stack({}), plain({});
    auto& root = shard(stack, mesh, {});
    shard(plain, DeviceMesh::flat(rank.group()), {});
    root.unshard_async();
    stack.layer_state(0).unshard_async();
    EXPECT_TRUE(stack.layer_state(0).group()->is_gathering());
    std::array<float, 2> mine = {static_cast<float>(rank.rank()), 1.0F};
    all_reduce(*rank.group(), std::span<float>(mine));
    EXPECT_EQ(mine, (std::array<float, 2>{6.0F, 4.0F}));
    auto handle = stack.layer_state(1).unshard_async();
    handle.wait();
    EXPECT_EQ(stack.layer(1).parameter_slots()[0].tensor->shape(), (Shape{10, 6}));
    EXPECT_EQ(counts->calls({.op = "all_gather"}), 3);
    const Tensor out = stack(input(rank.rank()));
    EXPECT_EQ(counts->calls({.op = "all_gather"}), 4);  // layer 2
    EXPECT_TRUE(bitwise_equal(out.detach(), plain(input(rank.rank())).detach()));
  });
}

// unshard and reshard without parameters, and before any forward, do nothing amiss.
TEST(Conformance, Groups_UnshardWithoutParametersAndBeforeAnyForward) {
  launch(2, [](RankContext& rank) {
    Tail model(/*uses_norm=*/true);
    auto& root = model.shard_over(DeviceMesh::flat(rank.group()));
    EXPECT_EQ(root.group(), nullptr);  // all parameters belong to groups below
    root.unshard();
    root.unshard_async().wait();
    root.reshard();
    auto& first = *model.first.extension<State>();
    first.unshard();
    EXPECT_EQ(model.first.parameter_slots()[0].tensor->shape(), (Shape{10, 6}));
    first.reshard();
    EXPECT_EQ(model.first.parameter_slots()[0].tensor->shape(), (Shape{5, 6}));
    EXPECT_NO_THROW(ops::sum(model(input())).backward());
  });
}

// Without all-reduces gradients stay where the reduce-scatter left them, out of sight, until the
// next backward with them: in that micro-batch a group may have nothing new to add.
TEST(Conformance, Groups_RequiresAllReduceOff) {
  launch(4, [](RankContext& rank) {
    const auto counts = std::make_shared<CallCounts>();
    const DeviceMesh mesh(std::make_shared<CountingProcessGroup>(rank.group(), counts),
                          {{"replicate", 2}, {"shard", 2}});
    Stack stack({}), whole({});
    auto& root = shard(stack, mesh, {});
    ops::sum(whole(input())).backward();
    root.set_requires_all_reduce(false);
    ops::sum(stack(input())).backward();
    EXPECT_EQ(counts->calls({.op = "all_reduce"}), 0);
    EXPECT_EQ(counts->calls({.op = "reduce_scatter"}), 4);
    for (const auto& [name, tensor] : stack.named_parameters()) {
      EXPECT_FALSE(tensor.grad().defined()) << name;
    }
    root.set_requires_gradient_sync(true);         // sets both
    ops::sum(stack.layer(1)(input())).backward();  // reaches one layer; the others catch up
    EXPECT_EQ(counts->calls({.op = "reduce_scatter"}), 5);
    EXPECT_EQ(counts->calls({.op = "all_reduce"}), 4);
    const auto parameters = stack.named_parameters(), reference = whole.named_parameters();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const auto& [name, tensor] = parameters[i];
      if (name.starts_with("layers.1.")) continue;
      const Tensor sum = ops::mul(reference[i].tensor.grad(), 4.0);  // exact
      EXPECT_TRUE(bitwise_equal(tensor.grad(), test::part_of(sum, tensor))) << name;
    }
  });
}

/// One group, of which a forward uses half.
class OneOfTwo final : public nn::Callable<OneOfTwo> {
 public:
  explicit OneOfTwo(bool uses_left) : left(square()), right(square()), uses_left_(uses_left) {
    register_module("left", left);
    register_module("right", right);
    test::init_random(*this);
  }
  Tensor forward(const Tensor& x) { return uses_left_ ? left(x) : right(x); }

  nn::Linear left, right;

 private:
  bool uses_left_;
};

// set_reduce_scatter_unused_params: ranks may use different parameters, who has no gradient adds
// zeros. Off, that is an error on every rank, where PyTorch hangs or sums what does not belong
// together.
TEST(Conformance, Groups_ReduceScatterOfUnusedParameters) {
  OneOfTwo left(true), right(false);
  ops::sum(left(input())).backward();
  ops::sum(right(input())).backward();
  const auto train = [&](RankContext& rank, bool reduce_unused) {
    OneOfTwo model(/*uses_left=*/rank.rank() == 1);
    auto& root = fully_shard(model, DeviceMesh::flat(rank.group()));
    root.set_reduce_scatter_unused_params(reduce_unused);
    for (int iteration = 0; iteration < 2; ++iteration) {
      model.zero_grad();
      ops::sum(model(input())).backward();
      const Tensor& l = model.left.weight();
      const Tensor& r = model.right.weight();
      EXPECT_TRUE(bitwise_equal(l.grad(), test::part_of(left.left.weight().grad(), l)));
      const Tensor twice = ops::mul(right.right.weight().grad(), 2.0);
      EXPECT_TRUE(bitwise_equal(r.grad(), test::part_of(twice, r)));
    }
  };
  launch(3, [&](RankContext& rank) { train(rank, true); });
  EXPECT_THROW(launch(3, [&](RankContext& rank) { train(rank, false); }), CollectiveError);
}

/// y = x + experts(relu(router(x))).
class ExpertLayer final : public nn::Callable<ExpertLayer> {
 public:
  ExpertLayer() : experts(square()), router_(square()) {
    register_module("router", router_);
    register_module("experts", experts);
  }
  Tensor forward(const Tensor& x) { return x + experts(ops::relu(router_(x))); }
  nn::Linear experts;

 private:
  nn::Linear router_;
};

class ExpertNet final : public nn::Callable<ExpertNet> {
 public:
  ExpertNet() : own_(square()) {
    register_module("layers.0", first);
    register_module("layers.1", second);
    register_module("own", own_);
    test::init_random(*this);
  }
  Tensor forward(const Tensor& x) { return own_(second(first(x))); }
  State& shard_over(const DeviceMesh& mesh) {
    const Policy policy = {.forward_prefetch = 0};
    for (auto* layer : {&first, &second}) {
      fully_shard(layer->experts, mesh, policy);
      fully_shard(*layer, mesh, policy);
    }
    return fully_shard(*this, mesh, policy);
  }
  ExpertLayer first, second;

 private:
  nn::Linear own_;
};

// A unit inside a recomputed one, like the experts of a mixture: each is gathered once for forward
// and once for backward, in the same order with recomputation and without, to the same bits.
TEST(Conformance, Groups_AUnitInsideACheckpointedOne) {
  launch(2, [](RankContext& rank) {
    std::vector<TensorList> gradients;
    for (const bool recompute : {false, true}) {
      ExpertNet model;
      if (recompute) {
        nn::recompute(model, [](std::string_view path) {
          return path.ends_with(".0") || path.ends_with(".1");
        });
      }
      auto& root = model.shard_over(DeviceMesh::flat(rank.group()));
      const auto events = observe(root, "UP");
      for (int iteration = 0; iteration < 2; ++iteration) {
        model.zero_grad();
        Tensor loss;
        expect_events(*events, "U U0 U0.experts U1 U1.experts",
                      [&] { loss = test::square_loss(model(input(rank.rank()))); });
        expect_events(*events, "U1 U1.experts U0 P1.experts P1 U0.experts P0.experts P0 P",
                      [&] { loss.backward(); });
      }
      gradients.push_back(test::snapshot(model).gradients);
    }
    for (std::size_t i = 0; i < gradients[0].size(); ++i) {
      EXPECT_TRUE(bitwise_equal(gradients[0][i], gradients[1][i])) << i;
    }
  });
}

}  // namespace
}  // namespace moegrad::fsdp::conformance::groups_test
