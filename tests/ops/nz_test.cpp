// SPDX-License-Identifier: Apache-2.0
#include "ops/nz.h"

#include <algorithm>
#include <set>
#include <vector>

#include "framework/runtime/cpu_kernels.h"
#include "framework/runtime/rank_context.h"
#include "ops/kernels/nz.h"
#include "ops/views.h"
#include "tests/testing.h"

namespace moegrad::ops::nz_test {
namespace {

using namespace test;

const NzBlocks kAwkward[] = {{1, 1, 1},   {1, 16, 16}, {1, 15, 17}, {2, 17, 33},
                             {3, 40, 16}, {2, 5, 100}, {4, 3, 7},   {3, 300, 20}};

Shape shape_of(const NzBlocks& blocks) { return {blocks.batch, blocks.k, blocks.n}; }

TEST(Nz, IndexIsABijectionOntoTheUnpaddedPart) {
  for (const auto& blocks : kAwkward) {
    std::set<std::int64_t> offsets;
    for (std::int64_t k = 0; k < blocks.k; ++k) {
      for (std::int64_t n = 0; n < blocks.n; ++n) offsets.insert(nz_offset(k, n, blocks.k));
    }
    EXPECT_EQ(std::ssize(offsets), blocks.k * blocks.n);
    EXPECT_GE(*offsets.begin(), 0);
    EXPECT_LT(*offsets.rbegin(), nz_numel(blocks.k, blocks.n));
  }
}

TEST(Nz, EveryElementStandsAtItsOffsetAndPaddingIsZero) {
  for (const auto& blocks : kAwkward) {
    const Tensor a = randn(shape_of(blocks), 1, Dtype::kFloat32);
    const Tensor nz = nd_to_nz(a);
    EXPECT_EQ(nz.nz_blocks(), blocks);
    const auto size = nz_numel(blocks.k, blocks.n);
    std::vector<float> expected(static_cast<std::size_t>(blocks.batch * size), 0.0F);
    const auto values = a.data<float>();
    for (std::int64_t b = 0; b < blocks.batch; ++b) {
      for (std::int64_t k = 0; k < blocks.k; ++k) {
        for (std::int64_t n = 0; n < blocks.n; ++n) {
          expected[static_cast<std::size_t>(b * size + nz_offset(k, n, blocks.k))] =
              values[static_cast<std::size_t>((b * blocks.k + k) * blocks.n + n)];
        }
      }
    }
    const auto got = nz.nz_data<float>();
    EXPECT_EQ(std::vector<float>(got.begin(), got.end()), expected);
  }
}

TEST(Nz, RoundTripKeepsEveryBit) {
  for (const auto dtype : {Dtype::kFloat32, Dtype::kFloat64}) {
    for (const auto& blocks : kAwkward) {
      const Tensor a = randn(shape_of(blocks), 1, dtype);
      EXPECT_TRUE(bitwise_equal(nz_to_nd(nd_to_nz(a)), a));
    }
  }
  const Tensor matrix = randn({19, 5});
  EXPECT_TRUE(bitwise_equal(nz_to_nd(nd_to_nz(matrix)), matrix));
  const Tensor empty = randn({2, 0, 5});
  EXPECT_TRUE(bitwise_equal(nz_to_nd(nd_to_nz(empty)), empty));
}

TEST(Nz, ConvertsAStridedTensorAndCountsConversions) {
  RankContext context{RankContext::Options{}};
  const RankContextGuard guard(context);
  const Tensor a = randn({2, 5, 18});
  EXPECT_TRUE(bitwise_equal(nz_to_nd(nd_to_nz(transpose(a, 1, 2))), clone(transpose(a, 1, 2))));
  EXPECT_EQ(context.counters().nz_conversions, 1);
  EXPECT_EQ(context.counters().nz_copy_outs, 0);
}

TEST(Nz, ViewOfAStackedParameterHoldsTheSameBlocks) {
  const Tensor a = randn({3, 20, 17});
  const Tensor nz = nd_to_nz(a);
  EXPECT_TRUE(bitwise_equal(nz_to_nd(view(nz, {60, 17})), view(a, {60, 17})));
}

TEST(SliceToNz, CutsAlongEitherDimension) {
  const Tensor in = randn({36, 50}, 1, Dtype::kFloat32);
  Tensor rows = Tensor::empty_nz({2, 9, 50}, {2, 9, 50}, Dtype::kFloat32);
  slice_to_nz(in, 0, 5, 23, rows);
  EXPECT_TRUE(bitwise_equal(nz_to_nd(rows), view(clone(narrow(in, 0, 5, 18)), {2, 9, 50})));
  Tensor columns = Tensor::empty_nz({36, 21}, {3, 12, 21}, Dtype::kFloat32);
  slice_to_nz(in, 1, 7, 28, columns);
  EXPECT_TRUE(bitwise_equal(nz_to_nd(columns), clone(narrow(in, 1, 7, 21))));
  const Tensor same = nd_to_nz(view(clone(narrow(in, 1, 7, 21)), {3, 12, 21}));
  const auto a = columns.nz_data<float>(), b = same.nz_data<float>();
  EXPECT_TRUE(std::ranges::equal(a, b));  // padding included
}

TEST(SliceToNz, WidensBfloat16) {
  const Tensor in = to_dtype(randn({10, 20}), Dtype::kBFloat16);
  Tensor out = Tensor::empty_nz({10, 20}, {1, 10, 20}, Dtype::kFloat32);
  slice_to_nz(in, 0, 0, 10, out);
  EXPECT_TRUE(bitwise_equal(nz_to_nd(out), to_dtype(in, Dtype::kFloat32)));
}

TEST(SliceRowsToNz, ShardsOfAnySizeFillTheDestinationAndTouchNothingElse) {
  const NzBlocks blocks{3, 21, 18};
  const Tensor a = randn({63, 18}, 1, Dtype::kFloat32);
  const auto* rows = a.data<float>().data();
  const Tensor expected = nd_to_nz(view(a, shape_of(blocks)));
  const auto want = expected.nz_data<float>();
  constexpr float kUntouched = 1e30F;
  for (const std::int64_t shard : {1, 4, 16, 20, 21, 22, 40, 63}) {
    std::vector<float> out(want.size(), kUntouched);
    for (std::int64_t first = 0; first < 63; first += shard) {
      const auto num = std::min<std::int64_t>(shard, 63 - first);
      const auto before = std::ranges::count(out, kUntouched);
      kernels::slice_rows_to_nz(rows + first * 18, 18, first, num, blocks, out.data());
      EXPECT_EQ(std::ranges::count(out, kUntouched), before - num * 18);
    }
    kernels::nz_zero_padding(blocks, out.data());
    EXPECT_TRUE(std::ranges::equal(out, want)) << "shards of " << shard << " rows";
  }
}

TEST(SliceRowsToNz, WritesDestinationsThatNoCacheHolds) {
  const NzBlocks blocks{3, 1001, 730};
  const Tensor a = to_dtype(randn({3003, 730}, 1, Dtype::kFloat32), Dtype::kBFloat16);
  const Tensor widened = to_dtype(a, Dtype::kFloat32);
  std::vector<float> expected(static_cast<std::size_t>(3 * nz_numel(1001, 730)), 0.0F);
  std::size_t at = 0;
  for (const float value : widened.data<float>()) {
    const auto row = static_cast<std::int64_t>(at / 730),
               column = static_cast<std::int64_t>(at % 730);
    expected[static_cast<std::size_t>(row / 1001 * nz_numel(1001, 730) +
                                      nz_offset(row % 1001, column, 1001))] = value;
    ++at;
  }
  for (const bool narrow_source : {false, true}) {
    Tensor out = Tensor::empty_nz({3003, 730}, blocks, Dtype::kFloat32);
    float* const to = out.mutable_nz_data<float>().data();
    for (std::int64_t first = 0; first < 3003; first += 601) {
      const auto num = std::min<std::int64_t>(601, 3003 - first);
      if (narrow_source) {
        kernels::slice_rows_to_nz(a.data<BFloat16>().data() + first * 730, 730, first, num, blocks,
                                  to);
      } else {
        kernels::slice_rows_to_nz(widened.data<float>().data() + first * 730, 730, first, num,
                                  blocks, to);
      }
    }
    kernels::nz_zero_padding(blocks, to);
    EXPECT_TRUE(std::ranges::equal(out.nz_data<float>(), expected));
  }
}

TEST(SliceColumnsToNz, ShardsOfAnySizeFillTheDestinationAndTouchNothingElse) {
  const NzBlocks blocks{3, 21, 18};
  const Tensor a = randn({63, 18}, 1, Dtype::kFloat32);
  const Tensor expected = nd_to_nz(view(a, shape_of(blocks)));
  const auto want = expected.nz_data<float>();
  constexpr float kUntouched = 1e30F;
  for (const std::int64_t shard : {1, 3, 6, 9, 16, 17, 18}) {
    std::vector<float> out(want.size(), kUntouched);
    for (std::int64_t first = 0; first < 18; first += shard) {
      const auto num = std::min<std::int64_t>(shard, 18 - first);
      const Tensor columns = clone(narrow(a, 1, first, num));
      const auto before = std::ranges::count(out, kUntouched);
      kernels::slice_columns_to_nz(columns.data<float>().data(), first, num, blocks, out.data());
      EXPECT_EQ(std::ranges::count(out, kUntouched), before - num * 63);
    }
    kernels::nz_zero_padding(blocks, out.data());
    EXPECT_TRUE(std::ranges::equal(out, want)) << "shards of " << shard << " columns";
  }
}

TEST(RowsFromNz, ReadsARangeThatBeginsAndEndsInsideMatrices) {
  const NzBlocks blocks{3, 21, 18};
  const Tensor a = randn({63, 18}, 1, Dtype::kFloat64);
  const Tensor nz = nd_to_nz(view(a, shape_of(blocks)));
  Tensor out = Tensor::empty({30, 18}, Dtype::kFloat64);
  kernels::rows_from_nz(nz.nz_data<double>().data(), blocks, 15, 30,
                        out.mutable_data<double>().data(), 18);
  EXPECT_TRUE(bitwise_equal(out, clone(narrow(a, 0, 15, 30))));
}

TEST(NzZeroPadding, LeavesTheElementsAlone) {
  for (const auto& blocks : kAwkward) {
    std::vector<double> out(static_cast<std::size_t>(blocks.numel(Dtype::kFloat64)), 1.0);
    kernels::nz_zero_padding(blocks, out.data());
    EXPECT_EQ(std::ranges::count(out, 1.0), blocks.batch * blocks.k * blocks.n);
    const Tensor ones = nd_to_nz(Tensor::ones(shape_of(blocks), Dtype::kFloat64));
    EXPECT_TRUE(std::ranges::equal(out, ones.nz_data<double>()));
  }
}

// Note [FRACTAL_NZ of bfloat16], for the pairs that each kind of kernels reads.
TEST(Nz, OfBFloat16IsPairsForTheKernelsAndConvertsBackExactly) {
  const auto before = RankContext::current().kernels();
  for (const auto kernels : available_cpu_kernels()) {
    RankContext::current().set_kernels(kernels);
    for (const auto& blocks : kAwkward) {
      const Tensor a = to_dtype(randn(shape_of(blocks), 1, Dtype::kFloat32), Dtype::kBFloat16);
      const Tensor nz = nd_to_nz(a);
      const auto pairs = nz.storage().nz_pairs();
      EXPECT_FALSE(pairs.transposed);
      EXPECT_EQ(pairs.order == PairOrder::kNeighbours, kernels == CpuKernels::kAmx);
      EXPECT_TRUE(bitwise_equal(nz_to_nd(nz), a));
      const auto stored = nz.nz_data<BFloat16>();
      const auto size = nz_numel(blocks.k, blocks.n, Dtype::kBFloat16);
      ASSERT_EQ(std::ssize(stored), blocks.batch * size);
      std::vector<BFloat16> expected(stored.size());
      std::size_t from = 0;
      for (std::int64_t b = 0; b < blocks.batch; ++b) {
        for (std::int64_t k = 0; k < blocks.k; ++k) {
          for (std::int64_t n = 0; n < blocks.n; ++n) {
            expected[static_cast<std::size_t>(b * size + nz_offset(k, n, blocks, pairs))] =
                a.data<BFloat16>()[from++];
          }
        }
      }
      EXPECT_TRUE(std::ranges::equal(stored, expected));
      EXPECT_TRUE(bitwise_equal(clone(nz), nz));
      EXPECT_EQ(clone(nz).storage().nz_pairs(), pairs);
    }
  }
  RankContext::current().set_kernels(before);
}

TEST(Nz, SlicesOfFloat32AreRoundedToBlocksOfBFloat16) {
  const Tensor wide = randn({12, 40}, 1, Dtype::kFloat32);
  const Tensor narrow = to_dtype(wide, Dtype::kBFloat16);
  const Tensor expected = clone(Tensor::narrow(narrow, 0, 3, 8));
  for (const auto& in : {wide, narrow}) {
    Tensor out = Tensor::empty_nz({8, 40}, {2, 4, 40}, Dtype::kBFloat16);
    slice_to_nz(in, 0, 3, 11, out);
    EXPECT_TRUE(bitwise_equal(nz_to_nd(out), expected));
  }
}

TEST(Nz, RejectsWhatDoesNotFit) {
  const Tensor a = randn({4, 6});
  EXPECT_EQ(message_of<ShapeError>([] { nd_to_nz(randn({5})); }),
            "nd_to_nz: needs [K, N] or [B, K, N], got [5]");
  EXPECT_EQ(message_of<LayoutError>([&] { nd_to_nz(nd_to_nz(a)); }),
            "nd_to_nz: needs row-major ND, got FRACTAL_NZ");
  EXPECT_EQ(message_of<DtypeError>([] {
              nd_to_nz(Tensor::zeros({2, 3}, Dtype::kInt64));
            }),
            "nd_to_nz: a must be float32, float64 or bfloat16, got int64");
  EXPECT_EQ(message_of<LayoutError>([&] { nz_to_nd(a); }),
            "nz_to_nd: needs FRACTAL_NZ, got row-major ND");
}

TEST(SliceToNz, RejectsWhatDoesNotFit) {
  const Tensor in = randn({4, 6});
  Tensor nd = randn({4, 6});
  Tensor out = Tensor::empty_nz({2, 2, 6}, {2, 2, 6}, Dtype::kFloat64);
  Tensor narrow_out = Tensor::empty_nz({2, 2, 6}, {2, 2, 6}, Dtype::kFloat32);
  EXPECT_EQ(message_of<ShapeError>([&] {
              slice_to_nz(randn({2, 2, 6}), 0, 0, 2, out);
            }),
            "slice_to_nz: in must be [R, C], got [2, 2, 6]");
  EXPECT_EQ(message_of<ValueError>([&] { slice_to_nz(in, 2, 0, 4, out); }),
            "slice_to_nz: dim must be 0 or 1, got 2");
  EXPECT_EQ(message_of<ValueError>([&] { slice_to_nz(in, 0, 1, 5, out); }),
            "slice_to_nz: needs 0 <= start <= end <= 4 along dimension 0, got [1, 5)");
  EXPECT_EQ(message_of<LayoutError>([&] { slice_to_nz(in, 0, 0, 4, nd); }),
            "slice_to_nz: out must be FRACTAL_NZ, got row-major ND");
  EXPECT_EQ(message_of<ShapeError>([&] { slice_to_nz(in, 0, 0, 3, out); }),
            "slice_to_nz: blocks of out must stack to the slice [3, 6], got [2, 2, 6]");
  EXPECT_EQ(message_of<DtypeError>([&] { slice_to_nz(in, 0, 0, 4, narrow_out); }),
            "slice_to_nz: in is float64 but out is float32");
}

}  // namespace
}  // namespace moegrad::ops::nz_test
