// SPDX-License-Identifier: Apache-2.0
// Shapes: m rows, all of x1's; k, n of the product.
#include "ops/mm_all_reduce.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "framework/autograd/function.h"
#include "framework/distributed/comm_handle.h"
#include "framework/runtime/error.h"
#include "framework/runtime/grad_mode.h"
#include "framework/tensor/fill.h"
#include "ops/broadcast.h"
#include "ops/checks.h"
#include "ops/collective_function.h"
#include "ops/copies.h"
#include "ops/elementwise.h"
#include "ops/grouped_products.h"
#include "ops/kernels/even_cuts.h"
#include "ops/linear_products.h"
#include "ops/nz.h"
#include "ops/quantized_product.h"
#include "ops/views.h"

namespace moegrad::ops {
namespace {

constexpr std::string_view kOp = "mm_all_reduce";

// x2 [k, n], row-major or the transpose of what is.
StoredMatrix read_as_stored(const Tensor& x2, bool transposed) {
  if (x2.is_contiguous()) return stored_matrices(x2, 1, transposed)[0];
  return stored_matrices(transpose(x2, 0, 1), 1, !transposed)[0];
}

// Calls multiply(begin, length, tile) for each run of rows of y, and adds it over the ranks while
// the next is multiplied.
template <class Multiply>
void sum_tiles(ProcessGroup& group, const kernels::EvenCuts& cuts, Tensor& y,
               const Multiply& multiply) {
  const auto bytes = y.mutable_bytes();
  const auto row_bytes = static_cast<std::size_t>(y.dim(1) * size_of(y.dtype()));
  std::vector<WorkPtr> sums;
  for (std::int64_t i = 0; i < cuts.count(); ++i) {
    Tensor tile = Tensor::narrow(y, 0, cuts.begin(i), cuts.length(i));
    multiply(cuts.begin(i), cuts.length(i), tile);
    const auto begin = static_cast<std::size_t>(cuts.begin(i)) * row_bytes;
    const auto length = static_cast<std::size_t>(cuts.length(i)) * row_bytes;
    sums.push_back(group.all_reduce(bytes.subspan(begin, length), y.dtype(), ReduceOp::kSum,
                                    for_tile({.label = "mm_all_reduce"}, i)));
  }
  for (const auto& sum : sums) sum->wait();
}

kernels::EvenCuts cut_rows(std::int64_t rows, std::int64_t tiles) {
  return kernels::EvenCuts(rows, rows / tiles + (rows % tiles == 0 ? 0 : 1));
}

Shape shape_of_y(const Tensor& x1, const Tensor& x2) {
  Shape shape = x1.shape();
  shape[-1] = x2.dim(1);
  return shape;
}

class MmAllReduce final : public Function {
 public:
  MmAllReduce(std::shared_ptr<ProcessGroup> group, std::int64_t tiles)
      : group_(std::move(group)), tiles_(tiles) {}

  std::string_view name() const override { return kOp; }
  bool may_run_again() const override { return false; }
  double flops() const override {
    return 2.0 * static_cast<double>(edges()[0].shape[-1]) * Function::flops();
  }

  Tensor forward(const Tensor& x1, const Tensor& x2, const Tensor& bias, const Tensor& x3) {
    x1_ = x1;
    x2_ = x2;
    const Tensor rows = as_matrix(x1);
    const Shape shape = shape_of_y(x1, x2);
    Tensor y = Tensor::empty({rows.dim(0), x2.dim(1)}, arithmetic_dtype(x1.dtype()));
    const auto cuts = cut_rows(rows.dim(0), tiles_);
    // Packed once for all tiles.
    const bool packs = cuts.count() > 1 && x2.is_contiguous();
    const auto matrix =
        packs ? stored_matrices(nd_to_nz(x2), 1, false)[0] : read_as_stored(x2, false);
    sum_tiles(*group_, cuts, y, [&](std::int64_t begin, std::int64_t length, Tensor& tile) {
      multiply_rows(Tensor::narrow(rows, 0, begin, length), matrix, tile);
    });
    if (bias.defined()) y = add(y, bias);
    y = Tensor::as_strided(y, shape, row_major_strides(shape), 0);
    if (x3.defined()) y = add(y, x3);
    return cast(y, x1.dtype());
  }

