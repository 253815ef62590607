// SPDX-License-Identifier: Apache-2.0
#include "ops/compat/npu_grouped_matmul.h"

#include "ops/copies.h"
#include "ops/grouped_matmul.h"
#include "ops/nz.h"
#include "ops/split_cat.h"
#include "ops/views.h"
#include "tests/ops/indices.h"
#include "tests/testing.h"

namespace moegrad::ops::npu_grouped_matmul_test {
namespace {

using namespace test;
using Options = NpuGroupedMatmulOptions;
using List = std::vector<std::int64_t>;

// The plain product of two matrices: one expert.
Tensor product(const Tensor& a, const Tensor& b) {
  return grouped_matmul(a, view(contiguous(b), {1, b.dim(0), b.dim(1)}), {0, a.dim(0)});
}

Tensor slice(const Tensor& a, std::int64_t start, std::int64_t length) {
  return clone(narrow(a, 0, start, length));
}

TEST(NpuGroupedMatmul, GroupTypeMinusOneMultipliesPairs) {
  const TensorList x{randn({3, 5}, 1), randn({2, 7}, 2), randn({0, 4}, 3)};
  const TensorList w{randn({5, 4}, 4), randn({7, 6}, 5), randn({4, 1}, 6)};
  for (const int split_item : {0, 1}) {
    const auto y = npu_grouped_matmul(x, w, {.split_item = split_item});
    ASSERT_EQ(y.size(), 3U);
    for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(bitwise_equal(y[i], product(x[i], w[i])));
  }
  EXPECT_TRUE(
      bitwise_equal(npu_grouped_matmul({x[0]}, {nd_to_nz(w[0])}, {})[0], product(x[0], w[0])));
}

TEST(NpuGroupedMatmul, GroupTypeZeroAgreesWithGroupedMatmulForEveryGroupListAndWeight) {
  const Tensor x = randn({9, 20}, 1), w = randn({4, 20, 18}, 2);
  const Tensor expected = grouped_matmul(x, w, {0, 2, 2, 8, 9});
  const Tensor sparse = Tensor::from(List{0, 2, 1, 0, 2, 6, 3, 1}, {4, 2});
  const TensorList list{slice(w, 0, 1), slice(w, 1, 1), slice(w, 2, 1), slice(w, 3, 1)};
  TensorList matrices, nz_matrices, views;
  for (const auto& each : list) {
    matrices.push_back(view(each, {20, 18}));
    nz_matrices.push_back(nd_to_nz(matrices.back()));
    views.push_back(transpose(clone(transpose(matrices.back(), 0, 1)), 0, 1));
  }
  const Tensor stored = clone(transpose(w, 1, 2));
  const std::vector<TensorList> weights{{w},      {nd_to_nz(w)}, {transpose(stored, 1, 2)},
                                        matrices, nz_matrices,   views};
  const std::vector<Options> options{
      {.group_list = List{2, 2, 8, 9}},
      {.group_list = indices_of({2, 2, 8, 9})},
      {.group_list = indices_of({2, 0, 6, 1}), .group_list_type = 1},
      {.group_list = sparse, .group_list_type = 2},
  };
  for (const auto& weight : weights) {
    for (auto option : options) {
      option.group_type = 0;
      for (const int split_item : {2, 3}) {
        option.split_item = split_item;
        const auto y = npu_grouped_matmul({x}, weight, option);
        ASSERT_EQ(y.size(), 1U);
        EXPECT_TRUE(bitwise_equal(y[0], expected));
      }
    }
  }
}

TEST(NpuGroupedMatmul, TransposeWeightReadsNdAndNzAsTheirTranspose) {
  const Tensor x = randn({9, 20}, 1), stored = randn({2, 18, 20}, 2);
  const Tensor expected = grouped_matmul(x, stored, {0, 4, 9}, true);
  const Options options{
      .group_list = List{4, 9}, .group_type = 0, .split_item = 2, .transpose_weight = true};
  EXPECT_TRUE(bitwise_equal(npu_grouped_matmul({x}, {stored}, options)[0], expected));
  EXPECT_TRUE(bitwise_equal(npu_grouped_matmul({x}, {nd_to_nz(stored)}, options)[0], expected));
}

TEST(NpuGroupedMatmul, SparseGroupsMayComeInAnyOrderAndLeaveExpertsOut) {
  const Tensor x = randn({5, 3}, 1), w = randn({4, 3, 2}, 2);
  const auto y = npu_grouped_matmul({x}, {w},
                                    {.group_list = Tensor::from(List{3, 2, 1, 3}, {2, 2}),
                                     .group_type = 0,
                                     .group_list_type = 2,
                                     .split_item = 2});
  EXPECT_TRUE(
      bitwise_equal(slice(y[0], 0, 2), grouped_matmul(slice(x, 0, 2), slice(w, 3, 1), {0, 2})));
  EXPECT_TRUE(
      bitwise_equal(slice(y[0], 2, 3), grouped_matmul(slice(x, 2, 3), slice(w, 1, 1), {0, 3})));
}

TEST(NpuGroupedMatmul, ListsWithOneOutputAreStacked) {
  const TensorList x{randn({3, 5}, 1), randn({2, 5}, 2)};
  const TensorList w{randn({5, 4}, 3), randn({5, 4}, 4)};
  const Tensor expected = cat({product(x[0], w[0]), product(x[1], w[1])}, 0);
  EXPECT_TRUE(
      bitwise_equal(npu_grouped_matmul(x, w, {.group_type = 0, .split_item = 2})[0], expected));
  EXPECT_TRUE(bitwise_equal(
      npu_grouped_matmul(x, w, {.group_list = List{3, 5}, .group_type = 0, .split_item = 3})[0],
      expected));
}

TEST(NpuGroupedMatmul, GroupTypeTwoSumsOverGroupsAndZeroFillsEmptyOnes) {
  const Tensor rows = randn({7, 5}, 1), y = randn({7, 4}, 2);  // [K, M], [K, N]
  for (const bool counts : {false, true}) {
    const auto w =
        npu_grouped_matmul({transpose(rows, 0, 1)}, {y},
                           {.group_list = indices_of(counts ? List{3, 0, 4} : List{3, 3, 7}),
                            .group_type = 2,
                            .group_list_type = counts ? 1 : 0,
                            .split_item = 3});
    ASSERT_EQ(w[0].shape(), (Shape{3, 5, 4}));
    EXPECT_TRUE(bitwise_equal(view(slice(w[0], 0, 1), {5, 4}),
                              product(clone(transpose(slice(rows, 0, 3), 0, 1)), slice(y, 0, 3))));
    EXPECT_TRUE(bitwise_equal(slice(w[0], 1, 1), Tensor::zeros({1, 5, 4}, Dtype::kFloat64)));
    EXPECT_TRUE(bitwise_equal(view(slice(w[0], 2, 1), {5, 4}),
                              product(clone(transpose(slice(rows, 3, 4), 0, 1)), slice(y, 3, 4))));
  }
}

TEST(NpuGroupedMatmul, ABiasIsAddedToTheRowsOfItsGroup) {
  const TensorList x{randn({3, 5}, 1), randn({2, 5}, 2)};
  const TensorList w{randn({5, 4}, 3), randn({5, 4}, 4)};
  const TensorList bias{randn({4}, 5), randn({4}, 6)};
  const TensorList sums{add(product(x[0], w[0]), bias[0]), add(product(x[1], w[1]), bias[1])};
  const auto pairs = npu_grouped_matmul(x, w, {.bias = bias});
  for (std::size_t i = 0; i < 2; ++i) EXPECT_TRUE(bitwise_equal(pairs[i], sums[i]));
  const auto stacked = npu_grouped_matmul(x, w, {.group_type = 0, .split_item = 2, .bias = bias});
  EXPECT_TRUE(bitwise_equal(stacked[0], cat(sums, 0)));

  const Tensor rows = cat(x, 0), experts = view(cat(w, 0), {2, 5, 4});
  const Tensor biases = transpose(clone(transpose(view(cat(bias, 0), {2, 4}), 0, 1)), 0, 1);
  Options options{.group_list = List{3, 5}, .group_type = 0, .split_item = 2, .bias = bias};
  EXPECT_TRUE(bitwise_equal(npu_grouped_matmul({rows}, w, options)[0], cat(sums, 0)));
  options.bias = {biases};
  EXPECT_TRUE(bitwise_equal(npu_grouped_matmul({rows}, {experts}, options)[0], cat(sums, 0)));
  // The second expert's rows come first.
  options.group_list = Tensor::from(List{1, 2, 0, 3}, {2, 2});
  options.group_list_type = 2;
  const Tensor turned = npu_grouped_matmul({cat({x[1], x[0]}, 0)}, {experts}, options)[0];
  EXPECT_TRUE(bitwise_equal(turned, cat({sums[1], sums[0]}, 0)));
  options.transpose_weight = true;
  const Tensor stored = nd_to_nz(clone(transpose(experts, 1, 2)));
  EXPECT_TRUE(bitwise_equal(npu_grouped_matmul({cat({x[1], x[0]}, 0)}, {stored}, options)[0],
                            cat({sums[1], sums[0]}, 0)));
}

template <class E>
std::string rejected(const TensorList& x, const TensorList& weight, const Options& options) {
  const auto message = message_of<E>([&] { npu_grouped_matmul(x, weight, options); });
  const std::string prefix = "npu_grouped_matmul: ";
  EXPECT_EQ(message.substr(0, prefix.size()), prefix);
  return message.size() < prefix.size() ? message : message.substr(prefix.size());
}

TEST(NpuGroupedMatmul, RejectsOptionsOutOfRange) {
  const TensorList x{randn({8, 5})}, w{randn({2, 5, 4})};
  const auto message = [&](const Options& options) { return rejected<ValueError>(x, w, options); };
  const auto groups = List{3, 8};
  EXPECT_EQ(message({.group_list = groups, .group_type = 1, .split_item = 2}),
            "group_type must be -1, 0 or 2, got 1 (groups of columns are not supported)");
  EXPECT_EQ(message({.group_list = groups, .group_type = 3, .split_item = 2}),
            "group_type must be -1, 0 or 2, got 3");
  EXPECT_EQ(message({.group_list = groups, .group_type = 0, .group_list_type = 3, .split_item = 2}),
            "group_list_type must be 0, 1 or 2, got 3");
  EXPECT_EQ(message({.group_list = groups, .group_type = 0, .split_item = 4}),
            "split_item must be 0, 1, 2 or 3, got 4");
  EXPECT_EQ(message({.group_list = groups, .group_type = 0, .split_item = 1}),
            "group_type 0 needs split_item 2 or 3 (one output), got 1");
  EXPECT_EQ(message({.group_list = groups, .group_type = 2, .split_item = 0}),
            "group_type 2 needs split_item 2 or 3 (one output), got 0");
  EXPECT_EQ(message({.group_type = -1, .split_item = 2}),
            "group_type -1 needs split_item 0 or 1 (many outputs), got 2");
  EXPECT_EQ(message({.group_list = groups}), "group_list must be absent for group_type -1");
  EXPECT_EQ(message({.group_type = 0, .split_item = 2}), "group_list is required for group_type 0");
}

TEST(NpuGroupedMatmul, RejectsBadGroupLists) {
  const TensorList x{randn({8, 5})}, w{randn({2, 5, 4})};
  const auto message = [&](const auto& list, int type) {
    return rejected<ValueError>(
        x, w, {.group_list = list, .group_type = 0, .group_list_type = type, .split_item = 2});
  };
  const auto pairs = [](const List& values) {
    return Tensor::from(values, {std::ssize(values) / 2, 2});
  };
  EXPECT_EQ(message(List{3, 8}, 1),
            "a group_list that is no tensor needs group_list_type 0, got 1");
  EXPECT_EQ(message(List(129, 0), 0),
            "a group_list that is no tensor must have at most 128 groups, got 129");
  EXPECT_EQ(message(List{5, 4}, 0), "group_list must not decrease, got 5 then 4 for expert 1");
  EXPECT_EQ(message(indices_of({-1, 8}), 0),
            "group_list must not decrease, got 0 then -1 for expert 0");
  EXPECT_EQ(message(indices_of({9, -1}), 1),
            "group_list must not have negative counts, got -1 for expert 1");
  EXPECT_EQ(message(List{3, 7}, 0), "groups must add up to the 8 rows of x, got 7");
  EXPECT_EQ(message(indices_of({3, 6}), 1), "groups must add up to the 8 rows of x, got 9");
  EXPECT_EQ(message(pairs({0, 3}), 2), "groups must add up to the 8 rows of x, got 3");
  EXPECT_EQ(message(pairs({0, 3, 2, 5}), 2), "group_list must name experts in [0, 2), got 2");
  EXPECT_EQ(message(pairs({0, 3, 0, 5}), 2), "group_list must name each expert once, got 0 twice");
  EXPECT_EQ(message(pairs({0, -3}), 2),
            "group_list must not have negative counts, got -3 for expert 0");
  const auto shape_message = [&](const auto& list, int type) {
    return rejected<ShapeError>(
        x, w, {.group_list = list, .group_type = 0, .group_list_type = type, .split_item = 2});
  };
  EXPECT_EQ(shape_message(List{3, 3, 8}, 0),
            "group_list must have 2 groups, one per expert, got 3");
  EXPECT_EQ(shape_message(pairs({3, 5}), 1),
            "group_list must be [G] for group_list_type 1, got [1, 2]");
  EXPECT_EQ(shape_message(indices_of({3, 5}), 2),
            "group_list must be [G, 2] for group_list_type 2, got [2]");
  EXPECT_EQ(shape_message(indices_of(List(1025, 0)), 1),
            "group_list must have at most 1024 groups, got 1025");
  EXPECT_EQ(
      rejected<DtypeError>(
          x, w, {.group_list = randn({2}), .group_type = 0, .group_list_type = 1, .split_item = 2}),
      "group_list must be int64, got float64");
  EXPECT_EQ(rejected<ValueError>({randn({3, 5}), randn({2, 5})}, {randn({5, 4}), randn({5, 4})},
                                 {.group_list = List{2, 5}, .group_type = 0, .split_item = 2}),
            "group_list must give expert 0 the 3 rows of its x, got 2");
}

TEST(NpuGroupedMatmul, LimitsTheLastDimensionAsItIsStored) {
  // x [M, K] as the view of [K, M], and a weight read as its transpose: there K may be larger.
  const Tensor x = Tensor::zeros({65536, 2}, Dtype::kFloat64);
  const Tensor g = Tensor::zeros({65536, 3}, Dtype::kFloat64);
  EXPECT_EQ(npu_grouped_matmul({transpose(x, 0, 1)}, {g},
                               {.group_list = List{65536}, .group_type = 2, .split_item = 3})[0]
                .shape(),
            Shape({1, 2, 3}));
  EXPECT_EQ(rejected<ShapeError>({transpose(Tensor::zeros({2, 65536}, Dtype::kFloat64), 0, 1)}, {g},
                                 {.group_list = List{2}, .group_type = 2, .split_item = 3}),
            "the last dimension of x must be at most 65535 (as stored), got [65536, 2]");
}

TEST(NpuGroupedMatmul, RejectsBadLists) {
  const Tensor x = randn({8, 5}), w = randn({5, 4});
  EXPECT_EQ(rejected<ValueError>({}, {w}, {}), "x must not be an empty list");
  EXPECT_EQ(rejected<ValueError>({x}, {}, {}), "weight must not be an empty list");
  EXPECT_EQ(rejected<ValueError>(TensorList(129, x), TensorList(129, w), {}),
            "x must have at most 128 tensors, got 129");
  EXPECT_EQ(rejected<ShapeError>({randn({8})}, {w}, {}),
            "x must have two dimensions (a stacked weight three), got [8]");
  EXPECT_EQ(rejected<ShapeError>({Tensor::zeros({0, 65536}, Dtype::kFloat64)}, {w}, {}),
            "the last dimension of x must be at most 65535 (as stored), got [0, 65536]");
  EXPECT_EQ(rejected<DtypeError>({Tensor::zeros({8, 5}, Dtype::kInt64)}, {w}, {}),
            "x must be float32 or float64, got int64");
  EXPECT_EQ(rejected<DtypeError>({x}, {randn({5, 4}, 1, Dtype::kFloat32)}, {}),
            "weight must be float64 as the first tensor of x, got float32");
  EXPECT_EQ(rejected<ShapeError>({x, x}, {w}, {}),
            "lists x and weight must have one length, got 2 and 1");
  EXPECT_EQ(rejected<ShapeError>({x}, {randn({1, 5, 4})}, {}),
            "each weight of a list must be [K, N], got [1, 5, 4]");
  EXPECT_EQ(rejected<ShapeError>({x}, {randn({6, 4})}, {}),
            "weight must be [5, N] per expert to match x [8, 5], got [6, 4]");
}

TEST(NpuGroupedMatmul, RejectsABiasThatDoesNotFit) {
  const Tensor x = randn({8, 5}), w = randn({2, 5, 4});
  const auto message = [&]<class E>(E*, const TensorList& bias, bool transpose = false) {
    return rejected<E>({x}, {transpose ? randn({2, 4, 5}) : w},
                       {.group_list = List{3, 8},
                        .group_type = 0,
                        .split_item = 2,
                        .transpose_weight = transpose,
                        .bias = bias});
  };
  ShapeError* const shape = nullptr;
  DtypeError* const dtype = nullptr;
  EXPECT_EQ(message(shape, {randn({4}), randn({4})}),
            "bias must have as many tensors as weight, 1, got 2");
  EXPECT_EQ(message(shape, {randn({4})}), "bias must be [2, 4] to match weight [2, 5, 4], got [4]");
  EXPECT_EQ(message(shape, {randn({2, 5})}, true),
            "bias must be [2, 4] to match weight [2, 4, 5], got [2, 5]");
  EXPECT_EQ(message(dtype, {randn({2, 4}, 1, Dtype::kFloat32)}),
            "bias must be float64 as the weight, got float32");
  EXPECT_EQ(rejected<ValueError>(
                {transpose(x, 0, 1)}, {randn({8, 4})},
                {.group_list = List{3, 8}, .group_type = 2, .split_item = 3, .bias = {randn({4})}}),
            "group_type 2 has no bias");
}

TEST(NpuGroupedMatmul, RejectsTensorsThatDoNotFitTheGroupType) {
  const Tensor x = randn({8, 5}), w = randn({2, 5, 4});
  const Options rows{.group_list = List{3, 8}, .group_type = 0, .split_item = 2};
  const Options columns{.group_list = List{3, 8}, .group_type = 2, .split_item = 2};
  EXPECT_EQ(rejected<ShapeError>({randn({1, 8, 5})}, {w}, rows), "x must be [M, K], got [1, 8, 5]");
  EXPECT_EQ(rejected<LayoutError>({nd_to_nz(x)}, {w}, rows),
            "x must be row-major ND, got FRACTAL_NZ");
  EXPECT_EQ(rejected<LayoutError>({transpose(randn({5, 8}), 0, 1)}, {w}, rows),
            "x must not be transposed unless group_type is 2, got [8, 5] with strides [1, 8]");
  EXPECT_EQ(rejected<ShapeError>({x}, {w, w}, rows),
            "weight must be one [E, K, N] or a list of [K, N]");
  EXPECT_EQ(rejected<ShapeError>({x}, {randn({5, 4}), randn({5, 3})}, rows),
            "weights of one output must have one N, got 4 and 3");
  EXPECT_EQ(rejected<LayoutError>({x}, {randn({5, 4}), transpose(randn({4, 5}), 0, 1)}, rows),
            "weights must all be contiguous or all transposed views of contiguous tensors, got ND "
            "[5, 4] with strides [4, 1]");
  EXPECT_EQ(rejected<LayoutError>({x}, {narrow(randn({2, 5, 9}), 2, 0, 4)}, rows),
            "weights must all be contiguous or all transposed views of contiguous tensors, got ND "
            "[2, 5, 4] with strides [45, 9, 1]");
  EXPECT_EQ(
      rejected<LayoutError>({x}, {Tensor::empty_nz({2, 5, 4}, {1, 10, 4}, Dtype::kFloat64)}, rows),
      "weight [2, 5, 4] must be FRACTAL_NZ blocks of that shape, got blocks of [1, 10, 4]");

  const Tensor view_of_x = transpose(x, 0, 1), y = randn({8, 4});
  EXPECT_EQ(rejected<ShapeError>({view_of_x, view_of_x}, {y}, columns),
            "group_type 2 needs one x and one weight, got 2 and 1");
  EXPECT_EQ(rejected<LayoutError>({randn({5, 8})}, {y}, columns),
            "group_type 2 needs x [M, K] as the transposed view of a contiguous [K, M], got [5, 8] "
            "with strides [8, 1]");
  EXPECT_EQ(rejected<LayoutError>({view_of_x}, {nd_to_nz(y)}, columns),
            "group_type 2 needs a contiguous row-major weight");
  EXPECT_EQ(rejected<ShapeError>({view_of_x}, {randn({7, 4})}, columns),
            "weight must be [8, N] to match x [5, 8], got [7, 4]");
  EXPECT_EQ(rejected<ValueError>({view_of_x}, {y},
                                 {.group_list = List{3, 7}, .group_type = 2, .split_item = 2}),
            "groups must add up to the 8 columns of x, got 7");
  EXPECT_EQ(rejected<ValueError>({view_of_x}, {y}, {.group_type = 2, .split_item = 2}),
            "group_list is required for group_type 2");
  auto sparse = columns;
  sparse.group_list_type = 2;
  EXPECT_EQ(rejected<ValueError>({view_of_x}, {y}, sparse),
            "group_type 2 needs group_list_type 0 or 1, got 2");
  auto transposed = columns;
  transposed.transpose_weight = true;
  EXPECT_EQ(rejected<ValueError>({view_of_x}, {y}, transposed),
            "group_type 2 cannot transpose the weight");
}

}  // namespace
}  // namespace moegrad::ops::npu_grouped_matmul_test
