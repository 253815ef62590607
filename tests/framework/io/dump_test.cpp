// SPDX-License-Identifier: Apache-2.0
#include "framework/io/dump.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <vector>

#include "framework/distributed/shard_spec.h"
#include "framework/tensor/fill.h"
#include "framework/tensor/meta.h"
#include "tests/framework/autograd/test_functions.h"
#include "tests/framework/distributed/hand_shards.h"
#include "tests/testing.h"

namespace moegrad::dump_test {
namespace {

Tensor counted(const Shape& shape) {
  std::vector<double> values(static_cast<std::size_t>(shape.numel()));
  std::iota(values.begin(), values.end(), 0.0);
  return Tensor::from(values, shape);
}

TEST(Dump, ShowsWhatATensorIsAndItsElements) {
  Tensor x = counted({2, 3});
  EXPECT_EQ(describe(x), "tensor [2, 3] float64 ND\n[[0., 1., 2.],\n [3., 4., 5.]]");
  x.storage().set_name("w");
  x.set_requires_grad(true);
  EXPECT_EQ(describe(x),
            "tensor 'w' [2, 3] float64 ND, requires a gradient, has none\n[[0., 1., 2.],\n [3., "
            "4., 5.]]");
  x.set_grad(x.detach());
  x.set_shard_spec(std::make_shared<const ShardSpec>(test::range_spec({4, 3}, 2, 4)));
  EXPECT_EQ(describe(x),
            "tensor 'w' [2, 3] float64 ND, requires a gradient, has one, shard [2, 4) of dimension "
            "0 of [4, 3]\n[[0., 1., 2.],\n [3., 4., 5.]]");
}

TEST(Dump, ShortensLongDimensions) {
  EXPECT_EQ(describe(counted({6})), "tensor [6] float64 ND\n[0., 1., 2., 3., 4., 5.]");
  EXPECT_EQ(describe(counted({7})), "tensor [7] float64 ND\n[0., 1., 2.,  ..., 4., 5., 6.]");
  EXPECT_EQ(describe(counted({8, 1})),
            "tensor [8, 1] float64 ND\n[[0.],\n [1.],\n [2.],\n ...,\n [5.],\n [6.],\n [7.]]");
}

TEST(Dump, ReadsStridedNarrowAndBlockedTensors) {
  const Tensor x = counted({2, 3});
  EXPECT_EQ(describe(Tensor::as_strided(x, {2}, {3}, 1)),
            "tensor [2] float64 ND, strides [3], offset 1\n[1., 4.]");
  EXPECT_EQ(describe(to_dtype(Tensor::full({1}, 0.5), Dtype::kBFloat16)),
            "tensor [1] bfloat16 ND\n[0.5000]");
  EXPECT_EQ(describe(Tensor::from(std::vector<std::int64_t>{-3}, {})), "tensor [] int64 ND\n-3");
  Tensor blocked = Tensor::empty_nz({2, 2, 17}, {.batch = 2, .k = 2, .n = 17}, Dtype::kFloat32);
  auto values = blocked.mutable_nz_data<float>();
  std::ranges::fill(values, -1.0F);  // padding
  float value = 0;
  for (std::int64_t matrix = 0; matrix < 2; ++matrix) {
    for (std::int64_t k = 0; k < 2; ++k) {
      for (std::int64_t n = 0; n < 17; ++n) {
        values[static_cast<std::size_t>(matrix * nz_numel(2, 17) + nz_offset(k, n, 2))] = value++;
      }
    }
  }
  EXPECT_EQ(describe(blocked),
            "tensor [2, 2, 17] float32 FRACTAL_NZ\n"
            "[[[ 0.,  1.,  2.,  ..., 14., 15., 16.],\n  [17., 18., 19.,  ..., 31., 32., 33.]],\n\n"
            " [[34., 35., 36.,  ..., 48., 49., 50.],\n  [51., 52., 53.,  ..., 65., 66., 67.]]]");
}

TEST(Dump, SaysWhoMadeAResult) {
  const ScopeGuard scope("layers.0", nullptr, nullptr);
  const Tensor x = test::leaf_of({2.0});
  EXPECT_EQ(describe(test::mul(x, x)),
            "tensor [1] float64 ND, made by mul in module layers.0\n[4.]");
}

TEST(Dump, NeverThrows) {
  EXPECT_EQ(describe(Tensor()), "undefined tensor");
  EXPECT_EQ(describe(Tensor::zeros({0, 2})), "tensor [0, 2] float32 ND\n[]");
  const Tensor released = counted({2});
  released.storage().release();
  EXPECT_EQ(describe(released), "tensor [2] float64 ND, bytes released");
  const MetaGuard meta;
  EXPECT_EQ(describe(Tensor::zeros({2})), "tensor [2] float32 ND, meta: no bytes yet");
}

TEST(Dump, PrintsToStderr) {
  ::testing::internal::CaptureStderr();
  dump(counted({1}));
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "tensor [1] float64 ND\n[0.]\n");
}

}  // namespace
}  // namespace moegrad::dump_test