  TensorList backward(const TensorList& grads, InputMask needs) override {
    const Tensor g = as_matrix(contiguous(grads[0]));
    Tensor grad_x1, grad_x2, grad_bias;
    if (needs[0]) {
      const Tensor x2 = x2_.unpack();
      grad_x1 = Tensor::empty({g.dim(0), x2.dim(0)}, x2.dtype());
      multiply_rows(g, read_as_stored(x2, true), grad_x1);
      grad_x1 = with_last_dim(grad_x1, edges()[0].shape);
    }
    if (needs[1]) {
      grad_x2 = Tensor::empty(edges()[1].shape, arithmetic_dtype(g.dtype()));
      multiply_columns(as_matrix(x1_.unpack()), g, false, grad_x2);
    }
    if (needs[2]) grad_bias = sum_to_shape(widened(g), edges()[2].shape);
    return {grad_x1, grad_x2, grad_bias, needs[3] ? grads[0] : Tensor()};
  }

 private:
  std::shared_ptr<ProcessGroup> group_;
  std::int64_t tiles_;
  SavedTensor x1_{*this}, x2_{*this};
};

void check_shapes(const Tensor& x1, const Tensor& x2, const MmAllReduceOptions& options) {
  check<ShapeError>(x1.ndim() == 2 || x1.ndim() == 3, kOp, ": x1 must be [m, k] or [b, m, k], got ",
                    x1.shape());
  check<ShapeError>(x2.ndim() == 2 && x2.dim(0) == x1.dim(-1), kOp, ": x2 must be [", x1.dim(-1),
                    ", n] to match x1 ", x1.shape(), ", got ", x2.shape());
  check<ShapeError>(x1.numel() > 0 && x2.numel() > 0, kOp, ": x1 and x2 must have elements, got ",
                    x1.shape(), " and ", x2.shape());
  const Shape shape = shape_of_y(x1, x2);
  const Tensor &bias = options.bias, &x3 = options.x3;
  check<ShapeError>(!bias.defined() || bias.shape() == Shape{x2.dim(1)}, kOp, ": bias must be [",
                    x2.dim(1), "], got ", bias.defined() ? bias.shape() : Shape{});
  check<ShapeError>(!x3.defined() || x3.shape() == shape, kOp, ": x3 must be ", shape,
                    " as y, got ", x3.defined() ? x3.shape() : Shape{});
}

// What goes with int8 operands, and what does not.
void check_quantized(const Tensor& x1, const Tensor& x2, int ranks,
                     const MmAllReduceOptions& options) {
  const auto& [bias, x3, scale] = std::tie(options.bias, options.x3, options.dequant_scale);
  check_same_dtype(kOp, "x1", x1, "x2", x2);
  check<DtypeError>(!bias.defined() || bias.dtype() == Dtype::kInt32, kOp,
                    ": bias must be int32 for int8 operands, got ",
                    bias.defined() ? bias.dtype() : Dtype::kInt32);
  check<ValueError>(!x3.defined(), kOp, ": x3 must be left out for int8 operands");
  check<ValueError>(scale.defined(), kOp, ": int8 operands need a dequant_scale");
  check<DtypeError>(scale.dtype() == Dtype::kFloat32 || scale.dtype() == Dtype::kBFloat16, kOp,
                    ": dequant_scale must be float32 or bfloat16, got ", scale.dtype());
  const auto n = x2.dim(1);
  check<ShapeError>(
      scale.shape() == Shape{1} || scale.shape() == Shape{n} || scale.shape() == Shape{1, n}, kOp,
      ": dequant_scale must be [1], [", n, "] or [1, ", n, "], got ", scale.shape());
  check(!grad_enabled() || !scale.requires_grad(), kOp,
        ": the product of int8 has no gradient, but dequant_scale requires one");
  check<ShapeError>(x1.dim(-1) <= kMostQuantizedTerms / ranks, kOp, ": k of int8 must be at most ",
                    kMostQuantizedTerms / ranks, " on ", ranks,
                    " ranks, whose sums int32 holds, got ", x1.dim(-1));
}

Tensor quantized(const Tensor& x1, const Tensor& x2, ProcessGroup& group,
                 const MmAllReduceOptions& options) {
  const QuantizedMatrix matrix(x2);
  const Tensor rows = as_matrix(x1);
  Tensor sums = Tensor::empty({rows.dim(0), x2.dim(1)}, Dtype::kInt32);
  sum_tiles(group, cut_rows(rows.dim(0), options.tiles), sums,
            [&](std::int64_t begin, std::int64_t length, Tensor& tile) {
              matrix.multiply(Tensor::narrow(rows, 0, begin, length), tile);
            });
  const Tensor bias = options.bias.defined() ? contiguous(options.bias) : Tensor();
  const Tensor y = dequantized(sums, bias, contiguous(options.dequant_scale.detach()));
  const Shape shape = shape_of_y(x1, x2);
  return Tensor::as_strided(y, shape, row_major_strides(shape), 0);
}

// Also that they are defined, whole and of the layout that is read.
void check_arguments(const Tensor& x1, const Tensor& x2, const MmAllReduceOptions& options) {
  check_operands_of_any_dtype(kOp, x1, x2);
  for (const auto* optional : {&options.bias, &options.x3, &options.dequant_scale}) {
    if (optional->defined()) check_operands_of_any_dtype(kOp, *optional);
  }
  check<ValueError>(!options.antiquant_scale.defined() && !options.antiquant_offset.defined() &&
                        options.antiquant_group_size == 0,
                    kOp,
                    ": antiquant_scale, antiquant_offset and antiquant_group_size are reserved; "
                    "convert x2 before");
  check<ValueError>(options.reduce_op == "sum", kOp, ": reduce_op must be 'sum', got '",
                    options.reduce_op, "'");
  check<ValueError>(options.comm_turn == 0, kOp, ": comm_turn must be 0, got ", options.comm_turn);
  check<ValueError>(options.tiles >= 1, kOp, ": tiles must be at least 1, got ", options.tiles);
  check_shapes(x1, x2, options);
  check<LayoutError>(x1.is_contiguous(), kOp, ": x1 must be contiguous, got shape ", x1.shape(),
                     " with strides ", x1.strides());
}

}  // namespace

Tensor mm_all_reduce(const Tensor& x1, const Tensor& x2, const std::string& comm,
                     const MmAllReduceOptions& options) {
  check_arguments(x1, x2, options);
  const auto group = group_of_handle(kOp, comm);
  if (x1.dtype() == Dtype::kInt8) {
    check_quantized(x1, x2, group->size(), options);
    return quantized(x1, x2, *group, options);
  }
  check_reals(kOp, "x1", x1);
  check_same_dtype(kOp, "x1", x1, "x2", x2);
  if (options.bias.defined()) check_arithmetic_dtype(kOp, "x1", x1, "bias", options.bias);
  if (options.x3.defined()) check_same_dtype(kOp, "x1", x1, "x3", options.x3);
  check<ValueError>(!options.dequant_scale.defined(), kOp,
                    ": dequant_scale is for int8 operands, got ", x1.dtype());
  const bool transposed = x2.strides()[0] == 1 && x2.strides()[1] == x2.dim(0);
  return apply<MmAllReduce>(made_with(group, options.tiles), x1, transposed ? x2 : contiguous(x2),
                            options.bias, options.x3);
}

}  // namespace moegrad::ops
