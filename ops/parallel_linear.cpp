// SPDX-License-Identifier: Apache-2.0
// Shapes: R ranks; rows, in, out of the whole product.
#include "ops/parallel_linear.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "framework/autograd/function.h"
#include "framework/runtime/error.h"
#include "ops/checks.h"
#include "ops/collective_function.h"
#include "ops/copies.h"
#include "ops/grouped_products.h"
#include "ops/kernels/even_cuts.h"
#include "ops/linear_products.h"

namespace moegrad::ops {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

// Rows of a tensor, of which each rank has a part if they are divided, cut into tiles: tile i is
// piece i of each rank's part.
class RowTiles {
 public:
  RowTiles(std::int64_t rows, std::int64_t parts, std::int64_t tiles)
      : rows_of_part_(rows / parts),
        parts_(parts),
        cuts_(rows_of_part_, std::max<std::int64_t>(1, (rows_of_part_ + tiles - 1) / tiles)) {}

  std::int64_t count() const { return cuts_.count(); }
  /// Piece i of part `part` of the matrix `whole`.
  Tensor piece(const Tensor& whole, std::int64_t i, std::int64_t part) const {
    return Tensor::narrow(whole, 0, part * rows_of_part_ + cuts_.begin(i), cuts_.length(i));
  }
  /// Calls body(piece of x, piece of y) for the pieces of tile i.
  template <class Body>
  void for_pieces(const Tensor& x, const Tensor& y, std::int64_t i, const Body& body) const {
    for (std::int64_t part = 0; part < parts_; ++part) body(piece(x, i, part), piece(y, i, part));
  }

 private:
  std::int64_t rows_of_part_, parts_;
  kernels::EvenCuts cuts_;
};

std::span<std::byte> bytes_of(const Tensor& rows) {
  const auto begin = rows.offset() * size_of(rows.dtype());
  return {rows.storage().data() + begin,
          static_cast<std::size_t>(rows.numel() * size_of(rows.dtype()))};
}

class ParallelLinear : public Function {
 public:
  ParallelLinear(std::string_view label, Group group, const ParallelLinearOptions& options,
                 const LinearArguments& arguments)
      : group_(std::move(group)),
        divided_(options.divided_rows),
        tiles_(options.tiles),
        options_(options.collective),
        arguments_(arguments) {
    if (options_.label.empty()) options_.label = label;
  }

  bool may_run_again() const override { return false; }
  bool reads_nz(std::size_t i) const override { return i == 1; }
  bool may_wait(std::size_t i) const override { return i == 1; }
  double flops() const override {
    return 2.0 * static_cast<double>(edges()[0].shape[-1]) * Function::flops();
  }

 protected:
  using Product = std::function<void(const Tensor& rows, Tensor& result)>;

  /// The matrix of all rows of x, of which this rank may have a part. `product`, if there is one,
  /// is called for all rows, with their places in `result`, as they arrive.
  Tensor gathered(const Tensor& x, const CollectiveOptions& options, const Product& product = {},
                  const Tensor& result = {}) const {
    const Tensor own = as_matrix(x);
    const auto multiply = [&](const Tensor& rows, Tensor to) { product(rows, to); };
    if (!divided_) {
      if (product) multiply(own, result);
      return own;
    }
    if (tiles_ == 1 || !product) {
      Tensor all = gather_parts(*group_, own, 0, options);
      if (product) multiply(all, result);
      return all;
    }
    const int ranks = group_->size();
    Tensor all = Tensor::empty({own.dim(0) * ranks, own.dim(1)}, own.dtype());
    const RowTiles tiles(all.dim(0), ranks, tiles_), own_tiles(own.dim(0), 1, tiles_);
    std::vector<WorkPtr> arrivals;
    for (std::int64_t i = 0; i < tiles.count(); ++i) {
      const auto copy_out = [&all, &tiles, i](PeerSpans inputs) {
        for (std::size_t rank = 0; rank < inputs.size(); ++rank) {
          const Tensor place = tiles.piece(all, i, static_cast<std::int64_t>(rank));
          std::ranges::copy(inputs[rank], bytes_of(place).begin());
        }
      };
      arrivals.push_back(group_->all_gather(bytes_of(own_tiles.piece(own, i, 0)), own.dtype(),
                                            copy_out, for_tile(options, i)));
    }
    for (std::int64_t i = 0; i < tiles.count(); ++i) {
      arrivals[static_cast<std::size_t>(i)]->wait();
      tiles.for_pieces(all, result, i, multiply);
    }
    return all;
  }

