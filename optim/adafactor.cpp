// SPDX-License-Identifier: Apache-2.0
#include "optim/adafactor.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <utility>

#include "framework/distributed/shard_runs.h"
#include "framework/runtime/math/elementary.h"
#include "framework/runtime/parallel_for.h"
#include "framework/tensor/fill.h"
#include "optim/grain.h"
#include "optim/matrix_copies.h"
#include "optim/optimizer_state.h"

namespace moegrad::optim {
namespace {

/// What is updated at once: a vector, or a batch of matrices with one rms.
struct AdafactorUnit {
  std::int64_t batch = 1;
  std::int64_t rows = 1;
  std::int64_t columns = 1;

  std::int64_t numel() const { return batch * rows * columns; }
};

struct AdafactorScalars {
  double rho, b, eps, min_rms, clip_threshold;
};

/// Sums of squares of rows [n, columns], each in the order of its elements.
template <class T>
std::vector<double> row_squares(const T* values, std::int64_t n, std::int64_t columns) {
  std::vector<double> sums(static_cast<std::size_t>(n));
  parallel_for(n, std::max<std::int64_t>(1, kGrain / std::max<std::int64_t>(columns, 1)),
               [&](std::int64_t begin, std::int64_t end) {
                 for (auto i = begin; i < end; ++i) {
                   double sum = 0;
                   for (std::int64_t j = 0; j < columns; ++j) {
                     const auto value = static_cast<double>(values[i * columns + j]);
                     sum += value * value;
                   }
                   sums[static_cast<std::size_t>(i)] = sum;
                 }
               });
  return sums;
}

/// Sums of squares of the columns of a matrix [rows, columns], from the first row to the last.
template <class T>
std::vector<double> column_squares(const T* values, std::int64_t rows, std::int64_t columns) {
  constexpr std::int64_t kColumns = 512;
  std::vector<double> sums(static_cast<std::size_t>(columns));
  parallel_for(columns, kColumns, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = 0; i < rows; ++i) {
      for (auto j = begin; j < end; ++j) {
        const auto value = static_cast<double>(values[i * columns + j]);
        sums[static_cast<std::size_t>(j)] += value * value;
      }
    }
  });
  return sums;
}

template <class T>
double rms_of(const T* values, const AdafactorUnit& unit) {
  double sum = 0;
  for (const double row : row_squares(values, unit.batch * unit.rows, unit.columns)) sum += row;
  return std::sqrt(sum / static_cast<double>(unit.numel()));
}

/// mean = mean + b (sum / count - mean)
template <class T>
void move_to_means(T* means, const std::vector<double>& sums, std::int64_t count, double b) {
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const auto mean = static_cast<double>(means[i]);
    means[i] = static_cast<T>(mean + b * (sums[i] / static_cast<double>(count) - mean));
  }
}

/// u = g / sqrt(max(V, eps^2)) of matrices, from the means of rows and columns, which move.
template <class T>
void scale_matrices(const AdafactorUnit& unit, const AdafactorScalars& c, const T* grad, T* row_var,
                    T* col_var, T* update) {
  const auto rows = unit.rows, columns = unit.columns;
  for (std::int64_t m = 0; m < unit.batch; ++m) {
    const T* const g = grad + m * rows * columns;
    T* const u = update + m * rows * columns;
    T* const row = row_var + m * rows;
    T* const col = col_var + m * columns;
    move_to_means(row, row_squares(g, rows, columns), columns, c.b);
    move_to_means(col, column_squares(g, rows, columns), rows, c.b);
    double mean = 0;
    for (std::int64_t i = 0; i < rows; ++i) mean += static_cast<double>(row[i]);
    const auto scale = std::max(mean / static_cast<double>(rows), c.eps);
    const auto smallest = static_cast<T>(c.eps * c.eps);
    parallel_for(rows, std::max<std::int64_t>(1, kGrain / columns),
                 [&](std::int64_t begin, std::int64_t end) {
                   for (auto i = begin; i < end; ++i) {
                     const auto relative = static_cast<T>(static_cast<double>(row[i]) / scale);
                     for (std::int64_t j = 0; j < columns; ++j) {
                       const T variance = std::max(relative * col[j], smallest);
                       u[i * columns + j] = g[i * columns + j] / std::sqrt(variance);
                     }
                   }
                 });
  }
}

/// The same of a vector, from the mean of its squares.
template <class T>
void scale_vector(const AdafactorUnit& unit, const AdafactorScalars& c, const T* grad, T* variance,
                  T* update) {
  const auto b = static_cast<T>(c.b), smallest = static_cast<T>(c.eps * c.eps);
  for (std::int64_t i = 0; i < unit.numel(); ++i) {
    variance[i] += b * (grad[i] * grad[i] - variance[i]);
    update[i] = grad[i] / std::sqrt(std::max(variance[i], smallest));
  }
}

/// update = alpha u / max(1, rms(u) / clip_threshold)
template <class T>
void scale_update(const AdafactorUnit& unit, const AdafactorScalars& c, double rms_of_weight,
                  T* update) {
  const double alpha = std::max(c.min_rms, rms_of_weight) * c.rho;
  const auto factor =
      static_cast<T>(alpha / std::max(1.0, rms_of(update, unit) / c.clip_threshold));
  for (std::int64_t i = 0; i < unit.numel(); ++i) update[i] *= factor;
}

}  // namespace

