// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "framework/runtime/life_token.h"
#include "framework/tensor/dtype.h"
#include "framework/tensor/hook_list.h"
#include "framework/tensor/layout.h"
#include "framework/tensor/shape.h"
#include "framework/tensor/storage.h"

namespace moegrad {

class Function;
class NestedValues;
class Random;
struct ShardSpec;
struct TensorImpl;
class Tensor;

/// A hook that is given a gradient and returns nothing.
template <class Hook>
concept OnlyLooks = std::is_void_v<std::invoke_result_t<Hook&, const Tensor&>>;

template <class T>
concept Number = std::integral<T> || std::floating_point<T>;

/// A value handle on an n-dimensional array. A copy shares the array, as in PyTorch.
///
/// Tensor -> (shape, strides, dtype, layout, autograd state) -> Storage (bytes). An ND tensor is
/// strided row-major. An NZ tensor holds FRACTAL_NZ blocks (Note [FRACTAL_NZ]); only ops that say
/// so read it. A default-constructed Tensor is undefined.
class Tensor {
 public:
  Tensor() = default;
  Tensor(const Tensor&) = default;
  Tensor(Tensor&&) = default;
  /// Makes this handle another tensor; no element changes. Only a variable can be assigned to:
  /// x[0] = y would change nothing but the view x[0], so it does not compile.
  Tensor& operator=(const Tensor&) & = default;
  Tensor& operator=(Tensor&&) & = default;
  void operator=(const Tensor&) && = delete;  // copy_(view, y) writes elements
  template <Number T>
  void operator=(T) && = delete;  // fill_(view, number) writes elements
  ~Tensor() = default;

  // --- making tensors: on the current rank's arena, or without bytes under a MetaGuard. The
  //     elements of empty() are undefined.
  static Tensor empty(const Shape& shape, Dtype dtype = Dtype::kFloat32);
  static Tensor zeros(const Shape& shape, Dtype dtype = Dtype::kFloat32);
  static Tensor ones(const Shape& shape, Dtype dtype = Dtype::kFloat32);
  /// ValueError if `dtype` does not hold `value`, as check_element().
  static Tensor full(const Shape& shape, double value, Dtype dtype = Dtype::kFloat32);
  /// Numbers in nested braces: of({{1, 2}, {3, 4}}) has shape [2, 2], of(5) shape []. ShapeError
  /// unless the braces at each depth hold equally many. ValueError for anything but a whole number
  /// in its range that is to be int64, and but true and false, or 1 and 0, that is to be bool.
  static Tensor of(const NestedValues& values, Dtype dtype = Dtype::kFloat32);
  /// start, start + step, ... before `end`, of shape [ceil((end - start) / step)]. int64 if all
  /// three are integers, else float32. ValueError for a step of 0, or away from `end`, and for
  /// numbers that `dtype` does not hold, here and below.
  template <Number Start, Number End, Number Step = int>
  static Tensor arange(Start start, End end, Step step = 1,
                       Dtype dtype = kArangeDtype<Start, End, Step>);
  /// 0, 1, ... before `end`.
  template <Number End>
  static Tensor arange(End end, Dtype dtype = kArangeDtype<End>);
  /// `steps` numbers at equal distances, of which the first is `start` and the last is `end`.
  static Tensor linspace(double start, double end, std::int64_t steps,
                         Dtype dtype = Dtype::kFloat32);
  /// [n, m], or [n, n]: one where row and column are equal, zero elsewhere.
  static Tensor eye(std::int64_t n, std::int64_t m, Dtype dtype = Dtype::kFloat32);
  static Tensor eye(std::int64_t n, Dtype dtype = Dtype::kFloat32);
  /// Element i, in row-major order, is draw i of `random`: standard normal, or uniform in [0, 1).
  /// DtypeError unless `dtype` is float32, float64 or bfloat16. With `#include
  /// "framework/runtime/random.h"`, {seed, purpose} is a Random:
  ///
  ///     Tensor::randn({2, 3}, {/*seed=*/1, "noise"})
  static Tensor randn(const Shape& shape, const Random& random, Dtype dtype = Dtype::kFloat32);
  static Tensor uniform(const Shape& shape, const Random& random, Dtype dtype = Dtype::kFloat32);
  /// The numbers 0 to n - 1 in random order, int64 [n].
  static Tensor randperm(std::int64_t n, const Random& random);
  /// Row-major values of a dtype's element type, such as float or std::int64_t; throws ShapeError
  /// unless there are shape.numel() of them.
  template <ElementType T>
  static Tensor from(std::span<const T> values, const Shape& shape);
  template <ElementType T>
  static Tensor from(const std::vector<T>& values, const Shape& shape) {
    return from(std::span<const T>(values), shape);
  }
  static Tensor from(const std::vector<bool>& values, const Shape& shape);
  template <class T>
  requires(!ElementType<T>) static Tensor
      from(const std::vector<T>&, const Shape&) = delete;  // int64, not int
  /// Uninitialised FRACTAL_NZ tensor of the given logical shape, whose numel is batch * k * n.
  static Tensor empty_nz(const Shape& shape, const NzBlocks& blocks, Dtype dtype);
  // Views that are not recorded on the tape. So `base` must be no result on the tape (Error),
  // unless there is a NoGradGuard: ops/views.h has those with gradients.
  /// A view of `base`'s storage with its own shape, strides and element offset.
  static Tensor as_strided(const Tensor& base, const Shape& shape, const Shape& strides,
                           std::int64_t offset);
  /// Elements [start, start + length) of dimension `dim` of an ND tensor.
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
  /// First element of a strided ND tensor. mutable_strided_data() counts as an in-place
  /// modification.
  template <class T>
  const T* strided_data() const;
  template <class T>
  T* mutable_strided_data() &;
  /// The only element; ShapeError unless there is exactly one. A real type T takes the nearest
  /// value that it holds. ValueError if an integer type T does not hold it, as none holds 0.5, or
  /// bool 2.
  template <Number T = double>
  T item() const;

