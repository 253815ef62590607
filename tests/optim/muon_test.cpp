// SPDX-License-Identifier: Apache-2.0
#include "optim/muon.h"

#include <Eigen/SVD>
#include <algorithm>
#include <cmath>

#include "framework/tensor/as_eigen.h"
#include "optim/adamw.h"
#include "tests/nn/small_modules.h"
#include "tests/testing.h"

namespace moegrad::optim::muon_test {
namespace {

using namespace test;
using Matrix = EigenMatrix<double>;

/// What one step without momentum and decay takes from the parameter.
Matrix update_of(const Tensor& grad, Muon::Adjust adjust = Muon::Adjust::kOriginal) {
  const Tensor p = Tensor::zeros(grad.shape(), grad.dtype()), other = Tensor::ones({1});
  Muon optimizer({{"p", p}}, {.lr = 1.0, .momentum = 0.0, .weight_decay = 0.0, .adjust = adjust});
  p.set_grad(grad);
  optimizer.step();
  const Tensor wide = to_dtype(p, Dtype::kFloat64);
  return -as_eigen<double>(wide);
}

/// The singular values that X = U diag(s) V^T gets in `steps` Newton-Schulz steps, with its U and
/// V.
Matrix mapped(const Tensor& grad, int steps) {
  const Matrix g = as_eigen<double>(grad);
  const Eigen::JacobiSVD<Eigen::MatrixXd> svd(g, Eigen::ComputeThinU | Eigen::ComputeThinV);
  Eigen::VectorXd s = svd.singularValues() / g.norm();
  for (int step = 0; step < steps; ++step) {
    for (auto& value : s) {
      value = 3.4445 * value - 4.775 * std::pow(value, 3) + 2.0315 * std::pow(value, 5);
    }
  }
  return svd.matrixU() * s.asDiagonal() * svd.matrixV().transpose();
}

double largest(const Matrix& difference) { return difference.cwiseAbs().maxCoeff(); }

TEST(Muon, MapsTheSingularValuesFiveTimes) {
  for (const Shape& shape : {Shape{8, 8}, Shape{3, 7}, Shape{7, 3}, Shape{1, 5}, Shape{5, 1},
                             Shape{1, 1}, Shape{33, 40}}) {
    for (std::uint64_t seed = 1; seed <= 5; ++seed) {
      const Tensor grad = randn(shape, seed);
      const double factor =
          std::sqrt(std::max(1.0, static_cast<double>(shape[0]) / static_cast<double>(shape[1])));
      const Matrix update = update_of(grad) / factor;
      EXPECT_LE(largest(update - mapped(grad, 5)), 1e-9) << shape;
      EXPECT_GE(largest(update - mapped(grad, 4)), 1e-3) << shape;  // it sees a step left out
    }
  }
}

TEST(Muon, IsAboutTheSameInFloat32) {
  const Tensor grad = randn({6, 9}, 4);
  EXPECT_LE(largest(update_of(to_dtype(grad, Dtype::kFloat32)) - update_of(grad)), 1e-5);
}

TEST(Muon, AdjustsTheSizeOfTheUpdate) {
  const auto relative = [](const Shape& shape) {
    const Tensor grad = randn(shape, 3);
    const Matrix original = update_of(grad), match = update_of(grad, Muon::Adjust::kMatchRms);
    EXPECT_LE(largest(match / match.norm() - original / original.norm()), 1e-14);
    return match.norm() / original.norm();
  };
  EXPECT_NEAR(relative({4, 9}), 0.2 * 3, 1e-14);
  EXPECT_NEAR(relative({9, 4}), 0.2 * 3 / 1.5, 1e-14);
}

TEST(Muon, HasMomentumOfNesterovOrHeavyBall) {
  for (const bool nesterov : {false, true}) {
    const Tensor p = randn({3, 5}), start = clone(p);
    Muon optimizer({{"p", p}},
                   {.lr = 0.5, .momentum = 0.75, .nesterov = nesterov, .weight_decay = 0.25});
    Matrix expected = as_eigen<double>(start), m = Matrix::Zero(3, 5);
    for (std::uint64_t step = 0; step < 4; ++step) {
      const Tensor grad = randn({3, 5}, 20 + step);
      p.set_grad(grad);
      optimizer.step();
      const Matrix g = as_eigen<double>(grad);
      m = 0.75 * m + g;  // without the factor 1/4, which the norm takes away
      const Matrix d = nesterov ? Matrix(g + 0.75 * m) : m;
      Tensor direction = Tensor::zeros({3, 5}, Dtype::kFloat64);
      as_eigen<double>(direction) = d;
      expected = expected * (1 - 0.5 * 0.25) - 0.5 * mapped(direction, 5);
    }
    const Tensor& result = p;
    EXPECT_LE(largest(as_eigen<double>(result) - expected), 1e-12) << nesterov;
  }
}

TEST(Muon, LeavesAMatrixOfZeroGradientToItsDecay) {
  const Tensor p = Tensor::ones({2, 3}, Dtype::kFloat64);
  Muon optimizer({{"p", p}}, {.lr = 0.5, .weight_decay = 0.5});
  p.set_grad(Tensor::zeros({2, 3}, Dtype::kFloat64));
  optimizer.step();
  for (const double value : p.data<double>()) EXPECT_EQ(value, 0.75);
}

TEST(Muon, TakesItsScratchFromTheMemoryOfOptimizers) {
  const Tensor p = test::variable({40, 60});
  Muon optimizer({{"p", p}}, {});
  p.set_grad(randn({40, 60}, 2));
  auto& arena = *RankContext::current().arena();
  arena.reset_peak();
  const auto before = arena.live()[MemoryTag::kOptimizer];
  optimizer.step();
  const std::int64_t matrix = 40 * 60 * 8, gram = 40 * 40 * 8;
  // The direction, one matrix of it, and in orthogonalize() two matrices and two Gram matrices.
  EXPECT_GE(arena.peak(MemoryTag::kOptimizer) - before, 4 * matrix + 2 * gram);
  EXPECT_EQ(arena.live()[MemoryTag::kOptimizer], before);
}

TEST(Muon, GivesNamedGroupsToAdamW) {
  const Tensor matrix = randn({3, 4}), head = randn({5, 4}, 2), norm = randn({4}, 3);
  const Tensor same_head = clone(head), same_norm = clone(norm);
  Muon muon(
      {{.parameters = {{"matrix", matrix}}},
       {.parameters = {{"head", head}}, .lr = 0.5, .name = "head"},
       {.parameters = {{"norm", norm}}, .weight_decay = 0.0, .beta1 = 0.5, .name = "vectors"}},
      {.adamw_groups = {"head", "vectors"},
       .adamw = {.lr = 0.25, .beta2 = 0.9, .weight_decay = 0.125, .amsgrad = true}});
  AdamW adamw({{.parameters = {{"head", same_head}}, .lr = 0.5},
               {.parameters = {{"norm", same_norm}}, .weight_decay = 0.0, .beta1 = 0.5}},
              {.lr = 0.25, .beta2 = 0.9, .weight_decay = 0.125, .amsgrad = true});
  for (std::uint64_t step = 0; step < 3; ++step) {
    for (const auto& parameter : {matrix, head, norm, same_head, same_norm}) {
      parameter.set_grad(randn(parameter.shape(), 10 + step));
    }
    muon.step();
    adamw.step();
  }
  EXPECT_TRUE(bitwise_equal(head, same_head));
  EXPECT_TRUE(bitwise_equal(norm, same_norm));
  EXPECT_EQ(names_of(muon.state_dict()),
            (std::vector<std::string>{"matrix.momentum_buffer", "head.step", "head.exp_avg",
                                      "head.exp_avg_sq", "head.max_exp_avg_sq", "norm.step",
                                      "norm.exp_avg", "norm.exp_avg_sq", "norm.max_exp_avg_sq"}));
}

TEST(Muon, RejectsWhatCannotBe) {
  const Tensor vector = randn({4}), matrix = randn({2, 3});
  EXPECT_EQ(message_of<ShapeError>([&] {
              Muon({{"norm", vector}}, Muon::Config());
            }),
            "Muon: 'norm' must be a matrix, got [4]; put it into a group of adamw_groups");
  EXPECT_EQ(message_of<ValueError>([&] {
              Muon({{"p", matrix}}, {.adamw_groups = {"head"}});
            }),
            "Muon: adamw_groups must name groups, got 'head'");
  EXPECT_EQ(message_of<ValueError>([&] {
              Muon({{.parameters = {{"p", matrix}}, .beta1 = 0.5}}, Muon::Config());
            }),
            "Muon: a group must give settings of Muon alone, got beta1");
  EXPECT_EQ(message_of<ValueError>([&] {
              Muon({{.parameters = {{"p", matrix}}, .momentum = 0.5, .name = "head"}},
                   {.adamw_groups = {"head"}});
            }),
            "Muon's AdamW: a group must give settings of Muon's AdamW alone, got momentum");
  EXPECT_EQ(message_of<ValueError>([&] {
              Muon({{"p", matrix}}, {.eps = -1.0});
            }),
            "Muon: eps must be finite and >= 0, got -1");
}

}  // namespace
}  // namespace moegrad::optim::muon_test
