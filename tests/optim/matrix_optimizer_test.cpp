// SPDX-License-Identifier: Apache-2.0
#include "optim/matrix_optimizer.h"

#include <memory>

#include "optim/adafactor.h"
#include "optim/muon.h"
#include "tests/optim/stacked_experts.h"
#include "tests/testing.h"

namespace moegrad::optim::matrix_optimizer_test {
namespace {

using namespace test;

// Known from the description alone: expert 1's up, element (out 2, in 3).
TEST(StackedMatrices, SayWhereAMatrixIsStored) {
  const auto place_of = [](bool transposed) {
    const auto matrix = stored_matrix(gate_up(transposed), stacked_shape(transposed), 3);
    EXPECT_EQ(matrix.rows, 4);
    EXPECT_EQ(matrix.columns, 5);
    return matrix.offset + 2 * matrix.row_step + 3 * matrix.column_step;
  };
  EXPECT_EQ(place_of(false), ((1 * 2 + 1) * 4 + 2) * 5 + 3);
  EXPECT_EQ(place_of(true), (1 * 5 + 3) * 8 + 4 + 2);
}

NamedTensors named(const TensorList& matrices) {
  NamedTensors parameters;
  for (const auto& matrix : matrices) {
    parameters.push_back({std::to_string(parameters.size()), clone(matrix)});
  }
  return parameters;
}

/// Experts stacked in either orientation get the bits of their matrices as separate parameters. In
/// step 1 expert 1 has no gradient: `skips` experts without one.
template <class Optimizer>
void expect_as_separate(typename Optimizer::Config config, Dtype dtype, bool skips) {
  const auto start = random_matrices(1, dtype);
  for (const bool transposed : {false, true}) {
    const Tensor stacked = stack(start, transposed);
    auto stacked_config = config;
    stacked_config.matrices = {{"experts", gate_up(transposed)}};
    if (skips) stacked_config.skip_missing_grad = {{"experts", kExperts}};
    Optimizer together({{"experts", stacked}}, stacked_config);
    const auto parameters = named(start);
    Optimizer separate(parameters, config);
    for (std::uint64_t step = 0; step < 4; ++step) {
      auto grads = random_matrices(100 * (step + 1), dtype);
      separate.zero_grad();
      for (std::size_t i = 0; i < grads.size(); ++i) {
        const bool without = step == 1 && i / 2 == 1;
        if (without) grads[i] = zeros_like(grads[i]);
        if (!without || !skips) parameters[i].tensor.set_grad(grads[i]);
      }
      stacked.set_grad(stack(grads, transposed));
      together.step();
      separate.step();
      TensorList expected;
      for (const auto& [name, parameter] : parameters) expected.push_back(parameter);
      ASSERT_TRUE(bitwise_equal(stacked, stack(expected, transposed))) << transposed << step;
    }
  }
}

TEST(MatrixOptimizers, TreatStackedExpertsAsSeparateMatricesInEitherOrientation) {
  for (const auto dtype : {Dtype::kFloat32, Dtype::kFloat64}) {
    for (const bool skips : {false, true}) {
      expect_as_separate<Adafactor>({.lr = 0.1, .weight_decay = 0.1}, dtype, skips);
      expect_as_separate<Muon>({.lr = 0.1}, dtype, skips);
      expect_as_separate<Muon>({.lr = 0.1, .nesterov = false, .adjust = Muon::Adjust::kMatchRms},
                               dtype, skips);
    }
  }
}

// Without a description each row block is a matrix.
TEST(MatrixOptimizers, TakeRowBlocksForMatrices) {
  const Tensor whole = randn({6, 4}), other = randn({2, 2}, 9);
  NamedTensors blocks;
  for (std::int64_t i = 0; i < 3; ++i) {
    blocks.push_back({std::to_string(i), clone(Tensor::narrow(whole, 0, 2 * i, 2))});
  }
  Adafactor together({{"p", whole}}, {.skip_missing_grad = {{"p", 3}}}), separate(blocks, {});
  const Tensor grad = randn({6, 4}, 5);
  whole.set_grad(grad);
  for (std::int64_t i = 0; i < 3; ++i) {
    blocks[static_cast<std::size_t>(i)].tensor.set_grad(clone(Tensor::narrow(grad, 0, 2 * i, 2)));
  }
  together.step();
  separate.step();
  for (std::int64_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(bitwise_equal(clone(Tensor::narrow(whole, 0, 2 * i, 2)),
                              blocks[static_cast<std::size_t>(i)].tensor));
  }
}

TEST(Adafactor, KeepsMeansOfRowsAndColumns) {
  const Tensor matrix = randn({3, 4}), vector = randn({5}), batch = randn({2, 3, 4});
  const Tensor experts = stack(random_matrices(1, Dtype::kFloat64), true);
  NamedTensors parameters = {
      {"matrix", matrix}, {"vector", vector}, {"batch", batch}, {"experts", experts}};
  for (auto& [name, tensor] : parameters) tensor.set_requires_grad(true);
  const Adafactor optimizer(parameters, {.matrices = {{"experts", gate_up(true)}}});
  std::vector<std::pair<std::string, Shape>> state;
  for (const auto& [name, tensor] : optimizer.state_dict())
    state.emplace_back(name, tensor.shape());
  const std::vector<std::pair<std::string, Shape>> expected = {
      {"matrix.step", {1}},         {"matrix.row_var", {3, 1}},   {"matrix.col_var", {1, 4}},
      {"vector.step", {1}},         {"vector.variance", {5}},     {"batch.step", {1}},
      {"batch.row_var", {2, 3, 1}}, {"batch.col_var", {2, 1, 4}}, {"experts.step", {1}},
      {"experts.row_var", {24, 1}}, {"experts.col_var", {6, 5}}};
  EXPECT_EQ(state, expected);
}

TEST(MatrixOptimizers, RejectMatricesThatCannotBe) {
  const Tensor p = randn({6, 4}), vector = randn({4});
  const auto refused = [&]<class E = ValueError>(Adafactor::Config config) {
    return message_of<E>([&] { Adafactor({{"p", p}, {"v", vector}}, config); });
  };
  EXPECT_EQ(refused({.matrices = {{"q", {}}}}),
            "Adafactor: matrices must name parameters, got 'q'");
  EXPECT_EQ(refused({.matrices = {{"p", {.blocks = 4}}}}),
            "Adafactor: the blocks of 'p' must divide its 6 rows, got 4");
  EXPECT_EQ(refused({.matrices = {{"p", {.blocks = 0}}}}),
            "Adafactor: the blocks of 'p' must divide its 6 rows, got 0");
  EXPECT_EQ(refused({.matrices = {{"p", {.blocks = 3, .parts = 3}}}}),
            "Adafactor: the parts of 'p' must divide its 2 out-features, got 3");
  EXPECT_EQ(refused({.matrices = {{"p", {.blocks = 3, .parts = 3, .transposed = true}}}}),
            "Adafactor: the parts of 'p' must divide its 4 out-features, got 3");
  EXPECT_EQ(refused({.matrices = {{"p", {.blocks = 3}}}, .skip_missing_grad = {{"p", 2}}}),
            "Adafactor: skip_missing_grad must have 3 row blocks of 'p', one per block of its "
            "matrices, got 2");
  EXPECT_EQ(refused.operator()<ShapeError>({.matrices = {{"v", {.blocks = 2}}}}),
            "Adafactor: 'v' must be a matrix, got [4]");
  EXPECT_EQ(refused({.beta2_decay = 0.5}),
            "Adafactor: beta2_decay must be finite and <= 0, got 0.5");
  EXPECT_EQ(refused({.min_rms = -1.0}), "Adafactor: min_rms must be finite and >= 0, got -1");
  EXPECT_EQ(refused({.clip_threshold = 0.5}), "Adafactor: clip_threshold must be >= 1, got 0.5");
}

}  // namespace
}  // namespace moegrad::optim::matrix_optimizer_test