  // --- parts, as views, with gradients
  /// Element i of dimension 0, which is removed. A negative i counts from the end. ShapeError for
  /// an i out of range, and for a tensor of shape [].
  Tensor operator[](std::int64_t i) const;
  /// Elements begin, begin + step, ... before `end` of dimension `dim`, as a[begin:end:step] in
  /// Python: negative positions count from the end, and those beyond an end are moved to it.
  /// ShapeError for a dimension out of range, ValueError unless step >= 1.
  Tensor slice(std::int64_t dim, std::int64_t begin = 0,
               std::int64_t end = std::numeric_limits<std::int64_t>::max(),
               std::int64_t step = 1) const;

  // --- autograd (framework/autograd)
  bool requires_grad() const;
  /// Leaves only: the flag of a result follows from its inputs.
  Tensor& set_requires_grad(bool requires_grad);
  bool is_leaf() const;
  const std::shared_ptr<Function>& grad_fn() const;
  std::size_t output_index() const;
  /// Accumulated gradient of a leaf, cut as the leaf is; undefined until backward has reached it.
  /// Where another handle holds it, or it is a part of a larger tensor, a further backward makes a
  /// new one of the sum and leaves that as it is.
  Tensor grad() const;
  void set_grad(Tensor grad) const;
  /// Which part of a global tensor this is; null if it is whole. Kept by grad(), detach(), clone()
  /// and to_dtype(); to_local() leaves it out. Note [Shards are no operands].
  const std::shared_ptr<const ShardSpec>& shard_spec() const;
  void set_shard_spec(std::shared_ptr<const ShardSpec> spec) const;
  /// The same data without graph; shares storage, version counter and ShardSpec.
  Tensor detach() const;
  /// Computes gradients of this tensor with respect to the leaves of its graph. `grad` defaults to
  /// one for a tensor of one element.
  void backward(const Tensor& grad = {}, bool retain_graph = false) const;
  /// Calls `hook` with the gradient of this tensor when it is complete, before it is passed on. A
  /// defined result replaces the gradient. Error for a shard of a parameter: it is in no graph.
  /// The tensor keeps the hook, so a hook that captures the tensor itself keeps both for ever;
  /// capture tensor.detach().
  HookHandle register_hook(std::function<Tensor(const Tensor&)> hook) const;
  /// The same for a hook that returns nothing: it only looks.
  template <OnlyLooks Hook>
  HookHandle register_hook(Hook hook) const {
    return register_hook(std::function<Tensor(const Tensor&)>(
        [hook = std::move(hook)](const Tensor& gradient) mutable {
          hook(gradient);
          return Tensor();
        }));
  }
  /// Leaves only: calls `hook` after a backward has added to grad().
  HookHandle register_post_accumulate_grad_hook(std::function<void(const Tensor&)> hook) const;

  const std::shared_ptr<TensorImpl>& impl() const { return impl_; }
  explicit Tensor(std::shared_ptr<TensorImpl> impl) : impl_(std::move(impl)) {}

  /// Expires when this handle is destroyed, whatever happens to the tensor behind it.
  std::weak_ptr<const void> watch_handle() { return life_.watch(); }

 private:
  template <Number... Ts>
  static constexpr Dtype kArangeDtype = (std::integral<Ts> && ...) ? Dtype::kInt64
                                                                   : Dtype::kFloat32;
  double item_as_real() const;
  std::int64_t item_within(std::int64_t least, std::int64_t most) const;
  static Tensor arange_of_integers(std::int64_t start, std::int64_t end, std::int64_t step,
                                   Dtype dtype);
  static Tensor arange_of_reals(double start, double end, double step, Dtype dtype);

  std::shared_ptr<TensorImpl> impl_;
  LifeToken life_;
};

template <Number Start, Number End, Number Step>
Tensor Tensor::arange(Start start, End end, Step step, Dtype dtype) {
  if constexpr (std::integral<Start> && std::integral<End> && std::integral<Step>) {
    return arange_of_integers(static_cast<std::int64_t>(start), static_cast<std::int64_t>(end),
                              static_cast<std::int64_t>(step), dtype);
  } else {
    return arange_of_reals(static_cast<double>(start), static_cast<double>(end),
                           static_cast<double>(step), dtype);
  }
}

template <Number End>
Tensor Tensor::arange(End end, Dtype dtype) {
  return arange(End{0}, end, End{1}, dtype);
}

template <Number T>
T Tensor::item() const {
  if constexpr (std::floating_point<T>) {
    return static_cast<T>(item_as_real());
  } else {
    using Own = std::numeric_limits<T>;
    using Stored = std::numeric_limits<std::int64_t>;
    constexpr bool kHoldsAll =
        static_cast<std::uint64_t>(Own::max()) >= std::uint64_t{Stored::max()};
    return static_cast<T>(
        item_within(static_cast<std::int64_t>(Own::min()),
                    kHoldsAll ? Stored::max() : static_cast<std::int64_t>(Own::max())));
  }
}

using TensorList = std::vector<Tensor>;

}  // namespace moegrad
