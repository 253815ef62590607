// SPDX-License-Identifier: Apache-2.0
#include "ops/npu_gmm.h"

#include <cstring>

#include "framework/runtime/rank_context.h"
#include "ops/grouped_matmul.h"
#include "ops/nz.h"
#include "ops/views.h"
#include "tests/testing.h"

namespace moegrad::ops::npu_gmm_test {
namespace {

using namespace test;

constexpr std::int64_t kExperts = 4, kK = 20, kN = 18, kRows = 9;
const std::vector<std::int64_t> kOffsets{0, 2, 2, 8, 9};
const std::vector<std::int64_t> kCounts{2, 0, 6, 1};

struct Results {
  Tensor y, grad_x, grad_weight;
};

template <class F>
Results run(Tensor weight, const F& f) {
  const Tensor x = randn({kRows, kK}, 1, Dtype::kFloat32, true);
  weight.set_requires_grad(true);
  const Tensor y = f(weight, x);
  y.backward(randn({kRows, kN}, 3, Dtype::kFloat32));
  return {y.detach(), x.grad(), weight.grad()};
}

Tensor weight_values() { return randn({kExperts, kK, kN}, 2, Dtype::kFloat32); }

Results reference() {
  return run(weight_values(),
             [](const Tensor& w, const Tensor& x) { return grouped_matmul(x, w, kOffsets); });
}

Results run_npu_gmm(const Tensor& weight) {
  return run(weight, [](const Tensor& w, const Tensor& x) { return npu_gmm(w, x, kCounts); });
}

TEST(NpuGmm, AgreesWithGroupedMatmulBitForBitInEveryStorage) {
  const auto expected = reference();
  const Tensor values = weight_values();
  const Shape stacked{kExperts, kK, kN}, flat{kExperts * kK, kN};
  const Tensor transposed = transpose(clone(transpose(values, 1, 2)), 1, 2);
  for (const auto& weight : {values, view(values, flat), nd_to_nz(values),
                             Tensor::nz_view(nd_to_nz(values), flat), transposed}) {
    const auto results = run_npu_gmm(weight.detach());
    EXPECT_TRUE(bitwise_equal(results.y, expected.y));
    EXPECT_TRUE(bitwise_equal(results.grad_x, expected.grad_x));
    EXPECT_EQ(results.grad_weight.shape(), weight.shape());
    EXPECT_EQ(results.grad_weight.layout(), Layout::kND);
    EXPECT_TRUE(bitwise_equal(view(results.grad_weight, stacked), expected.grad_weight));
  }
}

TEST(NpuGmm, GradientsMatchFiniteDifferences) {
  const std::vector<std::int64_t> tokens{2, 0, 3};
  for (const Shape& shape : {Shape{3, 3, 4}, Shape{9, 4}}) {
    EXPECT_TRUE(moegrad::gradients_agree(
        [&](const TensorList& in) { return TensorList{npu_gmm(in[0], in[1], tokens)}; },
        {variable(shape, 2), variable({5, 3}, 1)}));
  }
  const Tensor nz = nd_to_nz(randn({3, 3, 4}, 2));
  EXPECT_TRUE(moegrad::gradients_agree(
      [&](const TensorList& in) { return TensorList{npu_gmm(nz, in[0], tokens)}; },
      {variable({5, 3}, 1)}));
}

// What fully_shard does between forward and backward.
TEST(NpuGmm, WeightMayBeReleasedAndRefilledBeforeBackward) {
  const auto expected = reference();
  for (const bool nz : {false, true}) {
    Tensor weight = nz ? nd_to_nz(weight_values()) : weight_values();
    auto& storage = weight.storage();
    const std::vector<std::byte> bytes(storage.data(), storage.data() + storage.bytes());
    weight.set_requires_grad(true);
    const Tensor x = randn({kRows, kK}, 1, Dtype::kFloat32, true);
    const Tensor y = npu_gmm(weight, x, kCounts);
    const auto version = storage.version();
    storage.release();
    const Tensor elsewhere = Tensor::zeros({kExperts, kK + 12, kN + 14});  // takes the old bytes
    storage.refill();
    std::memcpy(storage.data(), bytes.data(), bytes.size());
    y.backward(randn({kRows, kN}, 3, Dtype::kFloat32));
    EXPECT_EQ(storage.version(), version);
    EXPECT_TRUE(bitwise_equal(x.grad(), expected.grad_x));
    EXPECT_TRUE(bitwise_equal(weight.grad(), expected.grad_weight));
  }
}

TEST(NpuGmm, ReleasedWeightIsReportedByName) {
  Tensor weight = weight_values();
  weight.storage().set_name("experts.gate_up");
  const Tensor x = randn({kRows, kK}, 1, Dtype::kFloat32, true);
  const Tensor y = npu_gmm(weight, x, kCounts);
  weight.storage().release();
  const auto message = message_of<Error>([&] {
    y.backward(randn({kRows, kN}, 3, Dtype::kFloat32));
  });
  EXPECT_NE(message.find("experts.gate_up"), std::string::npos) << message;
}

TEST(NpuGmm, NzIsReadInPlaceForwardAndBackward) {
  RankContext context{RankContext::Options{}};
  const RankContextGuard guard(context);
  const Tensor nz = nd_to_nz(weight_values());
  const Tensor x = randn({kRows, kK}, 1, Dtype::kFloat32, true);
  npu_gmm(nz, x, kCounts).backward(randn({kRows, kN}, 3, Dtype::kFloat32));
  EXPECT_EQ(context.counters().packed_panels, 0);
  EXPECT_EQ(context.counters().transposed_packs, 0);
  EXPECT_EQ(context.counters().materialized_transposes, 0);
}

TEST(NpuGmm, ACopyOfAGradientThatIsNotRowMajorIsCounted) {
  RankContext context{RankContext::Options{}};
  const RankContextGuard guard(context);
  const Tensor y =
      npu_gmm(nd_to_nz(weight_values()), randn({kRows, kK}, 1, Dtype::kFloat32, true), kCounts);
  y.backward(transpose(randn({kN, kRows}, 3, Dtype::kFloat32), 0, 1));
  EXPECT_EQ(context.counters().materialized_transposes, 1);
}

TEST(NpuGmm, NoRowsAtAllGiveZeroGradients) {
  const Tensor weight = variable({2, 3, 4}), x = variable({0, 3});
  npu_gmm(weight, x, {0, 0}).backward(Tensor::zeros({0, 4}, Dtype::kFloat64));
  EXPECT_TRUE(bitwise_equal(weight.grad(), Tensor::zeros({2, 3, 4}, Dtype::kFloat64)));
  EXPECT_EQ(x.grad().shape(), (Shape{0, 3}));
}

TEST(NpuGmm, RejectsWhatDoesNotFit) {
  const Tensor x = randn({5, 3}), weight = randn({2, 3, 4});
  const std::vector<std::int64_t> tokens{2, 3};
  const auto shape_message = [&](const Tensor& w, const Tensor& a) {
    return message_of<ShapeError>([&] { npu_gmm(w, a, tokens); });
  };
  EXPECT_EQ(shape_message(weight, randn({5})), "npu_gmm: x must be [M, K], got [5]");
  EXPECT_EQ(shape_message(randn({4}), x),
            "npu_gmm: weight must be [E, K, N] or [E * K, N], got [4]");
  EXPECT_EQ(
      shape_message(randn({3, 3, 4}), x),
      "npu_gmm: weight must be [2, 3, N] or [6, N] for 2 experts and x [5, 3], got [3, 3, 4]");
  EXPECT_EQ(shape_message(randn({5, 4}), x),
            "npu_gmm: weight must be [2, 3, N] or [6, N] for 2 experts and x [5, 3], got [5, 4]");
  EXPECT_EQ(message_of<LayoutError>([&] {
              npu_gmm(Tensor::empty_nz({6, 4}, {1, 6, 4}, Dtype::kFloat64), x, tokens);
            }),
            "npu_gmm: weight must be blocks of [2, 3, 4], got blocks of [1, 6, 4]");
  EXPECT_EQ(message_of<DtypeError>([&] {
              npu_gmm(weight, Tensor::zeros({5, 3}, Dtype::kInt64), tokens);
            }),
            "npu_gmm: x must be float32, float64 or bfloat16, got int64");
  EXPECT_EQ(message_of<DtypeError>([&] {
              npu_gmm(randn({2, 3, 4}, 1, Dtype::kFloat32), x, tokens);
            }),
            "npu_gmm: x is float64 but weight is float32");
  EXPECT_EQ(message_of<LayoutError>([&] { npu_gmm(weight, nd_to_nz(x), tokens); }),
            "npu_gmm: input 1 must be row-major ND, got FRACTAL_NZ; convert it with nz_to_nd");
  EXPECT_EQ(message_of<ValueError>([&] {
              npu_gmm(weight, x, {2, 2});
            }),
            "npu_gmm: tokens_per_expert must add up to the 5 rows of x, got 4");
  EXPECT_EQ(message_of<ValueError>([&] {
              npu_gmm(weight, x, {6, -1});
            }),
            "npu_gmm: tokens_per_expert must not be negative, got -1 for expert 1");
}

}  // namespace
}  // namespace moegrad::ops::npu_gmm_test
