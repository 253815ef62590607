// SPDX-License-Identifier: Apache-2.0
#include "framework/tensor/tensor.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "framework/tensor/dispatch_any.h"
#include "framework/tensor/fill.h"
#include "framework/tensor/tensor_impl.h"

namespace moegrad {
namespace {

void check_sizes(const Shape& shape) {
  for (const auto size : shape) {
    check<ShapeError>(size >= 0, "tensor: sizes must not be negative, got ", shape);
  }
}

std::shared_ptr<TensorImpl> view_impl(const Tensor& base, const Shape& shape) {
  const auto& from = checked_impl(base.impl());
  auto impl = std::make_shared<TensorImpl>();
  impl->storage = from.storage;
  impl->shape = shape;
  impl->strides = from.strides;
  impl->offset = from.offset;
  impl->dtype = from.dtype;
  impl->layout = from.layout;
  impl->nz = from.nz;
  return impl;
}

template <class T>
void check_dtype(const TensorImpl& impl) {
  check<DtypeError>(impl.dtype == dtype_of<T>, "tensor: data of ", impl.dtype, " read as ",
                    dtype_of<T>);
}

template <class T>
T* contiguous_pointer(const Tensor& tensor) {
  const auto& impl = checked_impl(tensor.impl());
  check_dtype<T>(impl);
  check<LayoutError>(impl.layout == Layout::kND,
                     "tensor: elements of a FRACTAL_NZ tensor read as row-major ND");
  check<LayoutError>(tensor.is_contiguous(), "tensor: data needs a contiguous tensor, got shape ",
                     impl.shape, " with strides ", impl.strides);
  return reinterpret_cast<T*>(impl.storage->data()) + impl.offset;
}

template <class T>
T* nz_pointer(const Tensor& tensor) {
  const auto& impl = checked_impl(tensor.impl());
  check_dtype<T>(impl);
  check<LayoutError>(impl.layout == Layout::kNZ,
                     "tensor: elements of a row-major ND tensor read as FRACTAL_NZ");
  return reinterpret_cast<T*>(impl.storage->data()) + impl.offset;
}

std::span<std::byte> elements_as_bytes(const Tensor& tensor) {
  const auto& impl = checked_impl(tensor.impl());
  const bool nz = impl.layout == Layout::kNZ;
  check<LayoutError>(nz || tensor.is_contiguous(),
                     "tensor: bytes need a contiguous tensor, got shape ", impl.shape,
                     " with strides ", impl.strides);
  const auto size = size_of(impl.dtype);
  const auto elements = nz ? impl.nz.numel(impl.dtype) : impl.shape.numel();
  return {impl.storage->data() + impl.offset * size, static_cast<std::size_t>(elements * size)};
}

std::int64_t bytes_of(const Shape& shape, std::int64_t elements, Dtype dtype) {
  std::int64_t bytes = 0;
  check<ShapeError>(!__builtin_mul_overflow(elements, size_of(dtype), &bytes), "tensor: ", dtype,
                    " of shape ", shape, " must have at most 2^63 - 1 bytes");
  return bytes;
}

}  // namespace

Tensor Tensor::empty(const Shape& shape, Dtype dtype) {
  check_sizes(shape);
  auto impl = std::make_shared<TensorImpl>();
  impl->storage = std::make_shared<Storage>(bytes_of(shape, shape.numel(), dtype));
  impl->shape = shape;
  impl->strides = row_major_strides(shape);
  impl->dtype = dtype;
  return Tensor(std::move(impl));
}

Tensor Tensor::zeros(const Shape& shape, Dtype dtype) {
  Tensor tensor = empty(shape, dtype);
  if (tensor.is_meta()) return tensor;
  std::memset(tensor.storage().data(), 0, static_cast<std::size_t>(tensor.storage().bytes()));
  return tensor;
}

Tensor Tensor::ones(const Shape& shape, Dtype dtype) { return full(shape, 1.0, dtype); }

Tensor Tensor::full(const Shape& shape, double value, Dtype dtype) {
  check_element("full", value, dtype);
  Tensor tensor = empty(shape, dtype);
  if (!tensor.is_meta()) fill_(tensor, value);
  return tensor;
}

Tensor Tensor::from(const std::vector<bool>& values, const Shape& shape) {
  const auto copy = std::make_unique<bool[]>(values.size());
  std::ranges::copy(values, copy.get());
  return from(std::span<const bool>(copy.get(), values.size()), shape);
}

template <ElementType T>
Tensor Tensor::from(std::span<const T> values, const Shape& shape) {
  check<ShapeError>(std::ssize(values) == shape.numel(), "tensor: shape ", shape, " needs ",
                    shape.numel(), " values, got ", values.size());
  Tensor tensor = empty(shape, dtype_of<T>);
  if (!tensor.is_meta()) std::ranges::copy(values, tensor.mutable_data<T>().begin());
  return tensor;
}

Tensor Tensor::empty_nz(const Shape& shape, const NzBlocks& blocks, Dtype dtype) {
  check_sizes(shape);
  check<ShapeError>(shape.numel() == blocks.batch * blocks.k * blocks.n, "tensor: NZ blocks of ",
                    Shape{blocks.batch, blocks.k, blocks.n}, " cannot hold shape ", shape);
  auto impl = std::make_shared<TensorImpl>();
  impl->storage = std::make_shared<Storage>(bytes_of(shape, blocks.numel(dtype), dtype));
  impl->shape = shape;
  impl->strides = row_major_strides(shape);
  impl->dtype = dtype;
  impl->layout = Layout::kNZ;
  impl->nz = blocks;
  return Tensor(std::move(impl));
}

Tensor Tensor::as_strided(const Tensor& base, const Shape& shape, const Shape& strides,
                          std::int64_t offset) {
  check_off_tape("Tensor::as_strided", base, "the base", "use the ops of ops/views.h");
  check<LayoutError>(base.layout() == Layout::kND, "tensor: a FRACTAL_NZ tensor has no strides");
  check<ShapeError>(shape.ndim() == strides.ndim(), "tensor: shape ", shape, " and strides ",
                    strides, " differ in rank");
  check_sizes(shape);
  std::int64_t last = offset;
  bool fits = true;  // false on overflow
  for (std::int64_t i = 0; i < shape.ndim(); ++i) {
    check<ShapeError>(strides[i] >= 0, "tensor: strides must not be negative, got ", strides);
    std::int64_t along = 0;
    fits = !__builtin_mul_overflow(std::max<std::int64_t>(shape[i] - 1, 0), strides[i], &along) &&
           !__builtin_add_overflow(last, along, &last) && fits;
  }
  const auto capacity = base.storage().bytes() / size_of(base.dtype());
  check<ShapeError>(offset >= 0 && (shape.numel() == 0 || (fits && last < capacity)),
                    "tensor: view ", shape, " with strides ", strides, " at offset ", offset,
                    " leaves a storage of ", capacity, " elements");
  auto impl = view_impl(base, shape);
  impl->strides = strides;
  impl->offset = offset;
  return Tensor(std::move(impl));
}

Tensor Tensor::narrow(const Tensor& base, std::int64_t dim, std::int64_t start,
                      std::int64_t length) {
  check_off_tape("Tensor::narrow", base, "the base", "use ops::narrow");
  Shape shape = base.shape();
  check<ShapeError>(
      0 <= start && 0 <= length && length <= shape[dim] && start <= shape[dim] - length,
      "Tensor::narrow: must be within the ", shape[dim], " elements of dimension ", dim, ", got ",
      length, " from ", start);
  shape[dim] = length;
  return as_strided(base, shape, base.strides(), base.offset() + start * base.strides()[dim]);
}

Tensor Tensor::nz_view(const Tensor& base, const Shape& shape) {
  check_off_tape("Tensor::nz_view", base, "the base", "use ops::view");
  check<LayoutError>(base.layout() == Layout::kNZ, "tensor: nz_view of an ND tensor");
  check<ShapeError>(shape.numel() == base.numel(), "tensor: view ", shape, " of ", base.shape());
  auto impl = view_impl(base, shape);
  impl->strides = row_major_strides(shape);
  return Tensor(std::move(impl));
}

const Shape& Tensor::shape() const { return checked_impl(impl_).shape; }
const Shape& Tensor::strides() const { return checked_impl(impl_).strides; }
std::int64_t Tensor::offset() const { return checked_impl(impl_).offset; }
Dtype Tensor::dtype() const { return checked_impl(impl_).dtype; }
Layout Tensor::layout() const { return checked_impl(impl_).layout; }
const NzBlocks& Tensor::nz_blocks() const { return checked_impl(impl_).nz; }
Storage& Tensor::storage() const { return *checked_impl(impl_).storage; }

bool Tensor::is_contiguous() const {
  const auto& impl = checked_impl(impl_);
  if (impl.layout != Layout::kND) return false;
  if (impl.shape.numel() == 0) return true;
  std::int64_t step = 1;
  for (std::int64_t i = impl.shape.ndim() - 1; i >= 0; --i) {
    if (impl.shape[i] != 1 && impl.strides[i] != step) return false;
    step *= impl.shape[i];
  }
  return true;
}

template <class T>
std::span<const T> Tensor::data() const& {
  return {contiguous_pointer<T>(*this), static_cast<std::size_t>(numel())};
}

template <class T>
std::span<T> Tensor::mutable_data() & {
  auto* pointer = contiguous_pointer<T>(*this);
  storage().bump_version();
  return {pointer, static_cast<std::size_t>(numel())};
}

template <class T>
std::span<const T> Tensor::nz_data() const& {
  return {nz_pointer<T>(*this), static_cast<std::size_t>(nz_blocks().numel(dtype_of<T>))};
}

template <class T>
std::span<T> Tensor::mutable_nz_data() & {
  auto* pointer = nz_pointer<T>(*this);
  storage().bump_version();
  return {pointer, static_cast<std::size_t>(nz_blocks().numel(dtype_of<T>))};
}

std::span<const std::byte> Tensor::bytes() const& { return elements_as_bytes(*this); }

std::span<std::byte> Tensor::mutable_bytes() & {
  const auto bytes = elements_as_bytes(*this);
  storage().bump_version();
  return bytes;
}

template <class T>
const T* Tensor::strided_data() const {
  const auto& impl = checked_impl(impl_);
  check_dtype<T>(impl);
  check<LayoutError>(impl.layout == Layout::kND,
                     "tensor: elements of a FRACTAL_NZ tensor read as row-major ND");
  return reinterpret_cast<const T*>(impl.storage->data()) + impl.offset;
}

template <class T>
T* Tensor::mutable_strided_data() & {
  const auto* pointer = std::as_const(*this).strided_data<T>();
  storage().bump_version();
  return const_cast<T*>(pointer);
}

double Tensor::item_as_real() const {
  check<ShapeError>(numel() == 1, "item: needs a tensor of one element, got ", shape());
  double item = 0;
  dispatch_any(dtype(), [&]<class T>() { item = convert<double>(strided_data<T>()[0]); });
  return item;
}

std::int64_t Tensor::item_within(std::int64_t least, std::int64_t most) const {
  const auto require = [&](bool holds, auto item) {
    check<ValueError>(holds, "item: must be a whole number in [", least, ", ", most,
                      "] to be read as this type, got ", item);
  };
  if (!holds_reals(dtype())) {
    check<ShapeError>(numel() == 1, "item: needs a tensor of one element, got ", shape());
    std::int64_t item = 0;
    dispatch_any(dtype(), [&]<class T>() { item = convert<std::int64_t>(strided_data<T>()[0]); });
    require(least <= item && item <= most, item);
    return item;
  }
  const auto real = item_as_real();
  require(real == std::floor(real) && -0x1p63 <= real && real < 0x1p63, real);
  const auto item = static_cast<std::int64_t>(real);
  require(least <= item && item <= most, item);
  return item;
}

bool Tensor::requires_grad() const { return checked_impl(impl_).requires_grad; }

Tensor& Tensor::set_requires_grad(bool requires_grad) {
  auto& impl = checked_impl(impl_);
  check(impl.grad_fn == nullptr,
        "set_requires_grad: only a leaf's flag can be set; detach() the result first");
  check<DtypeError>(!requires_grad || holds_reals(impl.dtype),
                    "set_requires_grad: needs float32, float64 or bfloat16, got ", impl.dtype);
  impl.requires_grad = requires_grad;
  return *this;
}

bool Tensor::is_leaf() const { return checked_impl(impl_).grad_fn == nullptr; }
const std::shared_ptr<Function>& Tensor::grad_fn() const { return checked_impl(impl_).grad_fn; }
std::size_t Tensor::output_index() const { return checked_impl(impl_).output_index; }

Tensor Tensor::grad() const {
  const auto& impl = checked_impl(impl_);
  return impl.leaf ? impl.leaf->grad : Tensor();
}

void Tensor::set_grad(Tensor grad) const {
  auto& impl = checked_impl(impl_);
  if (grad.defined()) {
    check<ShapeError>(grad.shape() == impl.shape, "set_grad: gradient must be ", impl.shape,
                      " as its tensor, got ", grad.shape());
    const auto dtype = arithmetic_dtype(impl.dtype);
    check<DtypeError>(grad.dtype() == dtype, "set_grad: gradient must be ", dtype,
                      dtype == impl.dtype ? " as its tensor, got " : " for a bfloat16 tensor, got ",
                      grad.dtype());
  }
  // There is no second backward, and the caller's tensor stays the shard or the whole that it is.
  const bool is_cut_otherwise = grad.defined() && grad.shard_spec() != impl.shard;
  if (is_cut_otherwise || (grad.defined() && !grad.is_leaf())) grad = grad.detach();
  if (is_cut_otherwise) grad.set_shard_spec(impl.shard);
  if (grad.defined() && grad.layout() == Layout::kND && !grad.is_contiguous()) grad = clone(grad);
  auto& leaf = impl.leaf_state();
  const bool dropped = !grad.defined();
  leaf.grad = std::move(grad);
  leaf.uses = nullptr;
  mark_gradient(impl);
  if (!dropped) return;
  for (const auto& hook : leaf.drop_hooks.snapshot()) hook();
}

const std::shared_ptr<const ShardSpec>& Tensor::shard_spec() const {
  return checked_impl(impl_).shard;
}

void Tensor::set_shard_spec(std::shared_ptr<const ShardSpec> spec) const {
  checked_impl(impl_).shard = std::move(spec);
}

Tensor Tensor::detach() const {
  const auto& impl = checked_impl(impl_);
  auto detached = view_impl(*this, impl.shape);
  detached->shard = impl.shard;
  detached->marks = impl.marks;
  detached->detached = true;
  return Tensor(std::move(detached));
}

#define MOEGRAD_INSTANTIATE(T)                                       \
  template Tensor Tensor::from<T>(std::span<const T>, const Shape&); \
  template std::span<const T> Tensor::data<T>() const&;              \
  template std::span<T> Tensor::mutable_data<T>()&;                  \
  template std::span<const T> Tensor::nz_data<T>() const&;           \
  template std::span<T> Tensor::mutable_nz_data<T>()&;               \
  template const T* Tensor::strided_data<T>() const;                 \
  template T* Tensor::mutable_strided_data<T>()&;
MOEGRAD_INSTANTIATE(float)
MOEGRAD_INSTANTIATE(double)
MOEGRAD_INSTANTIATE(BFloat16)
MOEGRAD_INSTANTIATE(std::int64_t)
MOEGRAD_INSTANTIATE(std::int32_t)
MOEGRAD_INSTANTIATE(std::int8_t)
MOEGRAD_INSTANTIATE(bool)
#undef MOEGRAD_INSTANTIATE

}  // namespace moegrad
