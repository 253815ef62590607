// SPDX-License-Identifier: Apache-2.0
// What is computed, gathered and reduced in which dtype; bfloat16 stands for PyTorch's float16.
#include <algorithm>
#include <array>
#include <optional>
#include <tuple>

#include "framework/distributed/launch.h"
#include "framework/runtime/error.h"
#include "framework/runtime/grad_mode.h"
#include "ops/copies.h"
#include "ops/split_cat.h"
#include "optim/adamw.h"
#include "tests/framework/distributed/counting_process_group.h"
#include "tests/fsdp/conformance/parity.h"
#include "tests/fsdp/conformance/stack.h"
#include "tests/fsdp/conformance/sums.h"

namespace moegrad::fsdp::conformance::mixed_precision_test {
namespace {

using namespace test;

constexpr auto kBF16 = Dtype::kBFloat16;
constexpr auto kF32 = Dtype::kFloat32;
constexpr auto kF64 = Dtype::kFloat64;

struct Precision {
  Dtype master = kF32;
  std::optional<Dtype> param = std::nullopt;
  std::optional<Dtype> wire = std::nullopt;
  std::optional<Dtype> reduce = std::nullopt;
  std::optional<Dtype> output = std::nullopt;
  Dtype compute = kF32;  // and what must come of it
  Dtype gathered = kF32;
  Dtype reduced = kF32;

  MixedPrecisionPolicy policy() const {
    return {
        .param_dtype = param, .wire_dtype = wire, .reduce_dtype = reduce, .output_dtype = output};
  }
};

std::ostream& operator<<(std::ostream& out, const Precision& precision) {
  return out << "master " << precision.master << ", computed in " << precision.compute
             << ", gathered in " << precision.gathered << ", reduced in " << precision.reduced;
}

// Differs from PyTorch: bfloat16 is what travels, arithmetic stays in float32, so gradients are
// float32 and by default reduced as such. float32 parameters of float64 masters are computed in.
const std::vector<Precision>& precisions() {
  static const std::vector<Precision> all = {
      {.wire = kBF16, .gathered = kBF16},
      {.wire = kBF16, .reduce = kF32, .gathered = kBF16},
      {.reduce = kBF16, .reduced = kBF16},
      {.wire = kBF16, .reduce = kBF16, .gathered = kBF16, .reduced = kBF16},
      {.master = kF64, .param = kF32},
      {.master = kF64, .param = kF32, .output = kF64},
      {.master = kF64, .param = kF32, .reduce = kF64, .reduced = kF64},
      {.master = kF64, .param = kF32, .reduce = kBF16, .reduced = kBF16},
      {.master = kF64, .wire = kBF16, .compute = kF64, .gathered = kBF16, .reduced = kF64}};
  return all;
}

Tensor input(const Precision& precision, int iteration, int rank) {
  return to_dtype(leaf_input({4, 6}, iteration, rank), precision.master);
}

/// Parameters after each iteration of a model that is rounded, computed and summed by hand.
std::vector<NamedTensors> train_by_hand(const Precision& precision, const Leaves& leaves,
                                        int iterations) {
  std::vector<NamedTensors> after;
  Stack masters({.dtype = precision.master});
  Stack working({.dtype = precision.compute});
  const auto parameters = masters.named_parameters();
  optim::AdamW optimizer(parameters, {.lr = 1e-2});
  for (int iteration = 0; iteration < iterations; ++iteration) {
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const Tensor rounded = to_dtype(parameters[i].tensor.detach(), precision.gathered);
      Tensor values = working.parameter_slots()[i].tensor->detach();
      copy_(values, rounded);
    }
    const auto gradients = test::gradients_of_leaves(working, leaves, [&](int rank, int) {
      const Tensor out = working(to_dtype(input(precision, iteration, rank), precision.compute));
      return square_loss(precision.output ? ops::cast(out, *precision.output) : out);
    });
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const auto leaf = [&](int rank, int /*m*/) {
        return to_dtype(gradients[static_cast<std::size_t>(rank)][0][i], precision.reduced);
      };
      const Tensor sum = test::sum_of(leaves, Accumulation::kReduced, leaf);
      parameters[i].tensor.set_grad(to_dtype(sum, precision.master));
    }
    optimizer.step();
    optimizer.zero_grad();
    after.push_back(test::snapshot(masters).parameters);
  }
  return after;
}