  /// A sum over the ranks that may be under way.
  struct Sum {
    Tensor result;
    Tensor summands = {};  // which are read meanwhile
    std::vector<WorkPtr> works = {};

    Tensor take() {
      for (const auto& work : works) work->wait();
      return result;
    }
  };
  /// The sum over the ranks of the matrix that `product` makes of `rows`, [rows, columns] in
  /// `dtype`: of all rows, or of this rank's.
  Sum summed(const Tensor& rows, std::int64_t columns, Dtype dtype,
             const CollectiveOptions& options, const Product& product) const {
    Tensor all = Tensor::empty({rows.dim(0), columns}, dtype);
    if (tiles_ == 1) {
      product(rows, all);
      return {divided_ ? scatter_sum(*group_, all, options) : sum_in_place(*group_, all, options)};
    }
    const int parts = divided_ ? group_->size() : 1;
    const RowTiles tiles(rows.dim(0), parts, tiles_);
    Sum sum{.result = divided_ ? Tensor::empty({rows.dim(0) / parts, columns}, dtype) : all,
            .summands = all};
    const RowTiles own_tiles(sum.result.dim(0), 1, tiles_);
    for (std::int64_t i = 0; i < tiles.count(); ++i) {
      ByteParts pieces;
      tiles.for_pieces(rows, all, i, [&](const Tensor& piece, Tensor to) {
        product(piece, to);
        pieces.push_back(bytes_of(to));
      });
      const auto own = bytes_of(own_tiles.piece(sum.result, i, 0));
      const auto of_tile = for_tile(options, i);
      sum.works.push_back(divided_
                              ? group_->reduce_scatter(pieces, own, dtype, ReduceOp::kSum, of_tile)
                              : group_->all_reduce(own, dtype, ReduceOp::kSum, of_tile));
    }
    return sum;
  }

  void save(const Tensor& x, const Tensor& weight) {
    x_ = x;
    weight_ = weight;
  }
  Tensor saved_x() { return x_.unpack(); }
  Tensor saved_weight() { return weight_.unpack(); }
  const CollectiveOptions& options() const { return options_; }
  std::int64_t parts_of_rows() const { return divided_ ? group_->size() : 1; }
  Dtype dtype() const { return arguments_.dtype; }

  /// x W^T
  static Product forward_product(const Tensor& weight) {
    return [matrix = stored_matrices(weight, 1, true)[0]](const Tensor& x, Tensor& y) {
      multiply_rows(x, matrix, y);
    };
  }
  /// g W
  Product input_gradient() {
    return [this, weight = saved_weight()](const Tensor& g, Tensor& grad) {
      Tensor none;
      linear_gradients(g, {}, weight, edges()[1].dtype, arguments_.gradient_rows, grad, none);
    };
  }
  /// g^T x
  Tensor weight_gradient(const Tensor& g, const Tensor& x) {
    const auto& of_weight = edges()[1];
    Tensor none, grad = Tensor::empty(of_weight.shape, arithmetic_dtype(of_weight.dtype));
    linear_gradients(g, x, {}, of_weight.dtype, arguments_.gradient_rows, none, grad);
    return grad;
  }

 private:
  Group group_;
  bool divided_;
  std::int64_t tiles_;
  CollectiveOptions options_;
  LinearArguments arguments_;
  SavedTensor x_{*this}, weight_{*this};
};

// dL/dx = the sum over the ranks of g W,   dL/dW = g^T x,   x of all rows
class ColumnParallelLinear final : public ParallelLinear {
 public:
  using ParallelLinear::ParallelLinear;
  std::string_view name() const override { return "column_parallel_linear"; }

  Tensor forward(const Tensor& x, const Tensor& weight) {
    save(x, weight);
    Shape shape = x.shape();
    if (shape.ndim() >= 2) shape[0] *= parts_of_rows();
    const auto rows = as_matrix(x).dim(0) * parts_of_rows();
    const Tensor y = Tensor::empty({rows, weight.dim(0)}, dtype());
    gathered(x, options(), forward_product(weight), y);
    return with_last_dim(y, shape);
  }

