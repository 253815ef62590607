// SPDX-License-Identifier: Apache-2.0
#include "optim/clip_grad_value.h"

#include <cmath>
#include <limits>

#include "framework/distributed/shard_spec.h"
#include "framework/tensor/tensor_mark.h"
#include "tests/testing.h"

namespace moegrad::optim::clip_grad_value_test {
namespace {

using test::message_of;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

TEST(ClipGradValue, ClampsEachElementAndKeepsNan) {
  for (const auto dtype : {Dtype::kFloat32, Dtype::kFloat64}) {
    const Tensor p = Tensor::zeros({6}, dtype), empty = Tensor::zeros({0}, dtype);
    const Tensor without = Tensor::zeros({2}, dtype);
    p.set_grad(to_dtype(
        Tensor::from(std::vector<double>{-3.0, -0.5, 0.25, 2.0, kInfinity, kNan}, {6}), dtype));
    empty.set_grad(Tensor::zeros({0}, dtype));
    clip_grad_value({{"p", p}, {"empty", empty}, {"without", without}}, 0.5);
    const Tensor clipped = to_dtype(p.grad(), Dtype::kFloat64);
    const auto values = clipped.data<double>();
    EXPECT_EQ(std::vector<double>(values.begin(), values.begin() + 5),
              (std::vector<double>{-0.5, -0.5, 0.25, 0.5, 0.5}));
    EXPECT_TRUE(std::isnan(values[5]));
    EXPECT_FALSE(without.grad().defined());
  }
}

TEST(ClipGradValue, RejectsWhatCannotBe) {
  const Tensor p = Tensor::zeros({2});
  EXPECT_EQ(message_of<ValueError>([&] {
              clip_grad_value({{"p", p}}, -1.0);
            }),
            "clip_grad_value: max_value must be >= 0, got -1");
  EXPECT_EQ(message_of<ValueError>([&] {
              clip_grad_value({{"p", p}}, kNan);
            }),
            "clip_grad_value: max_value must be >= 0, got nan");
  p.set_shard_spec(std::make_shared<const ShardSpec>(whole_spec({2})));
  set_mark(p, kReplaced);
  EXPECT_EQ(message_of<Error>([&] {
              clip_grad_value({{"p", p}}, 1.0);
            }),
            "clip_grad_value: 'p' must be a parameter of its module, got the whole tensor that "
            "fully_shard or expert_parallel has replaced by a part; take named_parameters() "
            "afterwards");
}

}  // namespace
}  // namespace moegrad::optim::clip_grad_value_test
