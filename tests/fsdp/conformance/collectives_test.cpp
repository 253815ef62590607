// SPDX-License-Identifier: Apache-2.0
// One group's all-gather and reduce-scatter, at up to 128 ranks.
#include "framework/distributed/collectives.h"

#include <array>
#include <numeric>

#include "framework/distributed/launch.h"
#include "framework/distributed/shard_spec.h"
#include "framework/tensor/tensor_impl.h"
#include "fsdp/flat_layout.h"
#include "fsdp/gradient_reducer.h"
#include "tests/fsdp/conformance/parity.h"
#include "tests/fsdp/conformance/stack.h"
#include "tests/fsdp/conformance/sums.h"
#include "tests/testing.h"

namespace moegrad::fsdp::conformance::collectives_test {
namespace {

using namespace test;

constexpr int kManyRanks = 128;

/// The 8 shapes of PyTorch's test: odd, smaller than the world, larger, vectors and matrices.
const std::vector<Shape>& odd_shapes() {
  static const std::vector<Shape> shapes = {{17, 257}, {17},      {64, 312}, {64},
                                            {64, 64},  {512, 64}, {256},     {64, 297}};
  return shapes;
}

/// Parameters without a forward; values by `seed` and position.
class Bag final : public nn::Callable<Bag> {
 public:
  explicit Bag(const std::vector<Shape>& shapes) : parameters_(shapes.size()) {
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      parameters_[i] = value(shapes[i], i);
      register_parameter(std::to_string(i), parameters_[i]);
    }
  }
  static Tensor value(const Shape& shape, std::size_t i) {
    std::vector<float> values(static_cast<std::size_t>(shape.numel()));
    std::iota(values.begin(), values.end(), static_cast<float>(100'000 * i));
    return Tensor::from(values, shape);
  }

 private:
  TensorList parameters_;
};

// Row 18: all-gather of 8 odd shapes at 128 ranks, with and without a handle, before any forward;
// then reshard and gather again.
TEST(Conformance, Row18_AllGatherAt128Ranks) {
  launch(kManyRanks, [](RankContext& rank) {
    Bag bag(odd_shapes());
    auto& state = fully_shard(bag, DeviceMesh::flat(rank.group()));
    const auto slots = bag.parameter_slots();
    const auto expect_whole = [&] {
      for (std::size_t i = 0; i < slots.size(); ++i) {
        EXPECT_TRUE(bitwise_equal(*slots[i].tensor, Bag::value(odd_shapes()[i], i))) << i;
      }
    };
    const auto expect_shards = [&] {
      for (std::size_t i = 0; i < slots.size(); ++i) {
        const auto& shape = odd_shapes()[i];
        const auto rows = shard_range(shape[0], kManyRanks, rank.rank()).size();
        EXPECT_EQ(slots[i].tensor->numel(), rows * (shape.numel() / shape[0])) << i;
      }
    };
    expect_shards();
    state.unshard();
    expect_whole();
    state.reshard();
    expect_shards();
    auto handle = state.unshard_async();
    expect_shards();
    handle.wait();
    expect_whole();
    handle.wait();  // once more does nothing
    state.reshard();
    expect_shards();
  });
}

// What one rank's backward would leave: numbers of both signs that bfloat16 rounds.
Tensor gradient(const Shape& shape, std::size_t parameter, int rank) {
  std::vector<float> values(static_cast<std::size_t>(shape.numel()));
  std::uint32_t bits =
      static_cast<std::uint32_t>(rank) * 8191U + static_cast<std::uint32_t>(parameter);
  for (auto& value : values) {
    bits = bits * 1664525U + 1013904223U;
    value = static_cast<float>(bits >> 8U) / 65536.0F - 128.0F;
  }
  return Tensor::from(values, shape);
}

// As a backward does.
void bring(const ParamGroup& group, std::size_t parameter, Tensor grad) {
  auto* const arrival = group.params()[parameter].unsharded.impl()->leaf_state().accumulator;
  arrival->add(std::move(grad), {});
  arrival->complete();
}

// Row 19: reduce-scatter of the same shapes at 128 ranks in float32 and bfloat16, against an
// all-reduce in the same dtype, whose order is the same; bit for bit. There are no divide factors.
TEST(Conformance, Row19_ReduceScatterAt128Ranks) {
  launch(kManyRanks, [](RankContext& rank) {
    for (const auto dtype : {Dtype::kFloat32, Dtype::kBFloat16}) {
      Bag bag(odd_shapes());
      auto& state = fully_shard(bag, DeviceMesh::flat(rank.group()),
                                {.mixed_precision = {.reduce_dtype = dtype}});
      auto& group = *state.group();
      for (std::size_t i = 0; i < group.params().size(); ++i) {
        bring(group, i, gradient(odd_shapes()[i], i, rank.rank()));
      }
      group.reducer().start(/*all_reduce=*/true, /*zero_fill=*/false, "bag", /*round=*/1);
      group.reducer().finish();
      for (std::size_t i = 0; i < group.params().size(); ++i) {
        Tensor sum = to_dtype(gradient(odd_shapes()[i], i, rank.rank()), dtype);
        rank.group()->all_reduce(sum.mutable_bytes(), dtype, ReduceOp::kSum)->wait();
        const Tensor& sharded = group.params()[i].sharded;
        EXPECT_TRUE(
            bitwise_equal(sharded.grad(), test::part_of(to_dtype(sum, Dtype::kFloat32), sharded)))
            << "parameter " << i << " in " << to_string(dtype);
      }
      EXPECT_FALSE(group.reducer().has_gradients());
    }
  });
}

// Row 21. PyTorch divides by the number of ranks or by a factor of the user's; here a gradient is
// the sum over all ranks, whatever the mesh, and nobody divides. So: exact sums, in float32 and
// bfloat16, in the order of the ranks.
TEST(Conformance, Row21_GradientsAreSumsOnEveryMesh) {
  struct Mesh {
    int replicas, shards;
  };
  for (const auto [replicas, shards] : {Mesh{1, 1},
                                        {1, 2},
                                        {2, 1},
                                        {1, 3},
                                        {3, 1},
                                        {1, 4},
                                        {2, 2},
                                        {4, 1},
                                        {3, 2},
                                        {2, 3},
                                        {2, 4}}) {
    launch(replicas * shards, [&, replicas = replicas, shards = shards](RankContext& rank) {
      const DeviceMesh mesh(rank.group(), {{"replicate", replicas}, {"shard", shards}});
      const std::vector<Shape> shapes = {{5, 3}, {1}, {8}};
      for (const auto dtype : {Dtype::kFloat32, Dtype::kBFloat16}) {
        Bag bag(shapes);
        auto& state = fully_shard(bag, mesh, {.mixed_precision = {.reduce_dtype = dtype}});
        auto& group = *state.group();
        const auto reduce = [&](const auto& term) {
          for (std::size_t i = 0; i < shapes.size(); ++i) {
            bring(group, i, term(i, rank.rank()));
          }
          group.reducer().start(/*all_reduce=*/true, /*zero_fill=*/false, "bag", /*round=*/1);
          group.reducer().finish();
        };
        const auto expect_sum = [&](std::size_t i, const Tensor& sum) {
          const Tensor& sharded = group.params()[i].sharded;
          EXPECT_TRUE(bitwise_equal(sharded.grad(), test::part_of(sum, sharded)))
              << replicas << "x" << shards << ", " << to_string(dtype) << ", parameter " << i;
          sharded.set_grad(Tensor());
        };
        // 1 + 2 + ... + ranks: exact even in bfloat16.
        reduce([&](std::size_t i, int r) { return Tensor::full(shapes[i], r + 1); });
        const int ranks = replicas * shards;
        for (std::size_t i = 0; i < shapes.size(); ++i) {
          expect_sum(i, Tensor::full(shapes[i], ranks * (ranks + 1) / 2));
        }
        reduce([&](std::size_t i, int r) { return gradient(shapes[i], i, r); });
        for (std::size_t i = 0; i < shapes.size(); ++i) {
          const Tensor sum = test::sum_of(
              {.replicas = replicas, .shards = shards}, Accumulation::kReduced,
              [&](int r, int /*m*/) { return to_dtype(gradient(shapes[i], i, r), dtype); });
          expect_sum(i, to_dtype(sum, Dtype::kFloat32));
        }
      }
    });
  }
}

// Row 21, through forward and backward, and for the root as for the groups below it.
TEST(Conformance, Row21_LossesAreSummedOverRanks) {
  test::Stack whole({.layers = 1});
  const auto loss_of = [](test::Stack& stack) {
    return ops::sum(stack(randn({3, 6}, 9, Dtype::kFloat32)));
  };
  loss_of(whole).backward();
  const auto gradients = test::snapshot(whole).gradients;
  for (const int replicas : {1, 2, 4}) {
    launch(4, [&](RankContext& rank) {
      test::Stack stack({.layers = 1});
      const DeviceMesh mesh(rank.group(), {{"replicate", replicas}, {"shard", 4 / replicas}});
      test::shard(stack, mesh, {});
      loss_of(stack).backward();
      const auto parameters = stack.named_parameters();
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        // Four times the same number: exact.
        EXPECT_TRUE(
            bitwise_equal(parameters[i].tensor.grad(),
                          test::part_of(ops::mul(gradients[i], 4.0), parameters[i].tensor)));
      }
    });
  }
}

}  // namespace
}  // namespace moegrad::fsdp::conformance::collectives_test
