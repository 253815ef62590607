// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <vector>

#include "framework/runtime/life_token.h"
#include "framework/tensor/dtype.h"
#include "framework/tensor/layout.h"
#include "framework/tensor/shape.h"
#include "framework/tensor/storage.h"

namespace moegrad {

class Function;
class HookHandle;
struct ShardSpec;
struct TensorImpl;

/// A value handle on an n-dimensional array. A copy shares the array, as in PyTorch.
///
/// Tensor -> (shape, strides, dtype, layout, autograd state) -> Storage (bytes). An ND tensor is
/// strided row-major. An NZ tensor holds FRACTAL_NZ blocks (Note [FRACTAL_NZ]); only ops that say
/// so read it. A default-constructed Tensor is undefined.
class Tensor {
 public:
  Tensor() = default;

  // --- making tensors: on the current rank's arena, or without bytes under a MetaGuard. The
  //     elements of empty() are undefined.
  static Tensor empty(const Shape& shape, Dtype dtype = Dtype::kFloat32);
  static Tensor zeros(const Shape& shape, Dtype dtype = Dtype::kFloat32);
  static Tensor ones(const Shape& shape, Dtype dtype = Dtype::kFloat32);
  static Tensor full(const Shape& shape, double value, Dtype dtype = Dtype::kFloat32);
  /// Row-major values; throws ShapeError unless there are shape.numel() of them.
  template <class T>
  static Tensor from(std::span<const T> values, const Shape& shape);
  template <class T>
  static Tensor from(const std::vector<T>& values, const Shape& shape) {
    return from(std::span<const T>(values), shape);
  }
  /// Uninitialised FRACTAL_NZ tensor of the given logical shape, whose numel is batch * k * n.
  static Tensor empty_nz(const Shape& shape, const NzBlocks& blocks, Dtype dtype);
  /// A view of `base`'s storage with its own shape, strides and element offset; no graph.
  static Tensor as_strided(const Tensor& base, const Shape& shape, const Shape& strides,
                           std::int64_t offset);
  /// Elements [start, start + length) of dimension `dim` of an ND tensor: a view, no graph.
  static Tensor narrow(const Tensor& base, std::int64_t dim, std::int64_t start,
                       std::int64_t length);
  /// The same NZ blocks under another shape.
  static Tensor nz_view(const Tensor& base, const Shape& shape);

  // --- what it is
  bool defined() const { return impl_ != nullptr; }
  const Shape& shape() const;
  const Shape& strides() const;
  std::int64_t offset() const;
  std::int64_t dim(std::int64_t i) const { return shape()[i]; }
  std::int64_t ndim() const { return shape().ndim(); }
  std::int64_t numel() const { return shape().numel(); }
  Dtype dtype() const;
  Layout layout() const;
  const NzBlocks& nz_blocks() const;
  /// ND, and row-major without gaps.
  bool is_contiguous() const;
  Storage& storage() const;
  /// Whether it was made under a MetaGuard and has no bytes so far.
  bool is_meta() const { return storage().is_meta(); }
  /// True when both handles are the same tensor (not merely equal values).
  bool is(const Tensor& other) const { return impl_ == other.impl_; }

  // --- reading and writing elements: contiguous ND only, else LayoutError; wrong T: DtypeError.
  //     mutable_data() counts as an in-place modification.
  template <class T>
  std::span<const T> data() const&;
  template <class T>
  std::span<T> mutable_data() &;
  template <class T>
  std::span<const T> data() const&& = delete;
  template <class T>
  std::span<T> mutable_data() && = delete;
  /// The blocks of an NZ tensor, padding included.
  template <class T>
  std::span<const T> nz_data() const&;
  template <class T>
  std::span<T> mutable_nz_data() &;
  template <class T>
  std::span<const T> nz_data() const&& = delete;
  /// The same for elements of any dtype: the elements of an ND tensor in row-major order, or the
  /// blocks of an NZ tensor, padding included; never what other views of the storage have beyond
  /// them. LayoutError for an ND tensor that is not contiguous. mutable_bytes() counts as an
  /// in-place modification.
  std::span<const std::byte> bytes() const&;
  std::span<std::byte> mutable_bytes() &;
  std::span<const std::byte> bytes() const&& = delete;
  std::span<std::byte> mutable_bytes() && = delete;
  /// First element of a strided ND tensor.
  template <class T>
  const T* strided_data() const;
  /// The only element, as double; ShapeError unless there is exactly one.
  double item() const;

  // --- autograd (framework/autograd)
  bool requires_grad() const;
  /// Leaves only: the flag of a result follows from its inputs.
  Tensor& set_requires_grad(bool requires_grad);
  bool is_leaf() const;
  const std::shared_ptr<Function>& grad_fn() const;
  std::size_t output_index() const;
  /// Accumulated gradient of a leaf; undefined until a backward has reached it.
  Tensor grad() const;
  void set_grad(Tensor grad) const;
  /// Which part of a global parameter this is; null when it is whole (fully_shard sets it).
  const std::shared_ptr<const ShardSpec>& shard_spec() const;
  void set_shard_spec(std::shared_ptr<const ShardSpec> spec) const;
  /// The same data without graph; shares storage, version counter and ShardSpec.
  Tensor detach() const;
  /// Computes gradients of this tensor with respect to the leaves of its graph. `grad` defaults to
  /// one for a tensor of one element.
  void backward(const Tensor& grad = {}, bool retain_graph = false) const;
  /// Calls `hook` with the gradient of this tensor when it is complete, before it is passed on. A
  /// defined result replaces the gradient. Error for a shard of a parameter: it is in no graph.
  HookHandle register_hook(std::function<Tensor(const Tensor&)> hook) const;
  /// Leaves only: calls `hook` after a backward has added to grad().
  HookHandle register_post_accumulate_grad_hook(std::function<void(const Tensor&)> hook) const;

  const std::shared_ptr<TensorImpl>& impl() const { return impl_; }
  explicit Tensor(std::shared_ptr<TensorImpl> impl) : impl_(std::move(impl)) {}

  /// Expires when this handle is destroyed, whatever happens to the tensor behind it.
  std::weak_ptr<const void> watch_handle() { return life_.watch(); }

 private:
  std::shared_ptr<TensorImpl> impl_;
  LifeToken life_;
};

using TensorList = std::vector<Tensor>;

}  // namespace moegrad
