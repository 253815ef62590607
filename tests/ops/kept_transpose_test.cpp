// SPDX-License-Identifier: Apache-2.0
#include "ops/kept_transpose.h"

#include <cstring>

#include "framework/runtime/rank_context.h"
#include "ops/grouped_matmul.h"
#include "ops/npu_grouped_matmul.h"
#include "ops/nz.h"
#include "ops/shape_ops.h"
#include "tests/testing.h"

namespace moegrad::ops {
namespace {

using testing::bitwise_equal;
using testing::randn;

constexpr std::int64_t kExperts = 3, kK = 20, kN = 35, kRows = 40;
const std::vector<std::int64_t> kOffsets{0, 31, 31, 40};  // enough to pack once, none, a few

std::int64_t copies() { return RankContext::current().counters().materialized_transposes; }

Tensor weight_values(std::uint64_t seed = 2, Dtype dtype = Dtype::kFloat32) {
  return nd_to_nz(randn({kExperts, kK, kN}, seed, dtype));
}

Tensor input_gradient(const Tensor& weight) {
  const Tensor x = randn({kRows, kK}, 1, weight.dtype(), true);
  const Tensor counts = Tensor::from(std::vector<std::int64_t>{31, 0, 9}, {kExperts});
  npu_gmm(weight, x, counts).backward(randn({kRows, kN}, 3, weight.dtype()));
  return x.grad();
}

TEST(KeptTranspose, HoldsTheTransposesAndZeroPadding) {
  for (const auto dtype : {Dtype::kFloat32, Dtype::kFloat64}) {
    for (const Shape& shape :
         {Shape{3, 20, 35}, Shape{1, 1, 1}, Shape{2, 48, 16}, Shape{0, 4, 5}}) {
      const Tensor values = randn(shape, 2, dtype), weight = nd_to_nz(values);
      const Tensor expected = nd_to_nz(clone(transpose(values, 1, 2)));
      weight.storage().set_serves_again(true);
      // The copy gets a recycled block that holds something else than zero.
      { const Tensor used = Tensor::full({expected.nz_blocks().numel()}, 7, dtype); }
      const Tensor copy = kept_transpose(weight);
      ASSERT_EQ(copy.shape(), expected.shape());
      EXPECT_EQ(copy.layout(), Layout::kNZ);
      EXPECT_EQ(copy.nz_blocks(), expected.nz_blocks());
      ASSERT_EQ(copy.storage().bytes(), expected.storage().bytes());
      EXPECT_EQ(std::memcmp(copy.storage().data(), expected.storage().data(),
                            static_cast<std::size_t>(expected.storage().bytes())),
                0)
          << shape << ' ' << dtype;
    }
  }
}

TEST(KeptTranspose, IsMadeOnceForBytesThatServeAgainUnderTheirTag) {
  const auto& arena = *RankContext::current().arena();
  const auto weight = [] {
    const MemoryTagGuard tag(MemoryTag::kParameters);
    return weight_values();
  }();
  const auto before = arena.live();
  const auto copies_before = copies();
  EXPECT_FALSE(kept_transpose(weight).defined());
  weight.storage().set_serves_again(true);
  EXPECT_EQ(copies(), copies_before);
  const Tensor copy = kept_transpose(weight);
  const Tensor flat = Tensor::nz_view(weight, {kExperts * kK, kN});  // as a parameter has it
  EXPECT_TRUE(kept_transpose(flat).is(copy));
  weight.storage().set_serves_again(false);  // the last use
  EXPECT_TRUE(kept_transpose(weight).is(copy));
  EXPECT_EQ(copies(), copies_before + 1);
  const auto bytes = weight.storage().bytes();
  EXPECT_EQ(arena.live()[MemoryTag::kParameters], before[MemoryTag::kParameters] + bytes);
  EXPECT_EQ(arena.live().total(), before.total() + bytes);
}

TEST(KeptTranspose, ProductsReadItWithTheSameBits) {
  for (const auto dtype : {Dtype::kFloat32, Dtype::kFloat64}) {
    const Tensor plain = weight_values(2, dtype), marked = weight_values(2, dtype);
    marked.storage().set_serves_again(true);
    const auto& packs = RankContext::current().counters().transposed_packs;
    EXPECT_TRUE(bitwise_equal(input_gradient(marked), input_gradient(plain)));
    const auto before = packs.load();
    EXPECT_TRUE(bitwise_equal(input_gradient(marked), input_gradient(marked)));
    EXPECT_EQ(packs, before);
    // Hugging Face's orientation is read transposed in forward.
    const Tensor rows = randn({kRows, kN}, 4, dtype);
    EXPECT_TRUE(bitwise_equal(grouped_matmul(rows, marked, kOffsets, /*transpose_weight=*/true),
                              grouped_matmul(rows, plain, kOffsets, /*transpose_weight=*/true)));
    EXPECT_EQ(packs, before + 2);  // plain's experts with rows
  }
}

TEST(KeptTranspose, IsNeverOutOfDate) {
  const Tensor later = weight_values(5);
  const auto expected = input_gradient(later);
  Tensor weight = weight_values();
  auto& storage = weight.storage();
  const auto gradient_with_copy = [&] {
    storage.set_serves_again(true);
    const auto gradient = input_gradient(weight);
    EXPECT_TRUE(storage.kept_copy());
    return gradient;
  };
  EXPECT_FALSE(bitwise_equal(gradient_with_copy(), expected));
  // Written to.
  const auto values = later.nz_data<float>();
  std::ranges::copy(values, weight.mutable_nz_data<float>().begin());
  EXPECT_FALSE(storage.kept_copy());
  EXPECT_TRUE(bitwise_equal(gradient_with_copy(), expected));
  // Released and refilled with something else, as a gather does, without counting a version.
  storage.release();
  EXPECT_FALSE(storage.kept_copy());
  EXPECT_FALSE(storage.serves_again());
  storage.refill();
  const Tensor first = weight_values();
  std::memcpy(storage.data(), first.storage().data(), static_cast<std::size_t>(storage.bytes()));
  EXPECT_TRUE(bitwise_equal(gradient_with_copy(), input_gradient(first)));
}

}  // namespace
}  // namespace moegrad::ops