Adafactor::Adafactor(NamedTensors parameters, const Config& config)
    : Adafactor({ParamGroup{.parameters = std::move(parameters)}}, config) {}

Adafactor::Adafactor(std::vector<ParamGroup> groups, const Config& config)
    : MatrixOptimizer("Adafactor",
                      with_defaults("Adafactor", std::move(groups),
                                    {.lr = config.lr,
                                     .weight_decay = config.weight_decay,
                                     .eps = config.eps,
                                     .beta2_decay = config.beta2_decay,
                                     .min_rms = config.min_rms,
                                     .clip_threshold = config.clip_threshold}),
                      config.matrices, config.skip_missing_grad, config.skip_nonfinite_grad) {
  keep([this](const ParamGroup& /*group*/, const NamedTensor& named) {
    const auto& [name, parameter] = named;
    const auto& shape = global_shape(parameter);
    const auto dtype = parameter.dtype();
    NamedTensors state = {{"step", one_per_block(named)}};
    if (shape.ndim() < 2) {
      state.push_back({"variance", whole_state(parameter, shape, dtype)});
      return state;
    }
    Shape row_shape = shape, col_shape = shape;
    row_shape[-1] = 1;
    col_shape[-2] = 1;
    if (shape.ndim() == 2) {
      const auto matrices = stacked(name);
      const auto matrix = stored_matrix(matrices, shape, 0);
      row_shape = {matrices.count() * matrix.rows, 1};
      col_shape = {matrices.count(), matrix.columns};
    }
    state.push_back({"row_var", whole_state(parameter, row_shape, dtype)});
    state.push_back({"col_var", whole_state(parameter, col_shape, dtype)});
    return state;
  });
}

void Adafactor::apply_blocks(Update& whole, const Blocks& blocks) {
  const auto& group = whole.group;
  const auto& parameter = whole.parameter;
  auto& state = whole.state;
  const auto steps = state[0].mutable_data<std::int64_t>();
  for (const auto block : blocks.with_gradient) ++steps[static_cast<std::size_t>(block)];
  const Tensor weight = gather(parameter, parameter), gradient = gather(whole.grad, parameter);
  const auto& shape = weight.shape();
  if (shape.numel() == 0) return;
  const bool is_matrix = shape.ndim() == 2;
  const auto matrices = is_matrix ? stacked(whole.name) : StackedMatrices{.blocks = blocks.count};
  AdafactorUnit unit{.columns = shape.numel() / matrices.count()};
  if (is_matrix) {
    const auto matrix = stored_matrix(matrices, shape, 0);
    unit = {.rows = matrix.rows, .columns = matrix.columns};
  } else if (shape.ndim() > 2) {
    unit = {.rows = shape[-2], .columns = shape[-1]};
    unit.batch = shape.numel() / matrices.count() / unit.numel();
  }
  Tensor delta = Tensor::empty(shape, weight.dtype());
  fill_(delta, 0.0);
  dispatch_floating(weight.dtype(), [&]<class T>() {
    const double eps = *group.eps > 0.0 ? *group.eps : std::numeric_limits<T>::epsilon();
    Tensor scratch = Tensor::empty({3, unit.numel()}, weight.dtype());
    auto* const w = scratch.mutable_data<T>().data();
    auto *const g = w + unit.numel(), *const u = g + unit.numel();
    for (const auto index : with_gradient(matrices, blocks)) {
      const auto block = index / (matrices.count() / blocks.count);
      const auto t = static_cast<double>(steps[static_cast<std::size_t>(block)]);
      const AdafactorScalars c = {.rho = std::min(*group.lr, 1.0 / std::sqrt(t)),
                                  .b = math::pow(t, *group.beta2_decay),
                                  .eps = eps,
                                  .min_rms = *group.min_rms,
                                  .clip_threshold = *group.clip_threshold};
      // A unit that is no matrix is stored as one row.
      const auto stored = is_matrix ? stored_matrix(matrices, shape, index)
                                    : StoredMatrix{.rows = 1,
                                                   .columns = unit.numel(),
                                                   .offset = index * unit.numel(),
                                                   .row_step = unit.numel(),
                                                   .column_step = 1};
      take_matrix(stored, weight.data<T>().data(), w);
      take_matrix(stored, gradient.data<T>().data(), g);
      if (shape.ndim() < 2) {
        scale_vector(unit, c, g, state[1].mutable_data<T>().data() + index * unit.numel(), u);
      } else {
        scale_matrices(unit, c, g,
                       state[1].mutable_data<T>().data() + index * unit.batch * unit.rows,
                       state[2].mutable_data<T>().data() + index * unit.batch * unit.columns, u);
      }
      scale_update(unit, c, rms_of(w, unit), u);
      put_matrix(stored, u, delta.mutable_data<T>().data());
    }
  });
  decay_and_subtract(whole, blocks, delta);
}

}  // namespace moegrad::optim
