// SPDX-License-Identifier: Apache-2.0
#include "optim/adafactor.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "framework/tensor/as_eigen.h"
#include "tests/testing.h"

namespace moegrad::optim::adafactor_test {
namespace {

using test::randn;
using Array = Eigen::Array<double, Eigen::Dynamic, Eigen::Dynamic>;

double rms(const Array& values) { return std::sqrt(values.square().mean()); }

/// The formulas on a matrix, or on a vector as one column.
struct Reference {
  explicit Reference(const Tensor& start)
      : w(as_eigen<double>(start).array()),
        row(Array::Zero(w.rows(), 1)),
        col(Array::Zero(1, w.cols())),
        v(Array::Zero(w.rows(), w.cols())),
        is_matrix(start.ndim() == 2) {}

  void step(int t, const Array& g, const Adafactor::Config& c) {
    const double eps = c.eps > 0 ? c.eps : std::numeric_limits<double>::epsilon();
    const double b = std::pow(t, c.beta2_decay), rho = std::min(c.lr, std::pow(t, -0.5));
    const double alpha = std::max(c.min_rms, rms(w)) * rho;
    if (is_matrix) {
      row += b * (g.square().rowwise().mean() - row);
      col += b * (g.square().colwise().mean() - col);
      v = (row.matrix() * col.matrix()).array() / std::max(row.mean(), eps);
    } else {
      v += b * (g.square() - v);
    }
    const Array u = g / v.max(eps * eps).sqrt();
    w = w * (1 - c.lr * c.weight_decay) - alpha / std::max(1.0, rms(u) / c.clip_threshold) * u;
  }

  Array w, row, col, v;
  bool is_matrix;
};

void expect_reference(const Shape& shape, const Adafactor::Config& config, double start_size,
                      double gradient_size) {
  const auto scaled = [&](std::uint64_t seed, double size) {
    Tensor values = randn(shape, seed);
    for (auto& value : values.mutable_data<double>()) value *= size;
    return values;
  };
  const Tensor w = scaled(1, start_size);
  Reference reference(w);
  Adafactor optimizer({{"w", w}}, config);
  for (int t = 1; t <= 20; ++t) {
    const Tensor grad = scaled(10 + static_cast<std::uint64_t>(t), gradient_size);
    w.set_grad(grad);
    optimizer.step();
    reference.step(t, as_eigen<double>(grad).array(), config);
  }
  const Array difference = as_eigen<double>(w).array() - reference.w;
  EXPECT_LE(difference.abs().maxCoeff(), 1e-13 * reference.w.abs().maxCoeff()) << shape;
}

TEST(Adafactor, MatchesItsFormulas) {
  for (const Shape& shape : {Shape{4, 6}, Shape{5, 1}, Shape{1, 1}, Shape{7}}) {
    expect_reference(shape, {}, 1, 1);
    expect_reference(shape, {.lr = 0.9, .weight_decay = 0.1}, 1, 1);  // rho is t^-1/2
    expect_reference(shape, {.min_rms = 0.1}, 1e-3, 1);               // alpha is min_rms rho
    expect_reference(shape, {.beta2_decay = -0.5, .clip_threshold = 1.5}, 1, 1);
    expect_reference(shape, {.eps = 0.5}, 1, 0.1);
    expect_reference(shape, {}, 1, 1e-18);  // smaller than the machine epsilon
  }
}

TEST(Adafactor, TakesMoreDimensionsForABatchOfMatricesOfOneSize) {
  // One matrix above another, with means of their own but one rms of weights and of updates: the
  // batch's columns are their columns.
  const Tensor batch = randn({2, 3, 4});
  const Tensor start = clone(batch);
  Adafactor optimizer({{"w", batch}}, {.lr = 0.9});
  const Tensor grad = randn({2, 3, 4}, 5);
  batch.set_grad(grad);
  optimizer.step();
  Array u(6, 4), w(6, 4);
  for (Eigen::Index m = 0; m < 2; ++m) {
    const auto matrix = [&](const Tensor& tensor) {
      const Tensor part = Tensor::as_strided(tensor, {3, 4}, {4, 1}, 12 * m);
      return Array(as_eigen<double>(part).array());
    };
    const Array g = matrix(grad);
    const Array row = g.square().rowwise().mean(), col = g.square().colwise().mean();
    u.middleRows(3 * m, 3) = g / ((row.matrix() * col.matrix()).array() / row.mean()).sqrt();
    w.middleRows(3 * m, 3) = matrix(start);
  }
  w -= 0.9 * rms(w) / std::max(1.0, rms(u)) * u;
  const Tensor flat = Tensor::as_strided(batch, {6, 4}, {4, 1}, 0);
  EXPECT_LE((as_eigen<double>(flat).array() - w).abs().maxCoeff(), 1e-14);
}

TEST(Adafactor, LeavesEmptyParametersEmpty) {
  const Tensor none = Tensor::zeros({0, 3}), p = randn({2});
  Adafactor optimizer({{"none", none}, {"p", p}}, {});
  none.set_grad(Tensor::zeros({0, 3}));
  p.set_grad(randn({2}, 2));
  optimizer.step();
  EXPECT_EQ(test::integers(optimizer.state_dict()[0].tensor), std::vector<std::int64_t>{1});
}

}  // namespace
}  // namespace moegrad::optim::adafactor_test
