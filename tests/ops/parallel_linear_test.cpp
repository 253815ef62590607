// SPDX-License-Identifier: Apache-2.0
#include "ops/parallel_linear.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "framework/autograd/engine.h"
#include "framework/autograd/function.h"
#include "framework/distributed/collectives.h"
#include "framework/distributed/launch.h"
#include "framework/runtime/arena.h"
#include "framework/runtime/grad_mode.h"
#include "framework/runtime/rank_context.h"
#include "ops/copies.h"
#include "ops/elementwise.h"
#include "ops/linear.h"
#include "ops/nz.h"
#include "ops/reduce.h"
#include "ops/views.h"
#include "tests/testing.h"

namespace moegrad::ops::parallel_linear_test {
namespace {

using namespace test;

constexpr auto kF32 = Dtype::kFloat32, kF64 = Dtype::kFloat64, kBf16 = Dtype::kBFloat16;

struct Case {
  std::int64_t rows, in, out;
  Dtype dtype = kF32;
  ParallelLinearOptions options = {};
};

struct Results {
  Tensor y, grad_x, grad_weight;
};

Tensor values(const Shape& shape, std::uint64_t seed, Dtype dtype) {
  return to_dtype(randn(shape, seed, dtype == kF64 ? kF64 : kF32), dtype);
}

Tensor x_of(const Case& c) { return values({c.rows, c.in}, 1, c.dtype); }
Tensor weight_of(const Case& c) { return values({c.out, c.in}, 2, c.dtype); }
Tensor cotangent_of(const Case& c) {
  return values({c.rows, c.out}, 3, c.options.dtype.value_or(c.dtype));
}

Tensor part_of(const Tensor& whole, std::int64_t dim, const ProcessGroup& group) {
  const auto size = whole.dim(dim) / group.size();
  return clone(Tensor::narrow(whole, dim, group.rank() * size, size));
}

Results whole(const Case& c) {
  const Tensor x = x_of(c).set_requires_grad(true), weight = weight_of(c).set_requires_grad(true);
  const Tensor y = linear(x, weight, c.options.gradient_rows, c.options.dtype);
  y.backward(cotangent_of(c));
  return {y.detach(), x.grad(), weight.grad()};
}

enum class Side { kColumns, kRows };

// What this rank has of the same, and what it must be.
void expect_parts(const Case& c, Side side, const Results& expected,
                  const std::function<void(const Tensor&, const Tensor&, const char*)>& compare) {
  const auto& group = RankContext::current().group();
  const bool columns = side == Side::kColumns, divided = c.options.divided_rows;
  const auto of_x = [&](const Tensor& t) {
    if (columns) return divided ? part_of(t, 0, *group) : clone(t);
    return part_of(t, 1, *group);
  };
  const auto of_y = [&](const Tensor& t) {
    if (!columns) return divided ? part_of(t, 0, *group) : clone(t);
    return part_of(t, 1, *group);
  };
  const Tensor x = of_x(x_of(c)).set_requires_grad(true);
  const Tensor weight = part_of(weight_of(c), columns ? 0 : 1, *group).set_requires_grad(true);
  const Tensor y = columns ? column_parallel_linear(group, x, weight, c.options)
                           : row_parallel_linear(group, x, weight, c.options);
  y.backward(of_y(cotangent_of(c)));
  compare(y.detach(), of_y(expected.y), "y");
  compare(x.grad(), of_x(expected.grad_x), "grad of x");
  compare(weight.grad(), part_of(expected.grad_weight, columns ? 0 : 1, *group), "grad of weight");
}

void expect_same_bits(const Case& c, Side side, int ranks, const LaunchOptions& how = {}) {
  const auto expected = whole(c);
  launch(
      ranks,
      [&](RankContext&) {
        expect_parts(c, side, expected, [](const Tensor& got, const Tensor& is, const char* what) {
          EXPECT_TRUE(bitwise_equal(got, is)) << what;
        });
      },
      how);
}

TEST(ParallelLinear, HasTheBitsOfOneRank) {
  for (const bool divided : {false, true}) {
    for (const auto& [dtype, size] : {std::pair{kF32, 1024}, {kF64, 768}, {kBf16, 2048}}) {
      for (const int ranks : {1, 2, 4, 8}) {
        if (dtype == kF64 && ranks == 8) continue;
        SCOPED_TRACE(std::string(to_string(dtype)) + (divided ? ", rows divided, " : ", ") +
                     std::to_string(ranks) + " ranks");
        expect_same_bits({40, 24, size, dtype, {.divided_rows = divided}}, Side::kColumns, ranks);
        expect_same_bits({40, size, 24, dtype, {.divided_rows = divided}}, Side::kRows, ranks);
      }
    }
  }
}

// Tiles of any number, also more than there are rows.
TEST(ParallelLinear, HasTheBitsOfOneRankInTiles) {
  for (const bool divided : {false, true}) {
    for (const auto& [dtype, size] : {std::pair{kF32, 1024}, {kBf16, 2048}}) {
      for (const int ranks : {1, 2, 4}) {
        for (const std::int64_t tiles : {2, 3, 50}) {
          SCOPED_TRACE(std::to_string(ranks) + " ranks, " + std::to_string(tiles) + " tiles");
          const ParallelLinearOptions options{.divided_rows = divided, .tiles = tiles};
          expect_same_bits({40, 24, size, dtype, options}, Side::kColumns, ranks);
          expect_same_bits({40, size, 24, dtype, options}, Side::kRows, ranks);
        }
      }
    }
  }
  expect_same_bits({0, 24, 1024, kF32, {.divided_rows = true, .tiles = 3}}, Side::kColumns, 2);
  expect_same_bits({0, 1024, 24, kF32, {.divided_rows = true, .tiles = 3}}, Side::kRows, 2);
}

// What a collective reads and fills is there until it ends, however late.
TEST(ParallelLinear, HasTheBitsOfOneRankWithLateCollectives) {
  LaunchOptions late;
  late.jitter = {.maximum = std::chrono::milliseconds(2), .seed = 1};
  for (const bool divided : {false, true}) {
    for (const std::int64_t tiles : {1, 4}) {
      const ParallelLinearOptions options{.divided_rows = divided, .tiles = tiles};
      expect_same_bits({64, 512, 1024, kF32, options}, Side::kColumns, 4, late);
      expect_same_bits({64, 1024, 512, kF32, options}, Side::kRows, 4, late);
    }
  }
}

// A head: logits in float32, trees of so many rows in the weight's gradient.
TEST(ParallelLinear, HasTheBitsOfOneRankAsAHead) {
  for (const bool divided : {false, true}) {
    expect_same_bits(
        {96, 24, 1024, kBf16, {.divided_rows = divided, .gradient_rows = 32, .dtype = kF32}},
        Side::kColumns, 2);
    expect_same_bits({96, 24, 1024, kF32, {.divided_rows = divided, .gradient_rows = 32}},
                     Side::kColumns, 2);
  }
}

// Sums of 512 terms over 8 ranks are no subtrees, so this could not pass if ranks did not matter.
TEST(ParallelLinear, HasOtherBitsWherePartsAreNoSubtrees) {
  const Case c{40, 512, 24};
  const auto expected = whole(c);
  launch(8, [&](RankContext&) {
    expect_parts(c, Side::kRows, expected, [](const Tensor& got, const Tensor& is, const char* w) {
      const bool same = bool(bitwise_equal(got, is));
      EXPECT_FALSE(same && std::string_view(w) == "y");
      EXPECT_TRUE(all_close(got, is, 1e-4, 1e-4)) << w;
    });
  });
}

TEST(ParallelLinear, IsTheSameFunctionForAwkwardShapes) {
  for (const int ranks : {2, 3}) {
    for (const bool divided : {false, true}) {
      for (const auto& c : {Case{6, 5, 6, kF64}, {6, 1, 12, kF64}, {0, 5, 6, kF64}}) {
        Case columns = c, rows{c.rows, c.out, c.in, kF64};
        columns.options.divided_rows = rows.options.divided_rows = divided;
        for (const auto side : {Side::kColumns, Side::kRows}) {
          const auto& one = side == Side::kColumns ? columns : rows;
          const auto expected = whole(one);
          launch(ranks, [&](RankContext&) {
            expect_parts(one, side, expected,
                         [](const Tensor& got, const Tensor& is, const char* what) {
                           EXPECT_TRUE(all_close(got, is, 1e-12, 1e-12)) << what;
                         });
          });
        }
      }
    }
  }
}

// x, y: [4, 3, .], of which the first dimension may be divided. Only what needs a gradient gets
// one.
TEST(ParallelLinear, TakesRowsOfSeveralDimensionsAndNeedsNoGradientOfBoth) {
  const Shape of_x = {4, 3, 6}, of_y = {4, 3, 8};
  launch(2, [&](RankContext& context) {
    const auto& group = context.group();
    for (const bool columns : {true, false}) {
      for (const bool divided : {false, true}) {
        for (const auto& [needs_x, needs_weight] : {std::pair{true, false}, {false, true}}) {
          SCOPED_TRACE(std::string(columns ? "columns" : "rows") + (divided ? ", divided" : "") +
                       (needs_x ? ", x" : ", weight"));
          const Tensor x = variable(of_x, 1), weight = variable({8, 6}, 2);
          const Tensor y = linear(x, weight), cotangent = randn(of_y, 3);
          y.backward(cotangent);
          const auto x_part = [&, d = divided](const Tensor& t) {
            return columns ? (d ? part_of(t, 0, *group) : clone(t)) : part_of(t, 2, *group);
          };
          const auto y_part = [&, d = divided](const Tensor& t) {
            return columns ? part_of(t, 2, *group) : (d ? part_of(t, 0, *group) : clone(t));
          };
          const Tensor own_x = x_part(x.detach()).set_requires_grad(needs_x);
          const Tensor own =
              part_of(weight.detach(), columns ? 0 : 1, *group).set_requires_grad(needs_weight);
          const ParallelLinearOptions options{.divided_rows = divided};
          const Tensor got = columns ? column_parallel_linear(group, own_x, own, options)
                                     : row_parallel_linear(group, own_x, own, options);
          EXPECT_TRUE(all_close(got, y_part(y.detach()), 1e-12, 1e-12));
          EXPECT_EQ(got.grad_fn()->flops(), 2 * 12 * 6 * 8 / 2);
          // The gradient comes as a transposed view.
          transpose(got, 0, 2).backward(contiguous(transpose(y_part(cotangent), 0, 2)));
          const Tensor grad = needs_x ? own_x.grad() : own.grad();
          EXPECT_TRUE(all_close(
              grad, needs_x ? x_part(x.grad()) : part_of(weight.grad(), columns ? 0 : 1, *group),
              1e-12, 1e-12));
          EXPECT_FALSE((needs_x ? own : own_x).grad().defined());
        }
      }
    }
  });
}

// What the tape says of the whole program: x is alike on all ranks, and its objective counts once.
TEST(ParallelLinear, GradientsMatchFiniteDifferences) {
  launch(2, [](RankContext& context) {
    const auto& group = context.group();
    for (const bool divided : {false, true}) {
      const Tensor x = divided ? part_of(randn({4, 3}, 1), 0, *group) : randn({4, 3}, 1);
      const TensorList inputs = {clone(x).set_requires_grad(true),
                                 part_of(randn({6, 3}, 2), 0, *group).set_requires_grad(true),
                                 part_of(randn({5, 6}, 3), 1, *group).set_requires_grad(true)};
      const Tensor cotangent = divided ? part_of(randn({4, 5}, 4), 0, *group) : randn({4, 5}, 4);
      const auto objective = [&](const TensorList& leaves) {
        const ParallelLinearOptions options{.divided_rows = divided};
        const Tensor hidden = column_parallel_linear(group, leaves[0], leaves[1], options);
        const Tensor y = row_parallel_linear(group, hidden * hidden, leaves[2], options);
        return ops::sum(y * cotangent);
      };
      objective(inputs).backward();
      for (std::size_t i = 0; i < inputs.size(); ++i) {
        for (int rank = 0; rank < group->size(); ++rank) {
          for (std::int64_t e = 0; e < inputs[i].numel(); ++e) {
            const auto at = [&](double step) {
              const NoGradGuard no_grad;
              TensorList moved = inputs;
              moved[i] = clone(inputs[i]);
              // What all have alike moves on all ranks.
              if (rank == group->rank() || (i == 0 && !divided)) {
                moved[i].mutable_data<double>()[static_cast<std::size_t>(e)] += step;
              }
              const double own = objective(moved).item();
              return divided ? moegrad::all_reduce(*group, own) : own;
            };
            const double expected = (at(1e-5) - at(-1e-5)) / 2e-5;
            if (rank != group->rank()) continue;
            const Tensor grad = inputs[i].grad();
            EXPECT_NEAR(grad.data<double>()[static_cast<std::size_t>(e)], expected,
                        1e-7 * (1 + std::abs(expected)))
                << "input " << i << ", element " << e;
          }
        }
      }
    }
  });
}

// Packed weights are read as they are.
TEST(ParallelLinear, ReadsPackedWeights) {
  const Case c{40, 24, 2048, kBf16};
  const auto expected = whole(c);
  launch(2, [&](RankContext& context) {
    const auto& group = context.group();
    const Tensor weight = part_of(weight_of(c), 0, *group);
    const NoGradGuard no_grad;
    const Tensor packed =
        cast_to_nz(to_dtype(weight, kF32), {1, weight.dim(0), weight.dim(1)}, true);
    const Tensor y = column_parallel_linear(group, x_of(c), packed);
    EXPECT_TRUE(bitwise_equal(y, part_of(expected.y, 1, *group)));
  });
}

// Rows arrive in the operand and are sent from the result: with tiles there is no other buffer.
TEST(ParallelLinear, StagesNothingInTiles) {
  constexpr std::int64_t kRows = 64, kIn = 96, kOut = 160;
  for (const auto side : {Side::kColumns, Side::kRows}) {
    launch(2, [&](RankContext& context) {
      const auto& group = context.group();
      const bool columns = side == Side::kColumns;
      const Tensor x = randn({columns ? kRows / 2 : kRows, kIn}, 1, kF32);
      const Tensor weight = randn({kOut, kIn}, 2, kF32);
      const auto highest = [&](std::int64_t tiles) {
        const ParallelLinearOptions options{.divided_rows = true, .tiles = tiles};
        Arena& arena = *context.arena();
        const NoGradGuard no_grad;
        const auto before = arena.live().total();
        arena.reset_peak();
        columns ? column_parallel_linear(group, x, weight, options)
                : row_parallel_linear(group, x, weight, options);
        group->barrier()->wait();
        return arena.peak().total() - before;
      };
      // What arrives or is summed, as a whole, and y.
      const auto elements = columns ? kRows * kIn + kRows * kOut : kRows * kOut + kRows / 2 * kOut;
      EXPECT_EQ(highest(8), 4 * elements);
      EXPECT_EQ(highest(1), 4 * elements);
    });
  }
}

TEST(ParallelLinear, CallsItsCollectivesAsAsked) {
  EXPECT_THAT(message_of<CollectiveError>([] {
                launch(2, [](RankContext& context) {
                  const auto rows = 3 + context.rank();
                  const Tensor y =
                      row_parallel_linear(context.group(), randn({rows, 4}, 1), randn({5, 4}, 2),
                                          {.collective = {.label = "of o_proj"}});
                  y.bytes();
                });
              }),
              ::testing::StartsWith("all_reduce [group world, sequence 0, of o_proj]: "));
}

TEST(ParallelLinear, RefusesWhatDoesNotFit) {
  launch(2, [](RankContext& context) {
    const auto& group = context.group();
    const Tensor x = randn({3, 4}, 1, kF32), weight = randn({5, 4}, 2, kF32);
    EXPECT_EQ(message_of<ValueError>([&] { column_parallel_linear(nullptr, x, weight); }),
              "column_parallel_linear: needs a process group, got null");
    EXPECT_EQ(message_of<ValueError>([&] { row_parallel_linear(nullptr, x, weight); }),
              "row_parallel_linear: needs a process group, got null");
    EXPECT_EQ(message_of<ShapeError>(
                  [&] { row_parallel_linear(group, x, weight, {.divided_rows = true}); }),
              "row_parallel_linear: the 2 ranks must divide the rows of x, got [3, 4]");
    EXPECT_EQ(message_of<ShapeError>([&] {
                column_parallel_linear(group, randn({4}, 1, kF32), weight, {.divided_rows = true});
              }),
              "column_parallel_linear: x must have rows to gather, got [4]");
    EXPECT_EQ(message_of<ShapeError>([&] {
                row_parallel_linear(group, randn({4}, 1, kF32), weight, {.divided_rows = true});
              }),
              "row_parallel_linear: the 2 ranks must divide the rows of x, got [4]");
    EXPECT_EQ(
        message_of<ValueError>([&] { column_parallel_linear(group, x, weight, {.tiles = 0}); }),
        "column_parallel_linear: tiles must be at least 1, got 0");
    EXPECT_EQ(message_of<ShapeError>([&] {
                row_parallel_linear(group, randn({3, 2}, 1, kF32), weight);
              }),
              "row_parallel_linear: weight must be [out, 2] to match x [3, 2], got [5, 4]");
    EXPECT_EQ(message_of<DtypeError>([&] {
                column_parallel_linear(group, to_dtype(x, kBf16), weight, {.dtype = kF32});
              }),
              "column_parallel_linear: x is bfloat16 but weight is float32; convert it with "
              "ops::cast");
    EXPECT_EQ(message_of<ValueError>(
                  [&] { column_parallel_linear(group, x, weight, {.gradient_rows = -1}); }),
              "column_parallel_linear: gradient_rows must not be negative, got -1");
  });
}

}  // namespace
}  // namespace moegrad::ops::parallel_linear_test
