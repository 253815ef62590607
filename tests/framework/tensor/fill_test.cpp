// SPDX-License-Identifier: Apache-2.0
#include "framework/tensor/fill.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "framework/runtime/grad_mode.h"
#include "framework/runtime/rank_context.h"
#include "tests/testing.h"

namespace moegrad::fill_test {
namespace {

using namespace test;

TEST(Fill, WritesEveryElementOfAnyType) {
  for (const auto dtype : {Dtype::kFloat32, Dtype::kFloat64, Dtype::kBFloat16, Dtype::kInt64}) {
    Tensor tensor = Tensor::zeros({3}, dtype);
    fill_(tensor, 2);
    EXPECT_EQ(Tensor::as_strided(tensor, {1}, {1}, 2).item(), 2) << dtype;
  }
}

TEST(Fill, WritesNoNumberThatTheTypeDoesNotHold) {
  Tensor whole = Tensor::zeros({2, 3}, Dtype::kInt64), mask = Tensor::zeros({2}, Dtype::kBool);
  Tensor column = whole.slice(1, 0, 1);
  for (auto* tensor : {&whole, &column}) {
    EXPECT_EQ(message_of<ValueError>([&] { fill_(*tensor, 0.5); }),
              "fill_: int64 needs whole numbers in its range, got 0.5");
  }
  EXPECT_EQ(message_of<ValueError>([&] { fill_(mask, 2); }),
            "fill_: bool needs true and false, got 2");
}

TEST(Fill, AddNeedsEqualShapesAndTypes) {
  Tensor a = Tensor::ones({2, 3});
  add_(a, Tensor::ones({2, 3}));
  EXPECT_TRUE(bitwise_equal(a, Tensor::full({2, 3}, 2)));
  EXPECT_EQ(message_of<ShapeError>([&] {
              add_(a, Tensor::ones({3, 2}));
            }),
            "add_: shapes must agree, got [2, 3] and [3, 2]");
  EXPECT_EQ(message_of<DtypeError>([&] {
              add_(a, Tensor::ones({2, 3}, Dtype::kFloat64));
            }),
            "add_: dtypes must agree, got float32 and float64");
}

TEST(Fill, CopyReadsStridedTensorsAndConverts) {
  const Tensor a = Tensor::from(std::vector<double>{0, 1, 2, 3, 4, 5}, {2, 3});
  Tensor b = Tensor::empty({3, 2}, Dtype::kFloat32);
  copy_(b, Tensor::as_strided(a, {3, 2}, {1, 3}, 0));
  EXPECT_TRUE(bitwise_equal(b, Tensor::from(std::vector<float>{0, 3, 1, 4, 2, 5}, {3, 2})));
  Tensor expanded = Tensor::empty({2, 2}, Dtype::kInt64);
  copy_(expanded, Tensor::as_strided(a, {2, 2}, {0, 3}, 1));
  EXPECT_TRUE(bitwise_equal(expanded, Tensor::from(std::vector<std::int64_t>{1, 4, 1, 4}, {2, 2})));
  Tensor scalar = Tensor::empty({}, Dtype::kBFloat16);
  copy_(scalar, Tensor::full({}, 1.00390625));  // a tie, to even
  EXPECT_EQ(scalar.item(), 1.0);
  EXPECT_EQ(message_of<ShapeError>([&] { copy_(b, a); }),
            "copy_: shapes must agree, got [3, 2] and [2, 3]");
}

// More elements than a task has, and some more.
TEST(Fill, ConvertsAndAddsRealsOnAnyNumberOfThreads) {
  const std::int64_t n = 3 * (1 << 16) + 5;
  const Tensor wide = randn({n}, 1), x = to_dtype(wide, Dtype::kFloat32);
  std::vector<BFloat16> rounded, from_doubles;
  std::vector<float> sums;
  for (const float value : x.data<float>()) {
    rounded.emplace_back(value);
    sums.push_back(value + static_cast<float>(rounded.back()));
  }
  for (const double value : wide.data<double>()) from_doubles.emplace_back(value);
  for (const int threads : {1, 3}) {
    RankContext context(RankContext::Options{.threads = threads});
    const RankContextGuard guard(context);
    const Tensor narrow = to_dtype(x, Dtype::kBFloat16);
    EXPECT_TRUE(std::ranges::equal(narrow.data<BFloat16>(), rounded)) << threads;
    const Tensor narrowed = to_dtype(wide, Dtype::kBFloat16);
    EXPECT_TRUE(std::ranges::equal(narrowed.data<BFloat16>(), from_doubles)) << threads;
    const auto widened = to_dtype(narrow, Dtype::kFloat32);
    EXPECT_TRUE(bitwise_equal(to_dtype(widened, Dtype::kBFloat16), narrow)) << threads;
    EXPECT_TRUE(
        bitwise_equal(to_dtype(narrow, Dtype::kFloat64), to_dtype(widened, Dtype::kFloat64)))
        << threads;
    Tensor sum = clone(x);
    add_(sum, narrow);
    EXPECT_TRUE(std::ranges::equal(sum.data<float>(), sums)) << threads;
  }
}

TEST(Fill, ConvertsALeafAndItsGradientToBFloat16AndBack) {
  Tensor leaf = Tensor::ones({2}).set_requires_grad(true);
  leaf.set_grad(Tensor::full({2}, 1 + 0x1p-20));
  convert_(leaf, Dtype::kBFloat16);
  EXPECT_EQ(leaf.dtype(), Dtype::kBFloat16);
  EXPECT_TRUE(bitwise_equal(leaf.grad(), Tensor::full({2}, 1 + 0x1p-20)));
  convert_(leaf, Dtype::kFloat32);
  EXPECT_TRUE(bitwise_equal(leaf.grad(), Tensor::full({2}, 1 + 0x1p-20)));
}

TEST(Fill, CopyWritesIntoStridedViews) {
  Tensor a = Tensor::zeros({2, 3});
  Tensor column = a.slice(1, 1, 2);  // [2, 1] with strides [3, 1]
  copy_(column, Tensor::from(std::vector<double>{7, 8}, {2, 1}));
  EXPECT_TRUE(bitwise_equal(a, Tensor::from(std::vector<float>{0, 7, 0, 0, 8, 0}, {2, 3})));
  Tensor transposed = Tensor::as_strided(a, {3, 2}, {1, 3}, 0);
  copy_(transposed, Tensor::from(std::vector<float>{1, 2, 3, 4, 5, 6}, {3, 2}));
  EXPECT_TRUE(bitwise_equal(a, Tensor::from(std::vector<float>{1, 3, 5, 2, 4, 6}, {2, 3})));
  Tensor cube = Tensor::zeros({3, 70, 33}, Dtype::kFloat64);
  const Tensor source = randn({3, 33, 70});
  Tensor turned = Tensor::as_strided(cube, {3, 33, 70}, {70 * 33, 1, 33}, 0);
  copy_(turned, source);
  EXPECT_TRUE(bitwise_equal(clone(turned), source));
  Tensor every_other = a.slice(1, 0, 3, 2)[1];
  fill_(every_other, 9);
  EXPECT_TRUE(bitwise_equal(a, Tensor::from(std::vector<float>{1, 3, 5, 9, 4, 9}, {2, 3})));
}

TEST(Fill, CopyWalksAnyNumberOfDimensions) {
  for (const Shape& shape : {Shape{}, Shape{70}, Shape{33, 40}, Shape{2, 3, 5}, Shape{2, 3, 1, 5},
                             Shape{2, 2, 3, 2, 35}}) {
    Shape twice = shape;
    if (shape.ndim() > 0) twice[-1] *= 2;
    Tensor wide = Tensor::zeros(twice, Dtype::kFloat32);
    Tensor half = shape.ndim() > 0 ? wide.slice(-1, 1, twice[-1], 2) : wide;  // every other one
    const Tensor source = randn(shape);
    copy_(half, source);
    const auto expected = source.data<double>();
    const Tensor copied = clone(half);  // reads strided
    const auto found = copied.data<float>(), all = wide.data<float>();
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(found[i], static_cast<float>(expected[i])) << shape << " at " << i;
      if (shape.ndim() == 0) continue;
      EXPECT_EQ(all[2 * i + 1], found[i]) << shape << " at " << i;
      EXPECT_EQ(all[2 * i], 0.0F) << shape << " at " << i;
    }
  }
}

TEST(Fill, CopyBetweenPartsOfOneTensorReadsBeforeItWrites) {
  for (const auto& [to, from] : {std::pair{0, 1}, std::pair{1, 0}}) {
    Tensor a = Tensor::arange(5, Dtype::kFloat32);
    Tensor target = a.slice(0, to, to + 4);
    copy_(target, a.slice(0, from, from + 4));
    EXPECT_TRUE(bitwise_equal(a, to == 0 ? Tensor::from(std::vector<float>{1, 2, 3, 4, 4}, {5})
                                         : Tensor::from(std::vector<float>{0, 0, 1, 2, 3}, {5})));
  }
  Tensor square = Tensor::from(std::vector<float>{1, 2, 3, 4}, {2, 2});
  copy_(square, Tensor::as_strided(square, {2, 2}, {1, 2}, 0));  // transposes it in place
  EXPECT_TRUE(bitwise_equal(square, Tensor::from(std::vector<float>{1, 3, 2, 4}, {2, 2})));
}

TEST(Fill, CopyRefusesElementsInOnePlaceAndResultsOnTheTape) {
  const Tensor a = Tensor::zeros({1, 3});
  Tensor expanded = Tensor::as_strided(a, {2, 3}, {0, 1}, 0);
  EXPECT_EQ(message_of<LayoutError>([&] {
              copy_(expanded, Tensor::ones({2, 3}));
            }),
            "copy_: elements of the target must not lie in one place, got shape [2, 3] with "
            "strides [0, 1]");
  Tensor overlapping = Tensor::as_strided(Tensor::zeros({5}), {2, 3}, {2, 1}, 0);
  EXPECT_THROW(copy_(overlapping, Tensor::ones({2, 3})), LayoutError);
  const Tensor leaf = test::variable({2}, 1);
  const Tensor result = leaf.slice(0, 0, 2);
  Tensor target = Tensor::zeros({2}, Dtype::kFloat64), view = leaf.slice(0, 0, 1);
  EXPECT_EQ(message_of<Error>([&] { copy_(target, result); }),
            "copy_: is not recorded on the tape, but the source is a result on the tape; call "
            "it under a NoGradGuard");
  EXPECT_EQ(message_of<Error>([&] { copy_(view, Tensor::ones({1}, Dtype::kFloat64)); }),
            "copy_: is not recorded on the tape, but the target is a result on the tape; call "
            "it under a NoGradGuard");
  EXPECT_EQ(message_of<Error>([&] { fill_(view, 1); }),
            "fill_: is not recorded on the tape, but the tensor is a result on the tape; call it "
            "under a NoGradGuard");
  EXPECT_EQ(message_of<Error>([&] { add_(target, result); }),
            "add_: is not recorded on the tape, but the source is a result on the tape; call it "
            "under a NoGradGuard");
  EXPECT_THROW(add_(view, Tensor::ones({1}, Dtype::kFloat64)), Error);
  const NoGradGuard no_grad;
  copy_(target, result);
  EXPECT_TRUE(bitwise_equal(target, result.detach()));
  copy_(view, Tensor::ones({1}, Dtype::kFloat64));
  EXPECT_EQ(leaf.slice(0, 0, 1).item(), 1);
  fill_(view, 3);
  add_(view, Tensor::ones({1}, Dtype::kFloat64));
  EXPECT_EQ(leaf.slice(0, 0, 1).item(), 4);
}

TEST(Fill, CopiesAndViewsThatAreNotRecordedRefuseResultsOnTheTape) {
  const Tensor leaf = randn({4, 3}, 1, Dtype::kFloat64).set_requires_grad(true);
  const Tensor result = leaf.slice(0, 0, 2);
  const auto refusal = [](const std::string& op, const std::string& operand,
                          const std::string& instead) {
    return op + ": is not recorded on the tape, but the " + operand +
           " is a result on the tape; use " + instead + ", or call it under a NoGradGuard";
  };
  const auto narrow = [&] { return Tensor::narrow(result, 1, 1, 2); };
  const auto as_strided = [&] { return Tensor::as_strided(result, {3}, {1}, 0); };
  EXPECT_EQ(message_of<Error>([&] { clone(result); }), refusal("clone", "source", "ops::clone"));
  EXPECT_EQ(message_of<Error>([&] { to_dtype(result, Dtype::kFloat32); }),
            refusal("to_dtype", "source", "ops::cast"));
  EXPECT_EQ(message_of<Error>(narrow), refusal("Tensor::narrow", "base", "ops::narrow"));
  EXPECT_EQ(message_of<Error>(as_strided),
            refusal("Tensor::as_strided", "base", "the ops of ops/views.h"));
  EXPECT_TRUE(bitwise_equal(clone(leaf), leaf));
  EXPECT_TRUE(bitwise_equal(clone(result.detach()), result));
  const NoGradGuard no_grad;
  EXPECT_TRUE(bitwise_equal(clone(result), result));
  EXPECT_EQ(to_dtype(result, Dtype::kFloat32).dtype(), Dtype::kFloat32);
  EXPECT_EQ(narrow().shape(), (Shape{2, 2}));
  EXPECT_EQ(as_strided().numel(), 3);
}

TEST(Fill, TensorsLikeAnotherHaveItsShapeAndDtype) {
  const Tensor like = Tensor::zeros({2, 3}, Dtype::kInt64);
  EXPECT_TRUE(bitwise_equal(zeros_like(like), like));
  EXPECT_TRUE(bitwise_equal(ones_like(like), Tensor::ones({2, 3}, Dtype::kInt64)));
  EXPECT_TRUE(bitwise_equal(full_like(like, -7), Tensor::full({2, 3}, -7, Dtype::kInt64)));
  EXPECT_EQ(message_of<ValueError>([&] { full_like(like, 0.5); }),
            "full_like: int64 needs whole numbers in its range, got 0.5");
}

// As torch refuses it. What has been computed with a parameter would not know of the write.
TEST(Fill, WritesIntoLeavesThatRequireAGradientUnderANoGradGuardAlone) {
  Tensor leaf = test::variable({2}, 1);
  const Tensor start = clone(leaf), ones = Tensor::ones({2}, Dtype::kFloat64);
  const auto refusal = [](const std::string& op, const std::string& name) {
    return op + ": is not recorded on the tape, but " + name +
           " is a leaf that requires a gradient; call it under a NoGradGuard";
  };
  EXPECT_EQ(message_of<Error>([&] { fill_(leaf, 1); }), refusal("fill_", "the tensor"));
  EXPECT_EQ(message_of<Error>([&] { add_(leaf, ones); }), refusal("add_", "the target"));
  EXPECT_EQ(message_of<Error>([&] { copy_(leaf, ones); }), refusal("copy_", "the target"));
  EXPECT_TRUE(bitwise_equal(leaf, start));
  Tensor values = leaf.detach();
  fill_(values, 2);
  EXPECT_EQ(leaf.slice(0, 0, 1).item(), 2);
  const NoGradGuard no_grad;
  fill_(leaf, 1);
  add_(leaf, ones);
  copy_(leaf, ones);
  EXPECT_TRUE(bitwise_equal(leaf, ones));
}

TEST(Fill, CopyTransposesMatricesOfAnySize) {
  for (const std::int64_t rows : {1, 31, 32, 33, 70}) {
    for (const std::int64_t columns : {1, 64, 65}) {
      const Tensor a = randn({2, columns, rows});
      const Tensor copy =
          clone(Tensor::as_strided(a, {2, rows, columns}, {rows * columns, 1, rows}, 0));
      const auto from = a.data<double>(), to = copy.data<double>();
      for (std::size_t i = 0; i < to.size(); ++i) {
        const auto n = static_cast<std::size_t>(rows * columns);
        const auto r = i % n / static_cast<std::size_t>(columns);
        const auto c = i % static_cast<std::size_t>(columns);
        ASSERT_EQ(to[i], from[i / n * n + c * static_cast<std::size_t>(rows) + r])
            << rows << " x " << columns << " at " << i;
      }
    }
  }
}

TEST(Fill, EmptyTensorsAreFine) {
  Tensor a = Tensor::zeros({0, 3});
  add_(a, Tensor::zeros({0, 3}));
  copy_(a, Tensor::zeros({0, 3}));
  Tensor no_columns = Tensor::zeros({3, 0});
  copy_(no_columns, Tensor::zeros({3, 0}));
  fill_(no_columns, 1);
  fill_(a, 1);
  EXPECT_EQ(clone(a).shape(), (Shape{0, 3}));
}

TEST(Fill, ACloneHasItsOwnBytes) {
  Tensor a = randn({3, 4});
  const Tensor copy = clone(a);
  EXPECT_TRUE(bitwise_equal(a, copy));
  fill_(a, 0);
  EXPECT_FALSE(bitwise_equal(a, copy));
  EXPECT_TRUE(clone(Tensor::as_strided(a, {4, 3}, {1, 4}, 0)).is_contiguous());
}

TEST(Fill, AnNzTensorIsClonedBlockByBlock) {
  Tensor nz = Tensor::empty_nz({2, 3}, {1, 2, 3}, Dtype::kFloat32);
  float next = 0;
  for (auto& value : nz.mutable_nz_data<float>()) value = next++;
  const Tensor copy = clone(nz);
  EXPECT_EQ(copy.layout(), Layout::kNZ);
  EXPECT_EQ(copy.nz_data<float>().back(), 255);
  EXPECT_NE(&copy.storage(), &nz.storage());
  EXPECT_THROW(to_dtype(nz, Dtype::kFloat64), LayoutError);
}

}  // namespace
}  // namespace moegrad::fill_test
