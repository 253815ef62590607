// SPDX-License-Identifier: Apache-2.0
#include "ops/tensor_parallel.h"

#include <gtest/gtest.h>

#include <vector>

#include "framework/autograd/engine.h"
#include "framework/distributed/launch.h"
#include "framework/runtime/rank_context.h"
#include "ops/copies.h"
#include "ops/elementwise.h"
#include "ops/masks.h"
#include "ops/nz.h"
#include "ops/split_cat.h"
#include "ops/views.h"
#include "tests/testing.h"

namespace moegrad::ops::tensor_parallel_test {
namespace {

using namespace test;

constexpr auto kF32 = Dtype::kFloat32, kF64 = Dtype::kFloat64, kBf16 = Dtype::kBFloat16;

using Group = std::shared_ptr<ProcessGroup>;

Tensor of_rank(const Shape& shape, std::uint64_t seed, int rank, Dtype dtype = kF64) {
  return to_dtype(randn(shape, 100 * seed + static_cast<std::uint64_t>(rank)), dtype);
}

// The sum over three ranks, along the tree of Note [Reduction order].
Tensor sum_of_three(const Shape& shape, std::uint64_t seed, Dtype dtype = kF64) {
  return ((of_rank(shape, seed, 0, dtype) + of_rank(shape, seed, 1, dtype)) +
          of_rank(shape, seed, 2, dtype))
      .detach();
}

Tensor part_of(const Tensor& whole, std::int64_t dim, int rank, int ranks) {
  const auto size = whole.dim(dim) / ranks;
  return clone(Tensor::narrow(whole, dim, rank * size, size));
}

Tensor side_by_side(const Shape& shape, std::uint64_t seed, std::int64_t dim, int ranks,
                    Dtype dtype = kF64) {
  TensorList parts;
  for (int rank = 0; rank < ranks; ++rank) parts.push_back(of_rank(shape, seed, rank, dtype));
  return cat(parts, dim).detach();
}

template <class Body>
void on_three(const Body& body) {
  launch(3, [&](RankContext& context) { body(context.group(), context.rank()); });
}

TEST(TensorParallel, CopyToRanksAddsGradients) {
  on_three([](const Group& group, int rank) {
    const Tensor x = randn({4, 5}, 1, kF64, true);
    const Tensor y = copy_to_ranks(group, transpose(x, 0, 1));
    EXPECT_TRUE(bitwise_equal(y, transpose(x, 0, 1).detach()));
    EXPECT_EQ(&y.storage(), &x.storage());
    y.backward(of_rank({5, 4}, 2, rank));
    EXPECT_TRUE(bitwise_equal(x.grad(), transpose(sum_of_three({5, 4}, 2), 0, 1).detach()));
  });
}

// Gradients of bfloat16 are added in float32; that of a leaf is not rounded.
TEST(TensorParallel, CopyToRanksAddsGradientsOfBFloat16InFloat32) {
  on_three([](const Group& group, int rank) {
    const Tensor weight = randn({32, 16}, 1, kF32, true);
    EXPECT_EQ(copy_to_ranks(group, cast_to_nz(weight, {1, 32, 16}, true)).layout(), Layout::kNZ);
    copy_to_ranks(group, cast(weight, kBf16)).backward(of_rank({32, 16}, 2, rank, kBf16));
    Tensor sum = to_dtype(of_rank({32, 16}, 2, 0, kBf16), kF32);
    for (const int r : {1, 2})
      sum = (sum + to_dtype(of_rank({32, 16}, 2, r, kBf16), kF32)).detach();
    EXPECT_TRUE(bitwise_equal(weight.grad(), sum));

    // Two uses on a rank, too.
    const Tensor other = randn({32, 16}, 1, kF32, true);
    const Tensor narrow = copy_to_ranks(group, cast(other, kBf16));
    cat({narrow, narrow}, 0).backward(of_rank({64, 16}, 2, rank, kBf16));
    const auto of_uses = [](int r) {
      const Tensor both = to_dtype(of_rank({64, 16}, 2, r, kBf16), kF32);
      return (part_of(both, 0, 0, 2) + part_of(both, 0, 1, 2)).detach();
    };
    EXPECT_TRUE(bitwise_equal(other.grad(), ((of_uses(0) + of_uses(1)) + of_uses(2)).detach()));
  });
}

TEST(TensorParallel, CopyToRanksWritesIntoNoGradientThatOthersRead) {
  on_three([](const Group& group, int rank) {
    const Tensor x = variable({4, 5}, 1), beside = variable({4, 5}, 2);
    const Tensor own = of_rank({4, 5}, 3, rank);
    add(beside, copy_to_ranks(group, x)).backward(own);
    EXPECT_TRUE(bitwise_equal(beside.grad(), of_rank({4, 5}, 3, rank)));
    EXPECT_TRUE(bitwise_equal(own, of_rank({4, 5}, 3, rank)));
    EXPECT_TRUE(bitwise_equal(x.grad(), sum_of_three({4, 5}, 3)));
  });
}

TEST(TensorParallel, ReduceFromRanksPassesGradientsOn) {
  on_three([](const Group& group, int rank) {
    const Tensor x = of_rank({4, 5}, 1, rank).set_requires_grad(true);
    const Tensor y = reduce_from_ranks(group, x);
    EXPECT_TRUE(bitwise_equal(y.detach(), sum_of_three({4, 5}, 1)));
    EXPECT_TRUE(bitwise_equal(x.detach(), of_rank({4, 5}, 1, rank)));
    const Tensor cotangent = randn({4, 5}, 3);
    y.backward(cotangent);
    EXPECT_TRUE(bitwise_equal(x.grad(), cotangent));
  });
}

TEST(TensorParallel, ScatterAndGatherAreConjugates) {
  for (const auto& [shape, dim] : std::vector<std::pair<Shape, std::int64_t>>{
           {{6}, 0}, {{6, 2}, 0}, {{2, 6}, -1}, {{2, 3, 4}, 1}, {{0, 3}, 1}, {{3, 0}, 0}}) {
    on_three([shape = shape, dim = dim](const Group& group, int rank) {
      const auto d = dim < 0 ? dim + shape.ndim() : dim;
      Shape part = shape;
      part[d] /= 3;
      for (const auto dtype : {kF64, kBf16}) {
        const Tensor x = to_dtype(randn(shape, 1), dtype).set_requires_grad(true);
        const Tensor own = scatter_to_ranks(group, x, dim);
        EXPECT_TRUE(bitwise_equal(own.detach(), part_of(x.detach(), d, rank, 3)));
        EXPECT_NE(&own.storage(), &x.storage());
        own.backward(of_rank(part, 2, rank, dtype));
        EXPECT_TRUE(bitwise_equal(x.grad(),
                                  to_dtype(side_by_side(part, 2, d, 3, dtype), x.grad().dtype())));

        const Tensor z = of_rank(part, 3, rank, dtype).set_requires_grad(true);
        const Tensor all = gather_from_ranks(group, z, dim);
        EXPECT_TRUE(bitwise_equal(all.detach(), side_by_side(part, 3, d, 3, dtype)));
        const Tensor cotangent = to_dtype(randn(shape, 4), dtype);
        all.backward(cotangent);
        EXPECT_TRUE(
            bitwise_equal(z.grad(), to_dtype(part_of(cotangent, d, rank, 3), z.grad().dtype())));
      }
    });
  }
}

TEST(TensorParallel, TakesTensorsThatAreNotContiguous) {
  on_three([](const Group& group, int rank) {
    const Tensor all = gather_from_ranks(group, transpose(of_rank({4, 5}, 1, rank), 0, 1), 0);
    EXPECT_TRUE(bitwise_equal(all, contiguous(transpose(side_by_side({4, 5}, 1, 1, 3), 0, 1))));
    const Tensor x = variable({6, 4}, 2);
    transpose(scatter_to_ranks(group, x, 0), 0, 1).backward(of_rank({4, 2}, 3, rank));
    EXPECT_TRUE(
        bitwise_equal(x.grad(), contiguous(transpose(side_by_side({4, 2}, 3, 1, 3), 0, 1))));
  });
}

TEST(TensorParallel, RefusesWhatDoesNotFit) {
  on_three([](const Group& group, int /*rank*/) {
    const Tensor x = randn({4, 6}, 1, kF32);
    EXPECT_EQ(message_of<ValueError>([&] { copy_to_ranks(nullptr, x); }),
              "copy_to_ranks: needs a process group, got null");
    EXPECT_EQ(message_of<DtypeError>([&] { reduce_from_ranks(group, to_dtype(x, kBf16)); }),
              "reduce_from_ranks: needs float32, float64 or int64, got bfloat16; convert it with "
              "ops::cast");
    EXPECT_EQ(message_of<DtypeError>([&] { gather_from_ranks(group, eq(x, x), 0); }),
              "gather_from_ranks: needs float32, float64, bfloat16 or int64, got bool");
    EXPECT_EQ(message_of<ShapeError>([&] { scatter_to_ranks(group, x, 0); }),
              "scatter_to_ranks: the 3 ranks must divide dimension 0 of x, got [4, 6]");
    EXPECT_EQ(message_of<ShapeError>([&] { gather_from_ranks(group, x, 2); }),
              "gather_from_ranks: dimension must be in [-2, 1], got 2");
    EXPECT_EQ(message_of<UndefinedTensorError>([&] { copy_to_ranks(group, {}); }),
              "copy_to_ranks: input 0 must be a defined tensor, got an undefined one");
  });
}

}  // namespace
}  // namespace moegrad::ops::tensor_parallel_test
