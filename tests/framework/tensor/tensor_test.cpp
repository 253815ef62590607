// SPDX-License-Identifier: Apache-2.0
#include "framework/tensor/tensor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "framework/tensor/hook_list.h"
#include "framework/tensor/tensor_mark.h"
#include "tests/framework/autograd/test_functions.h"
#include "tests/testing.h"

namespace moegrad::tensor_test {
namespace {

using namespace test;

template <class T>
concept ReadsTemporary = requires {
  T().template data<float>();
};
static_assert(!ReadsTemporary<Tensor>, "a span on a temporary would dangle");
template <class T>
concept TakesBytesOfTemporary = requires {
  T().bytes();
}
|| requires { T().mutable_bytes(); };
static_assert(!TakesBytesOfTemporary<Tensor>, "a span on a temporary would dangle");

TEST(Tensor, IsAValueHandle) {
  Tensor a = Tensor::zeros({2, 3});
  const Tensor b = a;
  a.mutable_data<float>()[4] = 5;
  EXPECT_EQ(b.data<float>()[4], 5);
  EXPECT_TRUE(a.is(b));
  EXPECT_FALSE(a.is(a.detach()));
  EXPECT_EQ(&a.storage(), &a.detach().storage());
}

TEST(Tensor, GivesItsMarksToADetachedOneAndNotToAClone) {
  static constexpr TensorMark kSeen{};
  const Tensor a = Tensor::zeros({2, 3});
  set_mark(a, kSeen);
  set_mark(a, kSeen);
  EXPECT_TRUE(has_mark(a.detach(), kSeen));
  EXPECT_FALSE(has_mark(clone(a), kSeen));
  EXPECT_FALSE(has_mark(a, kReplaced));
  set_mark(a, kSeen, false);
  EXPECT_FALSE(has_mark(a, kSeen));
}

TEST(Tensor, KnowsWhatItIs) {
  const Tensor a = Tensor::full({2, 3}, 1.5, Dtype::kFloat64);
  EXPECT_EQ(a.shape(), (Shape{2, 3}));
  EXPECT_EQ(a.strides(), (Shape{3, 1}));
  EXPECT_EQ(a.offset(), 0);
  EXPECT_EQ(a.dim(-1), 3);
  EXPECT_EQ(a.ndim(), 2);
  EXPECT_EQ(a.numel(), 6);
  EXPECT_EQ(a.dtype(), Dtype::kFloat64);
  EXPECT_EQ(a.layout(), Layout::kND);
  EXPECT_TRUE(a.is_contiguous());
  EXPECT_EQ(a.data<double>()[5], 1.5);
  EXPECT_TRUE(a.is_leaf());
  EXPECT_FALSE(a.requires_grad());
  EXPECT_FALSE(a.grad().defined());
  const Tensor ones = Tensor::ones({2}, Dtype::kBFloat16);
  EXPECT_EQ(ones.data<BFloat16>()[1].bits, 0x3f80);
}

// x[0] = y would change nothing of x.
static_assert(!std::is_assignable_v<Tensor, const Tensor&>);
static_assert(!std::is_assignable_v<Tensor, Tensor>);
static_assert(!std::is_assignable_v<Tensor, double> && !std::is_assignable_v<Tensor, int>);
static_assert(std::is_assignable_v<Tensor&, const Tensor&>);
static_assert(std::is_nothrow_move_assignable_v<Tensor>);
static_assert(std::is_nothrow_move_constructible_v<Tensor>);
static_assert(ElementType<std::int64_t> && ElementType<std::int8_t> && !ElementType<unsigned>);

template <class T>
concept MakesATensor = requires(const std::vector<T>& values) {
  Tensor::from(values, Shape{2});
};
static_assert(MakesATensor<std::int64_t> && MakesATensor<float> && MakesATensor<bool>);
static_assert(!MakesATensor<unsigned> && !MakesATensor<char>);

TEST(Tensor, FromChecksTheNumberOfValues) {
  EXPECT_EQ(message_of<ShapeError>([] {
              Tensor::from(std::vector<float>{1, 2, 3}, {2, 2});
            }),
            "tensor: shape [2, 2] needs 4 values, got 3");
}

TEST(Tensor, RefusesNegativeSizes) {
  EXPECT_EQ(message_of<ShapeError>([] {
              Tensor::empty({2, -1});
            }),
            "tensor: sizes must not be negative, got [2, -1]");
}

TEST(Tensor, RefusesAnUndefinedTensor) {
  const Tensor none;
  EXPECT_FALSE(none.defined());
  EXPECT_EQ(message_of<Error>([&] { (void)none.shape(); }), "tensor: undefined tensor used");
  EXPECT_THROW((void)none.data<float>(), Error);
  EXPECT_THROW((void)none.detach(), Error);
  EXPECT_THROW((void)none.storage(), Error);
  EXPECT_THROW((void)none.requires_grad(), Error);
  EXPECT_THROW(none.backward(), Error);
}

TEST(Tensor, RefusesTheWrongElementType) {
  Tensor a = Tensor::zeros({2});
  EXPECT_EQ(message_of<DtypeError>([&] { (void)a.data<double>(); }),
            "tensor: data of float32 read as float64");
  EXPECT_EQ(message_of<DtypeError>([&] { (void)a.mutable_data<std::int64_t>(); }),
            "tensor: data of float32 read as int64");
  EXPECT_EQ(message_of<DtypeError>([&] { (void)a.strided_data<BFloat16>(); }),
            "tensor: data of float32 read as bfloat16");
}

TEST(Tensor, StridedViewsAreNotReadAsContiguous) {
  const Tensor a = Tensor::from(std::vector<float>{0, 1, 2, 3, 4, 5}, {2, 3});
  const Tensor transposed = Tensor::as_strided(a, {3, 2}, {1, 3}, 0);
  EXPECT_FALSE(transposed.is_contiguous());
  EXPECT_EQ(message_of<LayoutError>([&] { (void)transposed.data<float>(); }),
            "tensor: data needs a contiguous tensor, got shape [3, 2] with strides [1, 3]");
  EXPECT_EQ(transposed.strided_data<float>()[3], 3);
  const Tensor row = Tensor::as_strided(a, {3}, {1}, 3);
  EXPECT_EQ(row.data<float>()[0], 3);
}

TEST(Tensor, BytesAreItsOwnElements) {
  Tensor a = Tensor::from(std::vector<double>{0, 1, 2, 3, 4, 5}, {2, 3});
  const auto* const first = reinterpret_cast<const std::byte*>(a.data<double>().data());
  EXPECT_EQ(a.bytes().data(), first);
  EXPECT_EQ(a.bytes().size(), 48U);
  Tensor row = Tensor::as_strided(a, {3}, {1}, 3);
  EXPECT_EQ(row.bytes().data(), first + 24);
  EXPECT_EQ(row.bytes().size(), 24U);
  const auto version = a.storage().version();
  EXPECT_EQ(row.mutable_bytes().data(), first + 24);
  EXPECT_EQ(a.storage().version(), version + 1);
  const Tensor nothing = Tensor::zeros({0, 3});
  EXPECT_TRUE(nothing.bytes().empty());
}

TEST(Tensor, BytesOfNzBlocksHaveTheirPadding) {
  Tensor nz = Tensor::empty_nz({6, 20}, {2, 3, 20}, Dtype::kFloat32);
  const auto version = nz.storage().version();
  EXPECT_EQ(nz.bytes().size(), std::as_bytes(nz.nz_data<float>()).size());
  EXPECT_EQ(nz.bytes().size(), 2U * 16U * 32U * 4U);
  EXPECT_EQ(nz.mutable_bytes().data(), nz.bytes().data());
  EXPECT_EQ(nz.storage().version(), version + 1);
}

TEST(Tensor, BytesNeedAContiguousTensorThatHasThem) {
  Tensor transposed = Tensor::as_strided(Tensor::zeros({2, 3}), {3, 2}, {1, 3}, 0);
  const std::string message =
      "tensor: bytes need a contiguous tensor, got shape [3, 2] with strides [1, 3]";
  const auto version = transposed.storage().version();
  EXPECT_EQ(message_of<LayoutError>([&] { (void)transposed.bytes(); }), message);
  EXPECT_EQ(message_of<LayoutError>([&] { (void)transposed.mutable_bytes(); }), message);
  EXPECT_EQ(transposed.storage().version(), version);
  Tensor none;
  EXPECT_EQ(message_of<UndefinedTensorError>([&] { (void)none.bytes(); }),
            "tensor: undefined tensor used");
  Tensor released = Tensor::zeros({2});
  released.storage().set_name("w");
  released.storage().release();
  EXPECT_NE(message_of<Error>([&] { (void)released.bytes(); }).find("'w'"), std::string::npos);
}

TEST(Tensor, NarrowIsAViewOfARange) {
  const Tensor a = Tensor::from(std::vector<float>{0, 1, 2, 3, 4, 5}, {2, 3});
  const Tensor columns = Tensor::narrow(a, 1, 1, 2);
  EXPECT_EQ(columns.shape(), (Shape{2, 2}));
  EXPECT_EQ(columns.strides(), (Shape{3, 1}));
  EXPECT_EQ(columns.offset(), 1);
  EXPECT_EQ(Tensor::narrow(a, 0, 2, 0).shape(), (Shape{0, 3}));
  EXPECT_EQ(message_of<ShapeError>([&] { Tensor::narrow(a, 0, 1, 2); }),
            "Tensor::narrow: must be within the 2 elements of dimension 0, got 2 from 1");
}

TEST(Tensor, NarrowStaysWithinAView) {
  const Tensor middle = Tensor::narrow(Tensor::arange(10), 0, 2, 3);
  for (const auto& [start, length] : {std::pair{0, 4}, {-1, 1}, {3, 1}, {0, -1}}) {
    EXPECT_EQ(message_of<ShapeError>([&, start = start, length = length] {
                Tensor::narrow(middle, 0, start, length);
              }),
              "Tensor::narrow: must be within the 3 elements of dimension 0, got " +
                  std::to_string(length) + " from " + std::to_string(start));
  }
  EXPECT_EQ(Tensor::narrow(middle, 0, 3, 0).numel(), 0);
}

TEST(Tensor, SizesBesideAZeroMayBeOfAnyProduct) {
  const Tensor empty = Tensor::zeros({0, std::int64_t{1} << 40, std::int64_t{1} << 40});
  EXPECT_EQ(empty.numel(), 0);
  EXPECT_TRUE(empty.is_contiguous());
}

TEST(Tensor, ContiguityIgnoresStridesThatAreNeverTaken) {
  const Tensor a = Tensor::zeros({6});
  EXPECT_TRUE(Tensor::as_strided(a, {1, 6}, {99, 1}, 0).is_contiguous());
  EXPECT_TRUE(Tensor::as_strided(a, {3, 1, 2}, {2, 7, 1}, 0).is_contiguous());
  EXPECT_TRUE(Tensor::as_strided(a, {0, 3}, {1, 5}, 0).is_contiguous());
  EXPECT_FALSE(Tensor::as_strided(a, {3}, {2}, 0).is_contiguous());
  EXPECT_FALSE(Tensor::as_strided(a, {3}, {0}, 0).is_contiguous());
  EXPECT_TRUE(Tensor::zeros({}).is_contiguous());
}

TEST(Tensor, ViewsMustStayInsideTheirStorage) {
  const Tensor a = Tensor::zeros({6});
  EXPECT_EQ(message_of<ShapeError>([&] {
              Tensor::as_strided(a, {2, 3}, {3, 1}, 1);
            }),
            "tensor: view [2, 3] with strides [3, 1] at offset 1 leaves a storage of 6 elements");
  EXPECT_EQ(message_of<ShapeError>([&] { Tensor::as_strided(a, {2}, {1}, -1); }),
            "tensor: view [2] with strides [1] at offset -1 leaves a storage of 6 elements");
  EXPECT_EQ(message_of<ShapeError>([&] {
              Tensor::as_strided(a, {2, 3}, {1}, 0);
            }),
            "tensor: shape [2, 3] and strides [1] differ in rank");
  EXPECT_EQ(message_of<ShapeError>([&] { Tensor::as_strided(a, {3}, {-1}, 5); }),
            "tensor: strides must not be negative, got [-1]");
  EXPECT_EQ(message_of<ShapeError>([&] { Tensor::as_strided(a, {-1}, {1}, 0); }),
            "tensor: sizes must not be negative, got [-1]");
}

TEST(Tensor, NzIsACheckedTag) {
  const Tensor nd = Tensor::zeros({5, 17});
  Tensor nz = Tensor::empty_nz({5, 17}, {1, 5, 17}, Dtype::kFloat32);
  EXPECT_EQ(nz.layout(), Layout::kNZ);
  EXPECT_FALSE(nz.is_contiguous());
  EXPECT_EQ(nz.storage().bytes(), 16 * 32 * 4);
  EXPECT_EQ(nz.nz_data<float>().size(), 16U * 32U);
  EXPECT_EQ(message_of<LayoutError>([&] { (void)nz.data<float>(); }),
            "tensor: elements of a FRACTAL_NZ tensor read as row-major ND");
  EXPECT_EQ(message_of<LayoutError>([&] { (void)nz.mutable_data<float>(); }),
            "tensor: elements of a FRACTAL_NZ tensor read as row-major ND");
  EXPECT_EQ(message_of<LayoutError>([&] { (void)nz.strided_data<float>(); }),
            "tensor: elements of a FRACTAL_NZ tensor read as row-major ND");
  EXPECT_EQ(message_of<LayoutError>([&] { (void)nd.nz_data<float>(); }),
            "tensor: elements of a row-major ND tensor read as FRACTAL_NZ");
  EXPECT_EQ(message_of<LayoutError>([&] { Tensor::as_strided(nz, {2}, {1}, 0); }),
            "tensor: a FRACTAL_NZ tensor has no strides");
  EXPECT_EQ(message_of<LayoutError>([&] { Tensor::nz_view(nd, {85}); }),
            "tensor: nz_view of an ND tensor");
  EXPECT_EQ(message_of<ShapeError>([&] { Tensor::nz_view(nz, {84}); }),
            "tensor: view [84] of [5, 17]");
  EXPECT_EQ(message_of<ShapeError>([] {
              Tensor::empty_nz({4, 17}, {1, 5, 17}, Dtype::kFloat32);
            }),
            "tensor: NZ blocks of [1, 5, 17] cannot hold shape [4, 17]");
}

TEST(Tensor, AnNzViewKeepsTheBlocks) {
  Tensor nz = Tensor::empty_nz({6, 20}, {2, 3, 20}, Dtype::kFloat64);
  const Tensor view = Tensor::nz_view(nz, {2, 3, 20});
  EXPECT_EQ(view.nz_blocks(), (NzBlocks{2, 3, 20}));
  EXPECT_EQ(view.shape(), (Shape{2, 3, 20}));
  const auto version = view.storage().version();
  nz.mutable_nz_data<double>()[7] = 3;
  EXPECT_EQ(view.nz_data<double>()[7], 3);
  EXPECT_EQ(view.storage().version(), version + 1);
}

TEST(Tensor, ItemIsTheOnlyElement) {
  EXPECT_EQ(Tensor::full({}, 2.5).item(), 2.5);
  EXPECT_EQ(Tensor::full({1, 1}, 2.5, Dtype::kFloat64).item(), 2.5);
  EXPECT_EQ(Tensor::full({1}, 2.5, Dtype::kBFloat16).item(), 2.5);
  EXPECT_EQ(Tensor::full({1}, 7, Dtype::kInt64).item(), 7);
  EXPECT_EQ(Tensor::full({1}, 1, Dtype::kBool).item(), 1);
  EXPECT_EQ(message_of<ShapeError>([] { (void)Tensor::zeros({2}).item(); }),
            "item: needs a tensor of one element, got [2]");
  EXPECT_EQ(message_of<ShapeError>([] { (void)Tensor::zeros({0}).item<int>(); }),
            "item: needs a tensor of one element, got [0]");
  EXPECT_EQ(message_of<ShapeError>([] { (void)Tensor::zeros({2}, Dtype::kBool).item<int>(); }),
            "item: needs a tensor of one element, got [2]");
}

TEST(Tensor, ReadsASingleElementAsATypeThatHoldsIt) {
  constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(Tensor::from(std::vector<std::int64_t>{kMost}, {}).item<std::int64_t>(), kMost);
  EXPECT_EQ(Tensor::full({}, -3).item<int>(), -3);
  EXPECT_EQ(Tensor::full({}, 0.1, Dtype::kFloat64).item<float>(), 0.1F);
  EXPECT_TRUE(Tensor::full({}, 1, Dtype::kInt64).item<bool>());
  EXPECT_FALSE(Tensor::full({}, 0, Dtype::kBool).item<bool>());
  EXPECT_EQ(Tensor::full({}, 255).item<std::uint8_t>(), 255);
  EXPECT_EQ(Tensor::full({}, 0x1p62).item<std::uint64_t>(), std::uint64_t{1} << 62);
  EXPECT_EQ(message_of<ValueError>([] { (void)Tensor::full({}, 0.5).item<int>(); }),
            "item: must be a whole number in [-2147483648, 2147483647] to be read as this type, "
            "got 0.5");
  EXPECT_EQ(message_of<ValueError>([] { (void)Tensor::full({}, 2).item<bool>(); }),
            "item: must be a whole number in [0, 1] to be read as this type, got 2");
  EXPECT_EQ(message_of<ValueError>(
                [] { (void)Tensor::full({}, -1, Dtype::kInt64).item<std::uint64_t>(); }),
            "item: must be a whole number in [0, 9223372036854775807] to be read as this type, got "
            "-1");
  EXPECT_EQ(message_of<ValueError>([] { (void)Tensor::full({}, NAN).item<std::int64_t>(); }),
            "item: must be a whole number in [-9223372036854775808, 9223372036854775807] to be "
            "read as this type, got nan");
  EXPECT_THROW((void)Tensor::full({}, 0x1p63).item<std::int64_t>(), ValueError);
}

TEST(Tensor, HoldsBools) {
  const Tensor mask = Tensor::from(std::vector<bool>{true, false, true}, {3});
  EXPECT_EQ(mask.dtype(), Dtype::kBool);
  EXPECT_EQ(mask.bytes().size(), 3U);
  EXPECT_TRUE(mask.data<bool>()[2]);
  EXPECT_TRUE(bitwise_equal(to_dtype(mask, Dtype::kInt64),
                            Tensor::from(std::vector<std::int64_t>{1, 0, 1}, {3})));
  const Tensor numbers = Tensor::from(std::vector<double>{-0.0, NAN, 0.25}, {3});
  EXPECT_TRUE(bitwise_equal(to_dtype(numbers, Dtype::kBool),
                            Tensor::from(std::vector<bool>{false, true, true}, {3})));
  EXPECT_TRUE(bitwise_equal(to_dtype(to_dtype(numbers, Dtype::kBFloat16), Dtype::kBool),
                            Tensor::from(std::vector<bool>{false, true, true}, {3})));
  EXPECT_EQ(
      message_of<DtypeError>([] { Tensor::zeros({1}, Dtype::kBool).set_requires_grad(true); }),
      "set_requires_grad: needs float32, float64 or bfloat16, got bool");
}

TEST(Tensor, OnlyLeavesOfAFloatingTypeCanRequireAGradient) {
  Tensor ids = Tensor::zeros({2}, Dtype::kInt64);
  EXPECT_EQ(message_of<DtypeError>([&] { ids.set_requires_grad(true); }),
            "set_requires_grad: needs float32, float64 or bfloat16, got int64");
  EXPECT_NO_THROW(ids.set_requires_grad(false));
  const Tensor x = variable({2});
  Tensor y = mul(x, x);
  EXPECT_EQ(message_of<Error>([&] { y.set_requires_grad(false); }),
            "set_requires_grad: only a leaf's flag can be set; detach() the result first");
  EXPECT_FALSE(y.is_leaf());
  EXPECT_TRUE(y.detach().is_leaf());
  EXPECT_FALSE(y.detach().requires_grad());
}

TEST(Tensor, AGradientHasTheShapeAndTypeOfItsTensor) {
  const Tensor x = Tensor::zeros({2, 3});
  EXPECT_EQ(message_of<ShapeError>([&] {
              x.set_grad(Tensor::zeros({3, 2}));
            }),
            "set_grad: gradient must be [2, 3] as its tensor, got [3, 2]");
  EXPECT_EQ(message_of<DtypeError>([&] {
              x.set_grad(Tensor::zeros({2, 3}, Dtype::kFloat64));
            }),
            "set_grad: gradient must be float32 as its tensor, got float64");
  const Tensor narrow = Tensor::zeros({2, 3}, Dtype::kBFloat16);
  EXPECT_EQ(message_of<DtypeError>([&] { narrow.set_grad(narrow); }),
            "set_grad: gradient must be float32 for a bfloat16 tensor, got bfloat16");
  narrow.set_grad(x);
  EXPECT_EQ(narrow.grad().dtype(), Dtype::kFloat32);
  x.set_grad(Tensor::ones({2, 3}));
  EXPECT_TRUE(x.grad().defined());
  x.set_grad({});
  EXPECT_FALSE(x.grad().defined());
}

TEST(Tensor, HooksNeedATensorThatRequiresAGradient) {
  const Tensor x = Tensor::zeros({2});
  EXPECT_EQ(message_of<Error>([&] { x.register_hook([](const Tensor& grad) { return grad; }); }),
            "register_hook: the tensor does not require a gradient");
  const std::string message =
      "register_post_accumulate_grad_hook: needs a leaf that requires a gradient";
  EXPECT_EQ(message_of<Error>([&] { x.register_post_accumulate_grad_hook([](const Tensor&) {}); }),
            message);
  const Tensor v = variable({2});
  const Tensor y = mul(v, v);
  EXPECT_EQ(message_of<Error>([&] { y.register_post_accumulate_grad_hook([](const Tensor&) {}); }),
            message);
}

}  // namespace
}  // namespace moegrad::tensor_test