  TensorList backward(const TensorList& grads, InputMask needs) override {
    const Tensor g = as_matrix(contiguous(grads[0]));
    const auto conjugate = for_backward(options());
    const auto& of_weight = edges()[1];
    // Under way while the other product is made.
    const Tensor x = needs[1] ? gathered(saved_x(), conjugate) : Tensor();
    Sum sum;
    if (needs[0]) {
      sum = summed(g, of_weight.shape[1], arithmetic_dtype(of_weight.dtype), conjugate,
                   input_gradient());
    }
    Tensor grad_x, grad_weight;
    if (needs[1]) grad_weight = weight_gradient(g, x);
    if (needs[0]) {
      grad_x = with_last_dim(cast(sum.take(), edges()[0].dtype), edges()[0].shape);
    }
    return {grad_x, grad_weight};
  }
};

// dL/dx = g W,   dL/dW = g^T x,   g of all rows
class RowParallelLinear final : public ParallelLinear {
 public:
  using ParallelLinear::ParallelLinear;
  std::string_view name() const override { return "row_parallel_linear"; }
  // y has one part of the rows that are multiplied.
  double flops() const override {
    return static_cast<double>(parts_of_rows()) * ParallelLinear::flops();
  }

  Tensor forward(const Tensor& x, const Tensor& weight) {
    save(x, weight);
    Shape shape = x.shape();
    if (shape.ndim() >= 2) shape[0] /= parts_of_rows();
    auto sum = summed(as_matrix(x), weight.dim(0), arithmetic_dtype(weight.dtype()), options(),
                      forward_product(weight));
    return with_last_dim(cast(sum.take(), dtype()), shape);
  }

  TensorList backward(const TensorList& grads, InputMask needs) override {
    Tensor grad_x, grad_weight;
    Product multiply;
    if (needs[0]) {
      grad_x = Tensor::empty({as_matrix(saved_x()).dim(0), edges()[1].shape[1]}, edges()[0].dtype);
      multiply = input_gradient();
    }
    const Tensor g = gathered(contiguous(grads[0]), for_backward(options()), multiply, grad_x);
    if (needs[1]) grad_weight = weight_gradient(g, as_matrix(saved_x()));
    if (needs[0]) grad_x = with_last_dim(grad_x, edges()[0].shape);
    return {grad_x, grad_weight};
  }
};

LinearArguments checked_layer(std::string_view op, const Group& group, const Tensor& x,
                              const Tensor& weight, const ParallelLinearOptions& options) {
  check<ValueError>(group != nullptr, op, ": needs a process group, got null");
  check<ValueError>(options.tiles >= 1, op, ": tiles must be at least 1, got ", options.tiles);
  const auto arguments = checked_linear(op, x, weight, options.gradient_rows, options.dtype);
  check_same_dtype(op, "x", x, "weight", weight);
  return arguments;
}

}  // namespace

Tensor column_parallel_linear(const Group& group, const Tensor& x, const Tensor& weight,
                              const ParallelLinearOptions& options) {
  constexpr std::string_view kOp = "column_parallel_linear";
  const auto arguments = checked_layer(kOp, group, x, weight, options);
  check<ShapeError>(!options.divided_rows || x.ndim() >= 2, kOp,
                    ": x must have rows to gather, got ", x.shape());
  return apply<ColumnParallelLinear>(made_with(kOp, group, options, arguments), contiguous(x),
                                     contiguous(weight));
}

Tensor row_parallel_linear(const Group& group, const Tensor& x, const Tensor& weight,
                           const ParallelLinearOptions& options) {
  constexpr std::string_view kOp = "row_parallel_linear";
  const auto arguments = checked_layer(kOp, group, x, weight, options);
  check<ShapeError>(!options.divided_rows || (x.ndim() >= 2 && x.dim(0) % group->size() == 0), kOp,
                    ": the ", group->size(), " ranks must divide the rows of x, got ", x.shape());
  return apply<RowParallelLinear>(made_with(kOp, group, options, arguments), contiguous(x),
                                  contiguous(weight));
}

}  // namespace moegrad::ops
