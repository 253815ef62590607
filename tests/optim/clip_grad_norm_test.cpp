// SPDX-License-Identifier: Apache-2.0
#include "optim/clip_grad_norm.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <mutex>
#include <random>
#include <utility>
#include <vector>

#include "framework/distributed/shard_spec.h"
#include "tests/framework/distributed/hand_shards.h"
#include "tests/testing.h"

namespace moegrad::optim::clip_grad_norm_test {
namespace {

using namespace test;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNoClip = kInf;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// Values over 20 decades, as real gradients are not.
std::vector<double> wild_values(std::int64_t n) {
  const Random random(11, "clip_grad_norm test");
  std::vector<double> values;
  for (std::int64_t i = 0; i < n; ++i) {
    const auto index = static_cast<std::uint64_t>(i);
    values.push_back(random.normal(index) *
                     std::pow(10.0, 10.0 * random.normal(index + 1'000'000)));
  }
  return values;
}

Tensor parameter_with_grad(const std::vector<double>& grad, Dtype dtype = Dtype::kFloat64) {
  const Shape shape{std::ssize(grad)};
  Tensor parameter = Tensor::zeros(shape, dtype);
  parameter.set_grad(to_dtype(Tensor::from(grad, shape), dtype));
  return parameter;
}

double norm_of(const std::vector<double>& grad, double norm_type = 2.0) {
  return clip_grad_norm({{"p", parameter_with_grad(grad)}}, kNoClip, norm_type);
}

double long_double_norm(const std::vector<double>& values, double norm_type) {
  long double sum = 0;
  for (const long double value : values) sum += norm_type == 1.0 ? std::abs(value) : value * value;
  return static_cast<double>(norm_type == 1.0 ? sum : std::sqrt(sum));
}

TEST(ClipGradNorm, AgreesWithALongDoubleSum) {
  for (const std::int64_t n : {1, 2, 7, 1000, 100'003}) {
    const Tensor tame = randn({n}, 3);
    const std::vector<double> values(tame.data<double>().begin(), tame.data<double>().end());
    for (const auto& each : {wild_values(n), values}) {
      for (const double p : {1.0, 2.0}) {
        EXPECT_NEAR(norm_of(each, p) / long_double_norm(each, p), 1.0, 1e-12);
      }
      EXPECT_EQ(norm_of(each, kInf), std::abs(*std::ranges::max_element(
                                         each, {}, [](double value) { return std::abs(value); })));
    }
  }
  EXPECT_EQ(norm_of({3.0, -4.0}), 5.0);
  EXPECT_EQ(norm_of({3.0, -4.0}, 1.0), 7.0);
  EXPECT_EQ(norm_of({3.0, -4.0}, kInf), 4.0);
}

TEST(ClipGradNorm, HasTheSameBitsInAnyOrderAndAnySplit) {
  for (const double p : {1.0, 2.0}) {
    auto values = wild_values(70'001);
    const double expected = norm_of(values, p);
    std::mt19937 engine(5);
    for (int trial = 0; trial < 5; ++trial) {
      std::shuffle(values.begin(), values.end(), engine);
      EXPECT_EQ(std::bit_cast<std::uint64_t>(norm_of(values, p)),
                std::bit_cast<std::uint64_t>(expected));
    }
    NamedTensors pieces;
    for (std::size_t begin = 0, size = 1; begin < values.size();
         begin += size, size = 3 * size + 1) {
      const auto end = std::min(values.size(), begin + size);
      pieces.push_back(
          {"p", parameter_with_grad({values.begin() + static_cast<std::ptrdiff_t>(begin),
                                     values.begin() + static_cast<std::ptrdiff_t>(end)})});
    }
    EXPECT_EQ(clip_grad_norm(pieces, kNoClip, p), expected);
  }
}

TEST(ClipGradNorm, IsTheSameInFloat32) {
  const Tensor grad = randn({5000}, 4, Dtype::kFloat32);
  const Tensor wide = to_dtype(grad, Dtype::kFloat64);
  const std::vector<double> values(wide.data<double>().begin(), wide.data<double>().end());
  EXPECT_EQ(clip_grad_norm({{"p", parameter_with_grad(values, Dtype::kFloat32)}}, kNoClip),
            norm_of(values));
}

TEST(ClipGradNorm, HoldsAtTheEdgesOfTheNumberRange) {
  constexpr double kMax = std::numeric_limits<double>::max();
  constexpr double kTiny = std::numeric_limits<double>::denorm_min();
  EXPECT_EQ(norm_of({kMax}), kMax);
  EXPECT_EQ(norm_of({kMax, kMax, kMax}), kInf);
  EXPECT_EQ(norm_of({kMax, -kMax}, 1.0), kInf);
  EXPECT_EQ(norm_of({kMax, -kMax}, kInf), kMax);
  EXPECT_EQ(norm_of({3 * kTiny, -4 * kTiny}, 1.0), 7 * kTiny);
  EXPECT_EQ(norm_of({kTiny}), kTiny);
  EXPECT_EQ(norm_of({3 * kTiny, 4 * kTiny}), 5 * kTiny);
  EXPECT_EQ(norm_of({kMax, kTiny}), kMax);
  EXPECT_EQ(norm_of({1.0}), 1.0);
  EXPECT_EQ(norm_of({0x1p-1022}), 0x1p-1022);
}

TEST(ClipGradNorm, ScalesAsTorchDoes) {
  for (const auto& [p, norm] : {std::pair{1.0, 7.0}, {2.0, 5.0}, {kInf, 4.0}}) {
    const Tensor above = parameter_with_grad({3.0, -4.0});
    EXPECT_EQ(clip_grad_norm({{"p", above}}, 1.0, p), norm);
    const double factor = 1.0 / (norm + 1e-6);
    EXPECT_TRUE(bitwise_equal(above.grad(),
                              Tensor::from(std::vector<double>{3.0 * factor, -4.0 * factor}, {2})));
    const Tensor below = parameter_with_grad({3.0, -4.0});
    EXPECT_EQ(clip_grad_norm({{"p", below}}, norm + 1.0, p), norm);
    const Tensor same = below.grad();
    EXPECT_EQ(same.data<double>()[0], 3.0);
  }
}

TEST(ClipGradNorm, OfNothingIsZero) {
  for (const double p : {1.0, 2.0, kInf}) {
    EXPECT_EQ(clip_grad_norm({}, 1.0, p), 0.0);
    EXPECT_EQ(clip_grad_norm({{"no gradient", randn({3})}}, 1.0, p), 0.0);
    EXPECT_EQ(norm_of({0.0, -0.0}, p), 0.0);
    EXPECT_EQ(norm_of({}, p), 0.0);
  }
}

TEST(ClipGradNorm, PassesNanAndInfinityOn) {
  for (const double norm_type : {1.0, 2.0, kInf}) {
    const Tensor p = parameter_with_grad({1.0, kNan, kInf});
    EXPECT_TRUE(std::isnan(clip_grad_norm({{"p", p}}, 1.0, norm_type)));
    const Tensor p_grad = p.grad();
    EXPECT_TRUE(std::isnan(p_grad.data<double>()[0]));
    const Tensor q = parameter_with_grad({1.0, -kInf});
    EXPECT_EQ(clip_grad_norm({{"q", q}}, 1.0, norm_type), kInf);
    const Tensor q_grad = q.grad();
    EXPECT_EQ(q_grad.data<double>()[0], 0.0);
    EXPECT_TRUE(std::isnan(q_grad.data<double>()[1]));
  }
}

TEST(ClipGradNorm, RejectsWhatCannotBe) {
  EXPECT_EQ(message_of<ValueError>([] { clip_grad_norm({}, -1.0); }),
            "clip_grad_norm: max_norm must be >= 0, got -1");
  for (const double norm_type : {0.0, 3.0, -kInf, kNan}) {
    EXPECT_EQ(message_of<ValueError>([&] { clip_grad_norm({}, 1.0, norm_type); }).substr(0, 50),
              "clip_grad_norm: norm_type must be 1, 2 or inf, got");
  }
  const Tensor huge = randn({1});
  huge.set_shard_spec(std::make_shared<ShardSpec>(test::range_spec({std::int64_t{1} << 41}, 0, 1)));
  EXPECT_EQ(message_of<ValueError>([&] {
              clip_grad_norm({{"p", huge}}, 1.0);
            }),
            "clip_grad_norm: at most 1099511627776 elements, got 2199023255552");
}

}  // namespace
}  // namespace moegrad::optim::clip_grad_norm_test