/// Only the root casts its output, or the layers would hand each other what they cannot take.
State& shard_with(const Precision& precision, Stack& stack, const DeviceMesh& mesh,
                  std::optional<bool> reshard_after_forward = std::nullopt) {
  Policy policy = {.reshard_after_forward = reshard_after_forward,
                   .mixed_precision = precision.policy()};
  policy.mixed_precision.output_dtype.reset();
  for (std::size_t i = 0; i < stack.size(); ++i) fully_shard(stack.layer(i), mesh, policy);
  policy.mixed_precision.output_dtype = precision.output;
  return fully_shard(stack, mesh, policy);
}

/// All calls of one kind moved elements of this dtype.
void expect_moved(const CallCounts& counts, const std::string& op, Dtype dtype) {
  const auto total = counts.total({.op = op});
  EXPECT_GT(total.elements, 0) << op;
  EXPECT_EQ(total.bytes, total.elements * size_of(dtype)) << op;
}

void train_sharded(RankContext& rank, const Precision& precision, const Leaves& leaves,
                   bool reshard_after_forward, const std::vector<NamedTensors>& expected) {
  const auto counts = std::make_shared<CallCounts>();
  const DeviceMesh mesh(std::make_shared<CountingProcessGroup>(rank.group(), counts),
                        {{"replicate", leaves.replicas}, {"shard", leaves.shards}});
  Stack stack({.dtype = precision.master});
  shard_with(precision, stack, mesh, reshard_after_forward);
  stack.layer(1).register_forward_pre_hook([&](nn::Module& layer) {
    EXPECT_EQ(layer.parameter_slots()[0].tensor->dtype(), precision.compute);
  });
  const auto parameters = stack.named_parameters();
  optim::AdamW optimizer(parameters, {.lr = 1e-2});
  for (std::size_t iteration = 0; iteration < expected.size(); ++iteration) {
    const Tensor out = stack(input(precision, static_cast<int>(iteration), rank.rank()));
    EXPECT_EQ(out.dtype(), precision.output.value_or(precision.compute));
    square_loss(out).backward();
    for (const auto& [name, tensor] : parameters) {
      EXPECT_EQ(tensor.grad().dtype(), precision.master) << name;
    }
    optimizer.step();
    optimizer.zero_grad();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const auto& [name, tensor] = parameters[i];
      EXPECT_TRUE(
          bitwise_equal(tensor.detach(), test::part_of(expected[iteration][i].tensor, tensor)))
          << name << " in iteration " << iteration;
    }
  }
  expect_moved(*counts, "all_gather", precision.gathered);
  expect_moved(*counts, "reduce_scatter", precision.reduced);
  if (leaves.replicas > 1) expect_moved(*counts, "all_reduce", precision.reduced);
}

// Row 27: compute dtype x reshard, with the dtype on the wire asserted; reduction in float32 over
// bfloat16 parameters and in bfloat16 over float32 ones; parity bit for bit.
TEST(Conformance, Row27_ComputeAndReduceDtypes) {
  constexpr int kIterations = 3;
  for (const Leaves& leaves : {Leaves{.shards = 3}, Leaves{.replicas = 2, .shards = 2}}) {
    for (const auto& precision : precisions()) {
      const auto expected = train_by_hand(precision, leaves, kIterations);
      launch(leaves.ranks(), [&](RankContext& rank) {
        for (const bool reshard_after_forward : {true, false}) {
          SCOPED_TRACE(::testing::Message() << precision << ", reshard " << reshard_after_forward);
          train_sharded(rank, precision, leaves, reshard_after_forward, expected);
        }
      });
    }
  }
}

