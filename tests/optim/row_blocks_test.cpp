// SPDX-License-Identifier: Apache-2.0
#include "optim/row_blocks.h"

#include <limits>
#include <string>
#include <vector>

#include "optim/adamw.h"
#include "optim/sgd.h"
#include "tests/optim/blocked_gradients.h"
#include "tests/testing.h"

namespace moegrad::optim::row_blocks_test {
namespace {

using namespace test;

constexpr std::int64_t kRows = 3, kColumns = 5;  // of one block
constexpr int kSteps = 14;

/// One parameter of kBlocks blocks beside kBlocks parameters of their own, the same numbers in
/// both.
struct Twins {
  explicit Twins(Dtype dtype) : stacked(randn({kBlocks * kRows, kColumns}, 7, dtype)) {
    for (std::int64_t b = 0; b < kBlocks; ++b) {
      alone.push_back({"block " + std::to_string(b), rows_of(stacked, b * kRows, (b + 1) * kRows)});
      alone.back().tensor.set_requires_grad(true);
    }
  }
  /// The same gradients, those of blocks without one being zeros, or undefined.
  void set_gradients(int step) {
    stacked.set_grad(blocked_gradient(stacked.shape(), step, stacked.dtype()));
    for (std::int64_t b = 0; b < kBlocks; ++b) {
      const bool present = block_has_gradient(step, b);
      alone[static_cast<std::size_t>(b)].tensor.set_grad(
          present ? rows_of(stacked.grad(), b * kRows, (b + 1) * kRows) : Tensor());
    }
  }
  void expect_equal(const Tensor& whole, std::int64_t block, const Tensor& own) const {
    EXPECT_TRUE(bitwise_equal(rows_of(whole, block * kRows, (block + 1) * kRows), own)) << block;
  }

