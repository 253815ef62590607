// SPDX-License-Identifier: Apache-2.0
#include "ops/compat/npu_grouped_matmul.h"

#include <algorithm>
#include <numeric>
#include <span>

#include "ops/checks.h"
#include "ops/copies.h"
#include "ops/grouped_products.h"
#include "ops/kernels/add_row.h"
#include "ops/split_cat.h"

namespace moegrad::ops {
namespace {

constexpr std::int64_t kMaxTensors = 128;  // in x, in weight, in a group_list that is a list
constexpr std::int64_t kMaxGroups = 1024;
constexpr std::int64_t kMaxLastDim = 65535;

template <class E = ValueError, class... Parts>
void require(bool ok, const Parts&... parts) {
  check<E>(ok, "npu_grouped_matmul: ", parts...);
}

/// Group i is rows [offsets[i], offsets[i + 1]) and belongs to expert experts[i].
struct Groups {
  std::vector<std::int64_t> experts;
  std::vector<std::int64_t> offsets{0};
};

Tensor swap_last_dims(const Tensor& tensor) {
  Shape shape = tensor.shape(), strides = tensor.strides();
  std::swap(shape[-1], shape[-2]);
  std::swap(strides[-1], strides[-2]);
  return Tensor::as_strided(tensor.detach(), shape, strides, tensor.offset());
}

// The dimension that is contiguous in memory: the last one; for a transposed view, the one before.
std::int64_t innermost(const Tensor& tensor) {
  const bool transposed = tensor.layout() == Layout::kND && !tensor.is_contiguous() &&
                          swap_last_dims(tensor).is_contiguous();
  return tensor.dim(transposed ? -2 : -1);
}

void check_list(const TensorList& tensors, const char* name, Dtype dtype) {
  require(!tensors.empty(), name, " must not be an empty list");
  require(std::ssize(tensors) <= kMaxTensors, name, " must have at most ", kMaxTensors,
          " tensors, got ", tensors.size());
  for (const auto& tensor : tensors) {
    require<ShapeError>(tensor.ndim() == 2 || tensor.ndim() == 3, name,
                        " must have two dimensions (a stacked weight three), got ", tensor.shape());
    require<ShapeError>(innermost(tensor) <= kMaxLastDim, "the last dimension of ", name,
                        " must be at most ", kMaxLastDim, " (as stored), got ", tensor.shape());
    check_floating("npu_grouped_matmul", name, tensor);
    require<DtypeError>(tensor.dtype() == dtype, name, " must be ", dtype,
                        " as the first tensor of x, got ", tensor.dtype());
  }
}

void check_x(const Tensor& x) {
  require<ShapeError>(x.ndim() == 2, "x must be [M, K], got ", x.shape());
  require<LayoutError>(x.layout() == Layout::kND, "x must be row-major ND, got FRACTAL_NZ");
}

void check_row_major_x(const Tensor& x) {
  check_x(x);
  require<LayoutError>(x.is_contiguous(), "x must not be transposed unless group_type is 2, got ",
                       x.shape(), " with strides ", x.strides());
}

// The matrices of all weights, each tensor [K, N] or one [E, K, N].
std::vector<StoredMatrix> weight_matrices(const TensorList& weight, bool transpose_weight) {
  const bool transposed_view = std::ranges::any_of(weight, [](const Tensor& each) {
    return each.layout() == Layout::kND && !each.is_contiguous();
  });
  std::vector<StoredMatrix> matrices;
  for (const auto& each : weight) {
    const auto experts = each.ndim() == 3 ? each.dim(0) : 1;
    Tensor base = each;
    check_blocks("npu_grouped_matmul", each, each.ndim() == 3 ? each.dim(0) : 1);
    if (transposed_view) {
      require<LayoutError>(each.layout() == Layout::kND && swap_last_dims(each).is_contiguous(),
                           "weights must all be contiguous or all transposed views of contiguous "
                           "tensors, got ",
                           each.layout(), ' ', each.shape(), " with strides ", each.strides());
      base = swap_last_dims(each);
    }
    std::ranges::move(stored_matrices(base, experts, transposed_view != transpose_weight),
                      std::back_inserter(matrices));
  }
  return matrices;
}

std::vector<std::int64_t> group_list_values(const NpuGroupedMatmulOptions& options) {
  if (const auto* list = std::get_if<std::vector<std::int64_t>>(&options.group_list)) {
    require(options.group_list_type == 0,
            "a group_list that is no tensor needs group_list_type 0, got ",
            options.group_list_type);
    require(std::ssize(*list) <= kMaxTensors, "a group_list that is no tensor must have at most ",
            kMaxTensors, " groups, got ", list->size());
    return *list;
  }
  const auto& tensor = std::get<Tensor>(options.group_list);
  require<UndefinedTensorError>(tensor.defined(), "group_list must be a defined tensor");
  const bool pairs = options.group_list_type == 2;
  require<DtypeError>(tensor.dtype() == Dtype::kInt64, "group_list must be int64, got ",
                      tensor.dtype());
  require<ShapeError>(pairs ? tensor.ndim() == 2 && tensor.dim(1) == 2 : tensor.ndim() == 1,
                      "group_list must be ", pairs ? "[G, 2]" : "[G]", " for group_list_type ",
                      options.group_list_type, ", got ", tensor.shape());
  require<ShapeError>(tensor.dim(0) <= kMaxGroups, "group_list must have at most ", kMaxGroups,
                      " groups, got ", tensor.dim(0));
  const Tensor values = contiguous(tensor);
  const auto data = values.data<std::int64_t>();
  return {data.begin(), data.end()};
}

Groups sparse_groups(std::span<const std::int64_t> pairs, std::int64_t experts) {
  Groups groups;
  for (std::size_t i = 0; i < pairs.size(); i += 2) {
    const auto expert = pairs[i], count = pairs[i + 1];
    require(0 <= expert && expert < experts, "group_list must name experts in [0, ", experts,
            "), got ", expert);
    require(std::ranges::find(groups.experts, expert) == groups.experts.end(),
            "group_list must name each expert once, got ", expert, " twice");
    require(count >= 0, "group_list must not have negative counts, got ", count, " for expert ",
            expert);
    groups.experts.push_back(expert);
    groups.offsets.push_back(groups.offsets.back() + count);
  }
  return groups;
}

// Reads group_list for `experts` experts that share `size` rows (group_type 2: columns) of x.
Groups read_groups(const NpuGroupedMatmulOptions& options, std::int64_t experts,
                   std::int64_t size) {
  require(!std::holds_alternative<std::monostate>(options.group_list),
          "group_list is required for group_type ", options.group_type);
  const auto values = group_list_values(options);
  Groups groups;
  if (options.group_list_type == 2) {
    groups = sparse_groups(values, experts);
  } else {
    require<ShapeError>(std::ssize(values) == experts, "group_list must have ", experts,
                        " groups, one per expert, got ", values.size());
    for (std::size_t e = 0; e < values.size(); ++e) {
      const auto before = groups.offsets.back();
      if (options.group_list_type == 0) {
        require(values[e] >= before, "group_list must not decrease, got ", before, " then ",
                values[e], " for expert ", e);
      } else {
        require(values[e] >= 0, "group_list must not have negative counts, got ", values[e],
                " for expert ", e);
      }
      groups.offsets.push_back(options.group_list_type == 0 ? values[e] : before + values[e]);
    }
    groups.experts.resize(values.size());
    std::iota(groups.experts.begin(), groups.experts.end(), 0);
  }
  require(groups.offsets.back() == size, "groups must add up to the ", size,
          options.group_type == 2 ? " columns" : " rows", " of x, got ", groups.offsets.back());
  return groups;
}

void check_sizes(const Tensor& x, const StoredMatrix& matrix) {
  require<ShapeError>(matrix.k == x.dim(1), "weight must be [", x.dim(1),
                      ", N] per expert to match x ", x.shape(), ", got [", matrix.k, ", ", matrix.n,
                      ']');
}

// The bias [N] of each expert of all weights; none without a bias.
TensorList expert_biases(const TensorList& weight, const NpuGroupedMatmulOptions& options) {
  const auto& bias = options.bias;
  require<ShapeError>(bias.empty() || bias.size() == weight.size(),
                      "bias must have as many tensors as weight, ", weight.size(), ", got ",
                      bias.size());
  TensorList biases;
  for (std::size_t i = 0; i < bias.size(); ++i) {
    const bool stacked = weight[i].ndim() == 3;
    const auto n = weight[i].dim(options.transpose_weight ? -2 : -1);
    const Shape expected = stacked ? Shape{weight[i].dim(0), n} : Shape{n};
    require<DtypeError>(bias[i].dtype() == weight[i].dtype(), "bias must be ", weight[i].dtype(),
                        " as the weight, got ", bias[i].dtype());
    require<ShapeError>(bias[i].shape() == expected, "bias must be ", expected, " to match weight ",
                        weight[i].shape(), ", got ", bias[i].shape());
    const Tensor rows = contiguous(bias[i].detach());
    for (std::int64_t e = 0; e < (stacked ? expected[0] : 1); ++e) {
      biases.push_back(Tensor::as_strided(rows, {n}, {1}, rows.offset() + e * n));
    }
  }
  return biases;
}

// y[rows of a group] += the bias of its expert
void add_biases(const TensorList& biases, const Groups& groups, Tensor& y) {
  if (biases.empty()) return;
  dispatch_floating(y.dtype(), [&]<class T>() {
    T* row = y.mutable_data<T>().data();
    for (std::size_t i = 0; i < groups.experts.size(); ++i) {
      const auto& bias = biases[static_cast<std::size_t>(groups.experts[i])];
      for (auto r = groups.offsets[i]; r < groups.offsets[i + 1]; ++r, row += y.dim(1)) {
        kernels::add_row(bias.data<T>().data(), row, y.dim(1));
      }
    }
  });
}

// list x list -> list
TensorList multiply_pairs(const TensorList& x, const TensorList& weight,
                          const NpuGroupedMatmulOptions& options) {
  require<ShapeError>(x.size() == weight.size(), "lists x and weight must have one length, got ",
                      x.size(), " and ", weight.size());
  for (const auto& each : weight) {
    require<ShapeError>(each.ndim() == 2, "each weight of a list must be [K, N], got ",
                        each.shape());
  }
  const auto matrices = weight_matrices(weight, options.transpose_weight);
  const auto biases = expert_biases(weight, options);
  for (std::size_t i = 0; i < x.size(); ++i) {
    check_row_major_x(x[i]);
    check_sizes(x[i], matrices[i]);
  }
  TensorList y;
  for (std::size_t i = 0; i < x.size(); ++i) {
    y.push_back(multiply_row_groups(x[i], {matrices[i]}, {0, x[i].dim(0)}, matrices[i].n));
    const Groups rows{.experts = {static_cast<std::int64_t>(i)}, .offsets = {0, x[i].dim(0)}};
    add_biases(biases, rows, y.back());
  }
  return y;
}

void check_one_width(const std::vector<StoredMatrix>& matrices) {
  for (const auto& matrix : matrices) {
    require<ShapeError>(matrix.n == matrices[0].n, "weights of one output must have one N, got ",
                        matrices[0].n, " and ", matrix.n);
  }
}

Tensor group_rows(const TensorList& x, const TensorList& weight,
                  const NpuGroupedMatmulOptions& options) {
  if (x.size() > 1) {
    const TensorList y = multiply_pairs(x, weight, options);
    check_one_width(weight_matrices(weight, options.transpose_weight));
    std::int64_t rows = 0;
    for (const auto& each : x) rows += each.dim(0);
    if (!std::holds_alternative<std::monostate>(options.group_list)) {
      const auto groups = read_groups(options, std::ssize(x), rows);
      for (std::size_t i = 0; i < groups.experts.size(); ++i) {
        const auto expert = groups.experts[i];
        const auto count = groups.offsets[i + 1] - groups.offsets[i];
        const auto expected = x[static_cast<std::size_t>(expert)].dim(0);
        require(count == expected, "group_list must give expert ", expert, " the ", expected,
                " rows of its x, got ", count);
      }
    }
    return cat(y, 0);
  }
  check_row_major_x(x[0]);
  require<ShapeError>(
      weight.size() == 1 ||
          std::ranges::all_of(weight, [](const Tensor& each) { return each.ndim() == 2; }),
      "weight must be one [E, K, N] or a list of [K, N]");
  const auto matrices = weight_matrices(weight, options.transpose_weight);
  for (const auto& matrix : matrices) check_sizes(x[0], matrix);
  check_one_width(matrices);
  const auto biases = expert_biases(weight, options);
  const auto groups = read_groups(options, std::ssize(matrices), x[0].dim(0));
  std::vector<StoredMatrix> chosen;
  for (const auto expert : groups.experts) {
    chosen.push_back(matrices[static_cast<std::size_t>(expert)]);
  }
  const auto n = weight[0].dim(options.transpose_weight ? -2 : -1);
  Tensor y = multiply_row_groups(x[0], chosen, groups.offsets, n);
  add_biases(biases, groups, y);
  return y;
}

Tensor group_columns(const TensorList& x, const TensorList& weight,
                     const NpuGroupedMatmulOptions& options) {
  require<ShapeError>(x.size() == 1 && weight.size() == 1,
                      "group_type 2 needs one x and one weight, got ", x.size(), " and ",
                      weight.size());
  require(options.group_list_type != 2, "group_type 2 needs group_list_type 0 or 1, got 2");
  require(!options.transpose_weight, "group_type 2 cannot transpose the weight");
  require(options.bias.empty(), "group_type 2 has no bias");
  check_x(x[0]);
  const Tensor rows = swap_last_dims(x[0]);
  require<LayoutError>(rows.is_contiguous(),
                       "group_type 2 needs x [M, K] as the transposed view of a contiguous "
                       "[K, M], got ",
                       x[0].shape(), " with strides ", x[0].strides());
  const auto& y = weight[0];
  require<LayoutError>(y.layout() == Layout::kND && y.is_contiguous(),
                       "group_type 2 needs a contiguous row-major weight");
  require<ShapeError>((y.shape() == Shape{x[0].dim(1), y.dim(-1)}), "weight must be [", x[0].dim(1),
                      ", N] to match x ", x[0].shape(), ", got ", y.shape());
  const auto experts = std::holds_alternative<std::monostate>(options.group_list) ? 0
                       : std::holds_alternative<Tensor>(options.group_list)
                           ? std::get<Tensor>(options.group_list).numel()
                           : std::ssize(std::get<std::vector<std::int64_t>>(options.group_list));
  const auto groups = read_groups(options, experts, x[0].dim(1));
  return multiply_column_groups(rows, y, groups.offsets, {experts, x[0].dim(0), y.dim(1)});
}

void check_options(const NpuGroupedMatmulOptions& options) {
  const auto& [group_list, group_type, list_type, split_item, transpose_weight, bias] = options;
  require(group_type == -1 || group_type == 0 || group_type == 2,
          "group_type must be -1, 0 or 2, got ", group_type,
          group_type == 1 ? " (groups of columns are not supported)" : "");
  require(0 <= list_type && list_type <= 2, "group_list_type must be 0, 1 or 2, got ", list_type);
  require(0 <= split_item && split_item <= 3, "split_item must be 0, 1, 2 or 3, got ", split_item);
  require((split_item <= 1) == (group_type == -1), "group_type ", group_type, " needs split_item ",
          group_type == -1 ? "0 or 1 (many outputs)" : "2 or 3 (one output)", ", got ", split_item);
  require(group_type != -1 || std::holds_alternative<std::monostate>(group_list),
          "group_list must be absent for group_type -1");
}

}  // namespace

TensorList npu_grouped_matmul(const TensorList& x, const TensorList& weight,
                              const NpuGroupedMatmulOptions& options) {
  check_operands("npu_grouped_matmul", x, weight, options.bias);
  check_options(options);
  check_list(x, "x", x.empty() ? Dtype::kFloat32 : x[0].dtype());
  check_list(weight, "weight", x[0].dtype());
  if (options.group_type == -1) return multiply_pairs(x, weight, options);
  if (options.group_type == 2) return {group_columns(x, weight, options)};
  return {group_rows(x, weight, options)};
}

}  // namespace moegrad::ops