// Row 27: a first forward with all parameters frozen settles no dtype; unfrozen, they are reduced
// in reduce_dtype as ever.
TEST(Conformance, Row27_DtypesAfterAFrozenFirstForward) {
  for (const auto& precision : precisions()) {
    launch(2, [&](RankContext& rank) {
      const auto counts = std::make_shared<CallCounts>();
      const auto mesh =
          DeviceMesh::flat(std::make_shared<CountingProcessGroup>(rank.group(), counts));
      Stack thawed({.dtype = precision.master}), trained({.dtype = precision.master});
      auto& root = shard_with(precision, thawed, mesh);
      shard_with(precision, trained, mesh);
      const auto set_frozen = [&](bool frozen) {
        for (auto& parameter : thawed.named_parameters()) {
          parameter.tensor.set_requires_grad(!frozen);
        }
      };
      set_frozen(true);
      root.unshard();  // the gathered ones are frozen, too
      EXPECT_FALSE(thawed.parameter_slots().back().tensor->requires_grad());
      root.reshard();
      {
        const NoGradGuard no_grad;
        thawed(input(precision, 0, rank.rank()));
      }
      EXPECT_EQ(counts->calls({.op = "reduce_scatter"}), 0);
      set_frozen(false);
      square_loss(thawed(input(precision, 0, rank.rank()))).backward();
      expect_moved(*counts, "reduce_scatter", precision.reduced);
      square_loss(trained(input(precision, 0, rank.rank()))).backward();
      const auto one = thawed.named_parameters(), two = trained.named_parameters();
      for (std::size_t i = 0; i < one.size(); ++i) {
        EXPECT_TRUE(bitwise_equal(one[i].tensor.grad(), two[i].tensor.grad())) << one[i].name;
      }
    });
  }
}

// Row 28: what is accumulated without reduction is rounded to, kept and added in reduce_dtype.
TEST(Conformance, Row28_AccumulationIsKeptInTheReduceDtype) {
  const Leaves leaves = {.shards = 2, .micro_batches = 3};
  Stack whole({});
  const auto gradients = test::gradients_of_leaves(whole, leaves, [&](int rank, int m) {
    return square_loss(whole(leaf_input({4, 6}, m, rank)));
  });
  for (const auto dtype : {kBF16, kF32, kF64}) {
    const auto leaf = [&](std::size_t i, int rank, int m) {
      return to_dtype(gradients[static_cast<std::size_t>(rank)][static_cast<std::size_t>(m)][i],
                      dtype);
    };
    launch(2, [&](RankContext& rank) {
      Stack stack({});
      auto& root = shard(stack, DeviceMesh::flat(rank.group()),
                         {.mixed_precision = {.reduce_dtype = dtype}});
      const auto backward = [&](int m) {
        root.set_requires_gradient_sync(m == leaves.micro_batches - 1);
        square_loss(stack(leaf_input({4, 6}, m, rank.rank()))).backward();
      };
      const auto parameters = stack.named_parameters();
      for (int m = 0; m < 2; ++m) {
        backward(m);
        const auto pending = root.get_pending_gradients();
        ASSERT_EQ(pending.size(), parameters.size());
        for (std::size_t i = 0; i < parameters.size(); ++i) {
          const auto& name = parameters[i].name;
          const auto kept = std::ranges::find(pending, name, &NamedTensor::name);
          ASSERT_NE(kept, pending.end()) << name;
          EXPECT_TRUE(bitwise_equal(
              kept->tensor,
              test::tree_sum(m + 1, [&](int batch) { return leaf(i, rank.rank(), batch); })))
              << name << " after " << m + 1 << " in " << dtype;
        }
      }
      backward(2);
      EXPECT_TRUE(root.get_pending_gradients().empty());
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        const auto& [name, tensor] = parameters[i];
        const Tensor sum = test::sum_of(leaves, Accumulation::kKept,
                                        [&](int from, int batch) { return leaf(i, from, batch); });
        EXPECT_TRUE(bitwise_equal(tensor.grad(), test::part_of(to_dtype(sum, kF32), tensor)))
            << name << " in " << dtype;
      }
    });
  }
}

/// Tensors in a struct, beside other things.
struct Batch {
  Tensor values;
  Tensor tokens;  // int64
  Tensor nothing = {};
  int repeats = 1;
};

void for_each_tensor(Batch& batch, const nn::TensorVisitor& visit) {
  visit(batch.values);
  visit(batch.tokens);
  visit(batch.nothing);
}

/// Takes and returns what PyTorch's dataclasses and named tuples would hold.
class Structured final : public nn::Callable<Structured> {
 public:
  Structured() : linear_({.in_features = 6, .out_features = 6, .dtype = kF64}) {
    register_module("linear", linear_);
    test::init_random(*this);
  }
  std::tuple<Tensor, std::optional<Tensor>, std::vector<Batch>> forward(
      const Batch& batch, const std::vector<Tensor>& list,
      const std::pair<Tensor, std::optional<Tensor>>& pair) {
    for (const auto& tensor : {batch.values, list[0], list[1], pair.first, *pair.second}) {
      EXPECT_EQ(tensor.dtype(), kF32);
    }
    EXPECT_EQ(batch.tokens.dtype(), Dtype::kInt64);
    EXPECT_FALSE(batch.nothing.defined());
    const Tensor y = linear_(batch.values + list[0] + list[1] + pair.first + *pair.second);
    return {y, y, {{.values = y, .tokens = batch.tokens, .repeats = batch.repeats}}};
  }

