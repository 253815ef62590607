// SPDX-License-Identifier: Apache-2.0
#include "ops/tensor_parallel.h"

#include <string_view>
#include <utility>

#include "framework/autograd/function.h"
#include "framework/runtime/error.h"
#include "framework/tensor/fill.h"
#include "ops/checks.h"
#include "ops/collective_function.h"
#include "ops/copies.h"
#include "ops/dims.h"

namespace moegrad::ops {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

Tensor own_part(const ProcessGroup& group, const Tensor& x, std::int64_t dim) {
  const auto size = x.dim(dim) / group.size();
  return moegrad::clone(Tensor::narrow(x, dim, group.rank() * size, size));
}

// What all four keep for backward.
class OnRanks : public Function {
 public:
  OnRanks(Group group, CollectiveOptions options)
      : group_(std::move(group)), options_(std::move(options)) {}
  bool takes_wide_gradients() const override { return true; }
  bool may_run_again() const override { return false; }

 protected:
  ProcessGroup& group() const { return *group_; }
  const CollectiveOptions& options() const { return options_; }

 private:
  Group group_;
  CollectiveOptions options_;
};

// dL/dx = the sum over the ranks of dL/dy
class CopyToRanks final : public OnRanks {
 public:
  using OnRanks::OnRanks;
  std::string_view name() const override { return "copy_to_ranks"; }
  bool reads_nz(std::size_t /*i*/) const override { return true; }

  Tensor forward(const Tensor& x) {
    if (x.layout() == Layout::kNZ) return Tensor::nz_view(x, x.shape());
    return Tensor::as_strided(x, x.shape(), x.strides(), x.offset());
  }
  TensorList backward(const TensorList& grads, InputMask /*needs*/) override {
    return {sum_in_place(group(), moegrad::clone(widened(grads[0])), for_backward(options()))};
  }
};

// dL/dx = dL/dy
class ReduceFromRanks final : public OnRanks {
 public:
  using OnRanks::OnRanks;
  std::string_view name() const override { return "reduce_from_ranks"; }

  Tensor forward(const Tensor& x) { return sum_in_place(group(), moegrad::clone(x), options()); }
  TensorList backward(const TensorList& grads, InputMask /*needs*/) override { return grads; }
};

// dL/dx = the parts of dL/dy
class ScatterToRanks final : public OnRanks {
 public:
  ScatterToRanks(Group group, std::int64_t dim, CollectiveOptions options)
      : OnRanks(std::move(group), std::move(options)), dim_(dim) {}
  std::string_view name() const override { return "scatter_to_ranks"; }

  Tensor forward(const Tensor& x) { return own_part(group(), x, dim_); }
  TensorList backward(const TensorList& grads, InputMask /*needs*/) override {
    return {gather_parts(group(), contiguous(grads[0]), dim_, for_backward(options()))};
  }

 private:
  std::int64_t dim_;
};

// dL/dx = this rank's part of dL/dy
class GatherFromRanks final : public OnRanks {
 public:
  GatherFromRanks(Group group, std::int64_t dim, CollectiveOptions options)
      : OnRanks(std::move(group), std::move(options)), dim_(dim) {}
  std::string_view name() const override { return "gather_from_ranks"; }

  Tensor forward(const Tensor& x) { return gather_parts(group(), contiguous(x), dim_, options()); }
  TensorList backward(const TensorList& grads, InputMask /*needs*/) override {
    return {own_part(group(), grads[0], dim_)};
  }

 private:
  std::int64_t dim_;
};

std::int64_t checked_dim(std::string_view op, const Group& group, const Tensor& x, std::int64_t dim,
                         bool cuts) {
  check_collective(op, group, x);
  const auto d = wrap_dim(op, dim, x.ndim());
  check<ShapeError>(!cuts || x.dim(d) % group->size() == 0, op, ": the ", group->size(),
                    " ranks must divide dimension ", d, " of x, got ", x.shape());
  return d;
}

}  // namespace

Tensor copy_to_ranks(const Group& group, const Tensor& x, const CollectiveOptions& options) {
  check_collective("copy_to_ranks", group, x);
  return apply<CopyToRanks>(made_with(group, options), x);
}

Tensor reduce_from_ranks(const Group& group, const Tensor& x, const CollectiveOptions& options) {
  check_collective("reduce_from_ranks", group, x, /*sums=*/true);
  return apply<ReduceFromRanks>(made_with(group, options), x);
}

Tensor scatter_to_ranks(const Group& group, const Tensor& x, std::int64_t dim,
                        const CollectiveOptions& options) {
  const auto d = checked_dim("scatter_to_ranks", group, x, dim, /*cuts=*/true);
  return apply<ScatterToRanks>(made_with(group, d, options), x);
}

Tensor gather_from_ranks(const Group& group, const Tensor& x, std::int64_t dim,
                         const CollectiveOptions& options) {
  const auto d = checked_dim("gather_from_ranks", group, x, dim, /*cuts=*/false);
  return apply<GatherFromRanks>(made_with(group, d, options), x);
}

}  // namespace moegrad::ops
