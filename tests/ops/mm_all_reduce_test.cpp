// SPDX-License-Identifier: Apache-2.0
#include "ops/mm_all_reduce.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "framework/autograd/engine.h"
#include "framework/distributed/comm_handle.h"
#include "framework/distributed/launch.h"
#include "framework/runtime/grad_mode.h"
#include "framework/runtime/rank_context.h"
#include "ops/copies.h"
#include "ops/elementwise.h"
#include "ops/linear.h"
#include "ops/nz.h"
#include "ops/reduce.h"
#include "ops/tensor_parallel.h"
#include "ops/views.h"
#include "tests/testing.h"

namespace moegrad::ops::mm_all_reduce_test {
namespace {

using namespace test;

constexpr auto kF32 = Dtype::kFloat32, kF64 = Dtype::kFloat64, kBf16 = Dtype::kBFloat16;

Tensor values(const Shape& shape, std::uint64_t seed, Dtype dtype) {
  return to_dtype(randn(shape, seed), dtype).set_requires_grad(true);
}

/// x1, x2 (each rank's own), bias and x3 (alike).
TensorList operands(const Shape& x1, std::int64_t n, Dtype dtype, int rank) {
  const auto own = static_cast<std::uint64_t>(rank);
  Shape y = x1;
  y[-1] = n;
  return {values(x1, 10 + own, dtype), values({x1[-1], n}, 20 + own, dtype),
          values({n}, 3, dtype == kBf16 ? kF32 : dtype), values(y, 4, dtype)};
}

// One op after the other, with nothing rounded in between.
Tensor step_by_step(const std::shared_ptr<ProcessGroup>& group, const TensorList& in) {
  const auto dtype = in[0].dtype();
  const Tensor& x1 = in[0];
  const Tensor rows = reshape(x1, {x1.numel() / x1.dim(-1), x1.dim(-1)});
  const Tensor product =
      linear(rows, contiguous(transpose(in[1], 0, 1)), 0, arithmetic_dtype(dtype));
  Shape shape = x1.shape();
  shape[-1] = in[1].dim(1);
  const Tensor sum = reshape(add(reduce_from_ranks(group, product), in[2]), shape);
  return cast(add(sum, in[3]), dtype);
}

void expect_same_gradients(const TensorList& got, const TensorList& expected) {
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_TRUE(bitwise_equal(got[i].grad(), expected[i].grad())) << "input " << i;
  }
}

TEST(MmAllReduce, HasTheBitsOfOneOpAfterTheOtherForEveryNumberOfTiles) {
  for (const auto dtype : {kF32, kF64, kBf16}) {
    for (const int ranks : {1, 2, 4}) {
      launch(ranks, [&](RankContext& context) {
        const auto& group = context.group();
        const auto handle = comm_handle(group);
        for (const auto& shape : {Shape{13, 40}, Shape{3, 5, 8}, Shape{1, 1}, Shape{64, 300}}) {
          const auto plain = operands(shape, 9, dtype, context.rank());
          const Tensor expected = step_by_step(group, plain);
          const Tensor cotangent = to_dtype(randn(expected.shape(), 5), dtype);
          expected.backward(cotangent);
          for (const std::int64_t tiles : {1, 2, 3, 7, 100}) {
            const auto in = operands(shape, 9, dtype, context.rank());
            const Tensor y =
                mm_all_reduce(in[0], in[1], handle, {.bias = in[2], .x3 = in[3], .tiles = tiles});
            EXPECT_TRUE(bitwise_equal(y.detach(), expected.detach()))
                << dtype << shape << tiles << " tiles";
            y.backward(cotangent);
            expect_same_gradients(in, plain);
          }
        }
      });
    }
  }
}

// So that one is on its way while the other is added.
TEST(MmAllReduce, SendsEveryOtherTileInAnotherQueue) {
  std::string report;
  const auto body = [](RankContext& context) {
    mm_all_reduce(randn({6, 4}, 1), randn({4, 3}, 2), comm_handle(context.group()), {.tiles = 3});
    throw Error("to see what ran");
  };
  EXPECT_THROW(launch(2, body, {.on_failure = [&](const std::string& text) { report = text; }}),
               Error);
  const auto count = [&](const std::string& text) {
    int found = 0;
    for (auto at = report.find(text); at != std::string::npos; at = report.find(text, at + 1)) {
      ++found;
    }
    return found;
  };
  EXPECT_EQ(count("queue odd tiles"), 1) << report;
  EXPECT_EQ(count("mm_all_reduce"), 3) << report;
}

TEST(MmAllReduce, ReadsATransposedViewAndLeavesOptionalOperandsOut) {
  launch(2, [](RankContext& context) {
    const auto handle = comm_handle(context.group());
    const auto in = operands({6, 10}, 7, kF64, context.rank());
    const Tensor expected = mm_all_reduce(in[0], in[1], handle);
    const Tensor turned =
        clone(contiguous(transpose(in[1].detach(), 0, 1))).set_requires_grad(true);
    const std::int64_t before = context.counters().materialized_transposes;
    const Tensor y = mm_all_reduce(in[0].detach(), transpose(turned, 0, 1), handle);
    EXPECT_TRUE(bitwise_equal(y.detach(), expected.detach()));
    EXPECT_EQ(context.counters().materialized_transposes.load(), before);
    const Tensor cotangent = randn({6, 7}, 5);
    expected.backward(cotangent);
    y.backward(cotangent);
    EXPECT_TRUE(bitwise_equal(turned.grad(), contiguous(transpose(in[1].grad(), 0, 1))));
  });
}

// The objective is alike on all ranks, so a rank's own operands move alone, and the others on all.
TEST(MmAllReduce, GradientsMatchFiniteDifferences) {
  for (const int ranks : {2, 4}) {
    launch(ranks, [&](RankContext& context) {
      const auto handle = comm_handle(context.group());
      const auto in = operands({3, 4}, 5, kF64, context.rank());
      const Tensor cotangent = randn({3, 5}, 6);
      const auto objective = [&](const TensorList& leaves) {
        return ops::sum(cotangent *
                        mm_all_reduce(leaves[0], leaves[1], handle,
                                      {.bias = leaves[2], .x3 = leaves[3], .tiles = 2}));
      };
      objective(in).backward();
      for (std::size_t i = 0; i < in.size(); ++i) {
        const Tensor grad = in[i].grad();
        for (int rank = 0; rank < (i < 2 ? ranks : 1); ++rank) {
          for (std::int64_t e = 0; e < in[i].numel(); ++e) {
            const auto at = [&](double step) {
              const NoGradGuard no_grad;
              TensorList moved = in;
              moved[i] = clone(in[i]);
              if (i >= 2 || rank == context.rank()) {
                moved[i].mutable_data<double>()[static_cast<std::size_t>(e)] += step;
              }
              return objective(moved).item();
            };
            const double expected = (at(1e-5) - at(-1e-5)) / 2e-5;
            if (i < 2 && rank != context.rank()) continue;
            EXPECT_NEAR(grad.data<double>()[static_cast<std::size_t>(e)], expected,
                        1e-7 * (1 + std::abs(expected)))
                << "input " << i << ", element " << e;
          }
        }
      }
    });
  }
}

TEST(MmAllReduce, RefusesWhatItsDocumentDoesNotAllow) {
  launch(2, [](RankContext& context) {
    const auto handle = comm_handle(context.group());
    const auto in = operands({6, 10}, 7, kF32, context.rank());
    const auto refused = [&](const MmAllReduceOptions& options) {
      return message_of<Error>([&] { mm_all_reduce(in[0], in[1], handle, options); });
    };
    EXPECT_EQ(refused({.reduce_op = "max"}), "mm_all_reduce: reduce_op must be 'sum', got 'max'");
    EXPECT_EQ(refused({.comm_turn = 1}), "mm_all_reduce: comm_turn must be 0, got 1");
    EXPECT_EQ(refused({.tiles = 0}), "mm_all_reduce: tiles must be at least 1, got 0");
    EXPECT_EQ(refused({.bias = randn({6}, 1, kF32)}), "mm_all_reduce: bias must be [7], got [6]");
    EXPECT_EQ(refused({.x3 = randn({7}, 1, kF32)}),
              "mm_all_reduce: x3 must be [6, 7] as y, got [7]");
    EXPECT_EQ(refused({.bias = randn({7}, 1)}), "mm_all_reduce: x1 is float32 but bias is float64");
    const auto message = [&](const Tensor& x1, const Tensor& x2, const std::string& comm) {
      return message_of<Error>([&] { mm_all_reduce(x1, x2, comm); });
    };
    EXPECT_EQ(message(in[0], randn({9, 7}, 1, kF32), handle),
              "mm_all_reduce: x2 must be [10, n] to match x1 [6, 10], got [9, 7]");
    EXPECT_EQ(message(randn({10}, 1, kF32), in[1], handle),
              "mm_all_reduce: x1 must be [m, k] or [b, m, k], got [10]");
    EXPECT_EQ(message(randn({0, 10}, 1, kF32), in[1], handle),
              "mm_all_reduce: x1 and x2 must have elements, got [0, 10] and [10, 7]");
    EXPECT_EQ(message(transpose(randn({10, 6}, 1, kF32), 0, 1), in[1], handle),
              "mm_all_reduce: x1 must be contiguous, got shape [6, 10] with strides [1, 6]");
    EXPECT_EQ(message(in[0], to_dtype(in[1].detach(), kF64), handle),
              "mm_all_reduce: x1 is float32 but x2 is float64");
    EXPECT_EQ(
        message(in[0], in[1], "tp"),
        "mm_all_reduce: 'tp' must be the comm_handle() of a group of this rank, got a name that "
        "none has");
    const NoGradGuard no_grad;
    EXPECT_THROW(mm_all_reduce(cast(in[0], kBf16), cast_to_nz(in[1], {1, 10, 7}, false), handle),
                 LayoutError);
  });
}

TEST(CommHandle, NamesOneLivingGroupOfARank) {
  launch(2, [](RankContext& context) {
    const auto& world = context.group();
    const std::vector<int> both = {0, 1};
    auto first = world->subgroup(both, "tp");
    const auto second = world->subgroup(both, "tp");
    const auto handle = comm_handle(first);
    EXPECT_EQ(comm_handle(first), handle);
    EXPECT_NE(comm_handle(second), handle);
    EXPECT_EQ(group_of_handle("op", handle), first);
    EXPECT_EQ(group_of_handle("op", comm_handle(second)), second);
    first.reset();
    EXPECT_THROW(group_of_handle("op", handle), ValueError);
    const auto third = world->subgroup(both, "tp"), other = world->subgroup(both, "other");
    EXPECT_NE(comm_handle(third), handle);
    EXPECT_THROW(group_of_handle("op", handle), ValueError);
    EXPECT_NE(comm_handle(third), comm_handle(second));
    EXPECT_EQ(group_of_handle("op", comm_handle(other)), other);
    EXPECT_EQ(message_of<ValueError>([] { comm_handle(nullptr); }),
              "comm_handle: needs a process group, got null");
  });
}

}  // namespace
}  // namespace moegrad::ops::mm_all_reduce_test