 private:
  nn::Linear linear_;
};

// Mixed precision, structured inputs: tensors in structs, vectors, pairs, optionals and tuples are
// cast on their way in and out, with gradients; the caller's own stay as they are.
TEST(Conformance, MixedPrecision_StructuredInputs) {
  launch(2, [](RankContext& rank) {
    Structured model;
    fully_shard(model, DeviceMesh::flat(rank.group()),
                {.mixed_precision = {.param_dtype = kF32, .output_dtype = kF64}});
    const Tensor x = test::randn({3, 6}, 4, kF64, /*requires_grad=*/true);
    const Batch batch = {.values = x, .tokens = Tensor::zeros({2}, Dtype::kInt64), .repeats = 7};
    const std::vector<Tensor> list = {x, x};
    const auto [first, second, third] = model(batch, list, std::pair(x, std::optional(x)));
    EXPECT_EQ(first.dtype(), kF64);
    EXPECT_EQ(second->dtype(), kF64);
    EXPECT_EQ(third[0].values.dtype(), kF64);
    EXPECT_EQ(third[0].tokens.dtype(), Dtype::kInt64);
    EXPECT_EQ(third[0].repeats, 7);
    EXPECT_EQ(batch.values.dtype(), kF64);
    EXPECT_EQ(list[0].dtype(), kF64);
    ops::sum(first + *second + third[0].values).backward();
    EXPECT_EQ(x.grad().dtype(), kF64);
    EXPECT_EQ(model.named_parameters()[0].tensor.grad().dtype(), kF64);
  });
}

// Mixed precision of one submodule: its inputs are cast or not; in the latter case dtypes clash.
TEST(Conformance, MixedPrecision_OnASubmoduleCastsItsInputsOrNot) {
  launch(2, [](RankContext& rank) {
    const auto mesh = DeviceMesh::flat(rank.group());
    const auto run = [&](const MixedPrecisionPolicy& policy) {
      Stack stack({.layers = 2, .dtype = kF64});
      fully_shard(stack.layer(0), mesh, {.mixed_precision = policy});
      fully_shard(stack, mesh);
      return stack(to_dtype(leaf_input({4, 6}, 0, 0), kF64)).dtype();
    };
    EXPECT_EQ(run({.param_dtype = kF32, .output_dtype = kF64}), kF64);
    EXPECT_THROW(run({.param_dtype = kF32}), DtypeError);  // float32 meets a float64 layer
    EXPECT_THROW(run({.param_dtype = kF32, .output_dtype = kF64, .cast_forward_inputs = false}),
                 DtypeError);
  });
}

// Mixed precision of the layers alone: recomputation repeats the casts, within the layers' hooks
// and around them.
TEST(Conformance, MixedPrecision_RecomputationRepeatsTheCasts) {
  launch(2, [](RankContext& rank) {
    std::vector<TensorList> gradients;
    for (const auto recompute : test::kRecomputes) {
      Stack stack({.recompute = recompute, .dtype = kF64});
      const auto mesh = DeviceMesh::flat(rank.group());
      for (std::size_t i = 0; i < stack.size(); ++i) {
        fully_shard(stack.layer(i), mesh,
                    {.mixed_precision = {.param_dtype = kF32, .output_dtype = kF64}});
      }
      fully_shard(stack, mesh);
      square_loss(stack(to_dtype(leaf_input({4, 6}, 0, rank.rank()), kF64))).backward();
      gradients.push_back(test::snapshot(stack).gradients);
    }
    for (std::size_t i = 0; i < gradients[0].size(); ++i) {
      EXPECT_TRUE(bitwise_equal(gradients[0][i], gradients[1][i])) << i;
      EXPECT_TRUE(bitwise_equal(gradients[0][i], gradients[2][i])) << i;
    }
  });
}

}  // namespace
}  // namespace moegrad::fsdp::conformance::mixed_precision_test