  Tensor stacked;
  NamedTensors alone;
};

TEST(RowBlocks, AdamWUpdatesThemAsParametersOfTheirOwn) {
  for (const auto dtype : {Dtype::kFloat32, Dtype::kFloat64}) {
    Twins twins(dtype);
    AdamW::Config config{.lr = 1e-2, .beta2 = 0.95, .weight_decay = 0.1};
    AdamW separate(twins.alone, config);
    config.skip_missing_grad = {{"stacked", kBlocks}};
    AdamW optimizer({{"stacked", twins.stacked}}, config);
    for (int step = 0; step < kSteps; ++step) {
      twins.set_gradients(step);
      separate.step();
      optimizer.step();
    }
    const auto state = optimizer.states().at(0);
    const auto steps = test::integers(state.steps);
    ASSERT_EQ(std::ssize(steps), kBlocks);
    for (std::int64_t b = 0; b < kBlocks; ++b) {
      const auto i = static_cast<std::size_t>(b);
      const auto own = separate.states()[i];
      twins.expect_equal(twins.stacked, b, twins.alone[i].tensor);
      twins.expect_equal(state.exp_avg, b, own.exp_avg);
      twins.expect_equal(state.exp_avg_sq, b, own.exp_avg_sq);
      EXPECT_EQ(steps[i], test::integers(own.steps).at(0));
    }
    EXPECT_EQ(steps.front(), 0);  // one that never has a gradient, and one that always has
    EXPECT_EQ(steps.back(), kSteps);
  }
}

TEST(RowBlocks, SgdUpdatesThemAsParametersOfTheirOwn) {
  for (const double momentum : {0.0, 0.9}) {
    Twins twins(Dtype::kFloat64);
    SGD::Config config{.lr = 1e-2, .momentum = momentum, .weight_decay = 0.1};
    SGD separate(twins.alone, config);
    config.skip_missing_grad = {{"stacked", kBlocks}};
    SGD optimizer({{"stacked", twins.stacked}}, config);
    for (int step = 0; step < kSteps; ++step) {
      twins.set_gradients(step);
      separate.step();
      optimizer.step();
    }
    for (std::int64_t b = 0; b < kBlocks; ++b) {
      const auto i = static_cast<std::size_t>(b);
      twins.expect_equal(twins.stacked, b, twins.alone[i].tensor);
      if (momentum == 0.0) continue;
      twins.expect_equal(optimizer.buffers()[0].tensor, b, separate.buffers()[i].tensor);
    }
  }
}

TEST(RowBlocks, AreUpdatedInEitherOrientationOfTheWeights) {
  // Block b as [kRows, kColumns], and transposed as [kColumns, kRows].
  const auto transposed = [](const Tensor& stacked) {
    Tensor result = Tensor::empty({kBlocks * kColumns, kRows}, stacked.dtype());
    const auto from = stacked.data<double>();
    const auto to = result.mutable_data<double>();
    for (std::int64_t i = 0; i < stacked.numel(); ++i) {
      const auto b = i / (kRows * kColumns), row = i / kColumns % kRows, column = i % kColumns;
      to[static_cast<std::size_t>((b * kColumns + column) * kRows + row)] =
          from[static_cast<std::size_t>(i)];
    }
    return result;
  };
  const Tensor start = randn({kBlocks * kRows, kColumns}, 7);
  Tensor one = clone(start), other = transposed(start);
  const AdamW::Config config{.lr = 1e-2, .skip_missing_grad = {{"p", kBlocks}}};
  AdamW first({{"p", one}}, config), second({{"p", other}}, config);
  for (int step = 0; step < kSteps; ++step) {
    one.set_grad(blocked_gradient(one.shape(), step));
    other.set_grad(transposed(one.grad()));
    first.step();
    second.step();
  }
  EXPECT_TRUE(bitwise_equal(transposed(one), other));
  EXPECT_EQ(test::integers(first.states()[0].steps), test::integers(second.states()[0].steps));
}

TEST(RowBlocks, AreDecayedByAZeroGradientUnlessNamed) {
  Tensor named = Tensor::ones({4, 2}, Dtype::kFloat64), other = clone(named);
  AdamW optimizer({{"named", named}, {"other", other}},
                  {.lr = 0.1, .weight_decay = 0.5, .skip_missing_grad = {{"named", 2}}});
  Tensor grad = Tensor::zeros({4, 2}, Dtype::kFloat64);
  named.set_grad(grad);
  other.set_grad(grad);
  optimizer.step();
  for (const double value : named.data<double>()) EXPECT_EQ(value, 1.0);
  for (const double value : other.data<double>()) EXPECT_EQ(value, 0.95);
  EXPECT_EQ(test::integers(optimizer.states()[0].steps), (std::vector<std::int64_t>{0, 0}));
  EXPECT_EQ(test::integers(optimizer.states()[1].steps), std::vector<std::int64_t>{1});
}

TEST(RowBlocks, HaveAGradientWhenMarkedThoughItIsZero) {
  Tensor p = Tensor::ones({6, 1}, Dtype::kFloat64);
  AdamW optimizer({{"p", p}}, {.lr = 0.1, .weight_decay = 0.5, .skip_missing_grad = {{"p", 3}}});
  p.set_grad(Tensor::zeros({6, 1}, Dtype::kFloat64));
  const auto mark = [&](std::vector<std::int64_t> uses) { optimizer.mark_used("p", uses); };
  mark({0, 5, 0});
  mark({0, 0, 0});  // a later micro-batch takes nothing away
  optimizer.step();
  EXPECT_EQ(test::integers(optimizer.states()[0].steps), (std::vector<std::int64_t>{0, 1, 0}));
  const auto values = p.data<double>();
  EXPECT_EQ(std::vector<double>(values.begin(), values.end()),
            (std::vector<double>{1.0, 1.0, 0.95, 0.95, 1.0, 1.0}));
  optimizer.step();  // marks are for one step
  EXPECT_EQ(test::integers(optimizer.states()[0].steps), (std::vector<std::int64_t>{0, 1, 0}));
}

TEST(RowBlocks, CountNegativeZerosAsZerosAndNansAsNot) {
  Tensor p = Tensor::ones({2, 2}, Dtype::kFloat32);
  AdamW optimizer({{"p", p}}, {.skip_missing_grad = {{"p", 2}}});
  const float nan = std::numeric_limits<float>::quiet_NaN();
  p.set_grad(Tensor::from(std::vector<float>{-0.0F, 0.0F, 0.0F, nan}, {2, 2}));
  optimizer.step();
  EXPECT_EQ(test::integers(optimizer.states()[0].steps), (std::vector<std::int64_t>{0, 1}));
}

TEST(RowBlocks, OfAParameterWithoutAnyGradientAreLeftAlone) {
  Tensor p = Tensor::ones({2, 2}, Dtype::kFloat64);
  p.set_requires_grad(true);
  const Tensor other = Tensor::ones({2}, Dtype::kFloat64);
  AdamW optimizer({{"p", p}, {"other", other}}, {.skip_missing_grad = {{"p", 2}}});
  optimizer.mark_used("p", std::vector<std::int64_t>{1, 1});
  other.set_grad(Tensor::ones({2}, Dtype::kFloat64));
  optimizer.step();
  EXPECT_EQ(test::integers(optimizer.states()[0].steps), (std::vector<std::int64_t>{0, 0}));
}

TEST(RowBlocks, LeaveParametersOfAnyShapeAsTheyWere) {
  for (const Shape& shape : {Shape{}, Shape{0, 3}, Shape{4}}) {
    Tensor p = Tensor::ones(shape, Dtype::kFloat64);
    AdamW optimizer({{"p", p}}, {});
    p.set_grad(Tensor::ones(shape, Dtype::kFloat64));
    optimizer.step();
    EXPECT_EQ(test::integers(optimizer.states()[0].steps), std::vector<std::int64_t>{1});
    for (const double value : p.data<double>()) EXPECT_LT(value, 1.0);
  }
}

TEST(RowBlocks, RejectWhatCannotBe) {
  Tensor p = Tensor::ones({6, 2}, Dtype::kFloat64);
  const auto build = [&](const RowBlocks& blocks) {
    return message_of<ValueError>([&] { AdamW({{"p", p}}, {.skip_missing_grad = blocks}); });
  };
  EXPECT_EQ(build({{"p", 4}}),
            "optimizer: the number of row blocks of 'p' must divide its 6 rows, got 4");
  EXPECT_EQ(build({{"p", 0}}),
            "optimizer: the number of row blocks of 'p' must divide its 6 rows, got 0");
  EXPECT_EQ(build({{"q", 2}}), "optimizer: skip_missing_grad must name parameters, got 'q'");
  AdamW optimizer({{"p", p}}, {.skip_missing_grad = {{"p", 3}}});
  EXPECT_EQ(message_of<ValueError>([&] { optimizer.mark_used("q", std::vector<std::int64_t>{1}); }),
            "mark_used: skip_missing_grad must name 'q'");
  EXPECT_EQ(message_of<ValueError>([&] {
              optimizer.mark_used("p", std::vector<std::int64_t>{1, 0});
            }),
            "mark_used: 'p' has 3 row blocks, got 2");
}

}  // namespace
}  // namespace moegrad::optim::row_blocks_test
