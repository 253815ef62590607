// SPDX-License-Identifier: Apache-2.0
#include "fsdp/reduction_input.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "framework/distributed/shard_spec.h"
#include "framework/tensor/fill.h"
#include "tests/testing.h"

namespace moegrad::fsdp::reduction_input_test {
namespace {

Tensor randn(const Shape& shape, std::uint64_t seed) {
  return test::randn(shape, seed, Dtype::kFloat32);
}

// The parts one after the other.
std::vector<float> values_of(const ReductionInput& input) {
  std::vector<float> values;
  for (const auto part : input.parts) {
    const auto* const first = reinterpret_cast<const float*>(part.data());
    values.insert(values.end(), first, first + part.size() / sizeof(float));
  }
  return values;
}

// PyTorch's copy-in: rank by rank, the rank's part of every gradient, padded to the ceil-sized
// chunk.
std::vector<float> reference(const std::vector<FlatParam>& params, const TensorList& gradients,
                             int world_size) {
  std::vector<float> values;
  for (int rank = 0; rank < world_size; ++rank) {
    for (std::size_t i = 0; i < params.size(); ++i) {
      const auto& [shape, dim] = params[i];
      const auto chunk = (shape[dim] + world_size - 1) / world_size;
      const auto range = shard_range(shape[dim], world_size, rank);
      const auto padded = shape.numel() / shape[dim] * chunk;
      const auto end = values.size() + static_cast<std::size_t>(padded);
      for (std::int64_t row = 0; row < shape[0]; ++row) {
        for (std::int64_t column = 0; column < shape[1]; ++column) {
          const auto index = dim == 0 ? row : column;
          if (!gradients[i].defined() || index < range.begin || index >= range.end) continue;
          const auto* const first = gradients[i].strided_data<float>();
          const auto strides = gradients[i].strides();
          values.push_back(first[row * strides[0] + column * strides[1]]);
        }
      }
      values.resize(end);
    }
  }
  return values;
}

// Whether a part begins where the tensor's bytes do.
bool reads(const ReductionInput& input, const std::byte* bytes) {
  return std::ranges::any_of(input.parts, [&](auto part) { return part.data() == bytes; });
}

ReductionInput input_of(const std::vector<FlatParam>& params, TensorList gradients,
                        int world_size) {
  const auto layout = make_flat_layout(params, world_size, 1);
  return make_reduction_input(layout, params, std::move(gradients), Dtype::kFloat32);
}

// More ranks than rows, rows that no rank count divides, one row; a gradient that counts as zero;
// cuts along either dimension; a transposed gradient.
TEST(ReductionInput, IsWhatACopyOfTheRanksPartsWouldHold) {
  const std::vector<FlatParam> params = {
      {{7, 3}, 0}, {{4, 5}, 0}, {{3, 5}, 1}, {{1, 2}, 0}, {{6, 4}, 0}};
  const auto gradients = [] {
    return TensorList{randn({7, 3}, 1), Tensor(), randn({3, 5}, 3), randn({1, 2}, 4),
                      Tensor::as_strided(randn({4, 6}, 5), {6, 4}, {1, 6}, 0)};
  };
  for (const int world_size : {2, 3, 4, 8}) {
    EXPECT_EQ(values_of(input_of(params, gradients(), world_size)),
              reference(params, gradients(), world_size))
        << world_size;
  }
}

// One gradient without padding, so that nothing else can come to lie where a copied one has been.
TEST(ReductionInput, IsReadInTheGradientWhereARanksRowsLieInOneRun) {
  for (const std::int64_t dim : {0, 1}) {
    TensorList gradients;  // a braced list would hold a second handle
    gradients.push_back(randn({4, 6}, 1));
    const auto* const bytes = gradients[0].bytes().data();
    const auto input = input_of({{{4, 6}, dim}}, std::move(gradients), 2);
    EXPECT_EQ(reads(input, bytes), dim == 0);
  }
}

// A hook that keeps a gradient may write to it while it is being reduced.
TEST(ReductionInput, IsACopyOfAGradientThatSomebodyElseHolds) {
  const std::vector<FlatParam> params = {{{8, 3}, 0}};
  for (const bool same_handle : {true, false}) {
    TensorList gradients;
    gradients.push_back(randn({8, 3}, 1));
    Tensor kept = same_handle ? gradients[0] : gradients[0].detach();
    const auto before = reference(params, gradients, 2);
    const auto input = input_of(params, std::move(gradients), 2);
    fill_(kept, 0);
    EXPECT_EQ(values_of(input), before);
  }
}

TEST(ReductionInput, IsInTheDtypeThatIsReduced) {
  const std::vector<FlatParam> params = {{{5, 3}, 0}};
  const Tensor narrow = to_dtype(randn({5, 3}, 1), Dtype::kBFloat16);
  EXPECT_EQ(values_of(input_of(params, {narrow}, 2)),
            reference(params, {to_dtype(narrow, Dtype::kFloat32)}, 2));
}

}  // namespace
}  // namespace moegrad::fsdp::reduction_input_test
