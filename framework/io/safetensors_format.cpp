// SPDX-License-Identifier: Apache-2.0
#include "framework/io/safetensors_format.h"

#include <algorithm>
#include <array>

#include "framework/io/safetensors_text.h"
#include "framework/runtime/utf8.h"
#include "framework/tensor/shape.h"

namespace moegrad {
namespace {

struct DtypeInfo {
  std::string_view name;
  int bits;
};

// In the order of the enumerators.
constexpr std::array<DtypeInfo, kSafetensorsDtypes> kDtypes = {
    {{"BOOL", 8},        {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
     {"I8", 8},          {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
     {"F8_E5M2FNUZ", 8}, {"I16", 16},    {"U16", 16},    {"F16", 16},    {"BF16", 16},
     {"I32", 32},        {"U32", 32},    {"F32", 32},    {"C64", 64},    {"F64", 64},
     {"I64", 64},        {"U64", 64}}};

const DtypeInfo& info(SafetensorsDtype dtype) { return kDtypes[static_cast<std::size_t>(dtype)]; }

}  // namespace

int bits_of(SafetensorsDtype dtype) { return info(dtype).bits; }

std::string_view to_string(SafetensorsDtype dtype) { return info(dtype).name; }

SafetensorsShape::SafetensorsShape(std::span<const std::int64_t> dims)
    : dims_(dims.empty() ? nullptr : new std::int64_t[dims.size()]),
      size_(static_cast<std::uint32_t>(dims.size())) {
  std::ranges::copy(dims, dims_.get());
}

bool operator==(const SafetensorsShape& a, const SafetensorsShape& b) {
  return std::ranges::equal(a.dims(), b.dims());
}

std::ostream& operator<<(std::ostream& out, SafetensorsDtype dtype) {
  return out << to_string(dtype);
}

std::optional<SafetensorsDtype> safetensors_dtype(std::string_view name) {
  const auto found = std::ranges::find(kDtypes, name, &DtypeInfo::name);
  if (found == kDtypes.end()) return {};
  return static_cast<SafetensorsDtype>(found - kDtypes.begin());
}

SafetensorsDtype safetensors_dtype(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat32:
      return SafetensorsDtype::kF32;
    case Dtype::kFloat64:
      return SafetensorsDtype::kF64;
    case Dtype::kBFloat16:
      return SafetensorsDtype::kBF16;
    case Dtype::kInt64:
      return SafetensorsDtype::kI64;
    case Dtype::kInt32:
      return SafetensorsDtype::kI32;
    case Dtype::kInt8:
      return SafetensorsDtype::kI8;
    case Dtype::kBool:
      return SafetensorsDtype::kBool;
  }
  return SafetensorsDtype::kU8;
}

std::optional<Dtype> tensor_dtype(SafetensorsDtype dtype) {
  for (const auto candidate : {Dtype::kFloat32, Dtype::kFloat64, Dtype::kBFloat16, Dtype::kInt64,
                               Dtype::kInt32, Dtype::kInt8, Dtype::kBool}) {
    if (safetensors_dtype(candidate) == dtype) return candidate;
  }
  return {};
}

std::uint64_t safetensors_bytes(SafetensorsDtype dtype, std::span<const std::int64_t> shape,
                                const std::string& path, std::string_view name) {
  using Kind = SafetensorsError::Kind;
  const auto refuse_overflow = [&] {
    refuse(Kind::kSizeOverflow, path, "size of ", in_quotes(name), " must fit in 64 bits, got ",
           Shape(shape), " of ", dtype);
  };
  // A zero must not hide an overflow, whether it comes first or last: strides are products, too.
  std::int64_t product = 1;
  bool empty = false;
  for (const auto dim : shape) {
    if (dim == 0) {
      empty = true;
    } else if (__builtin_mul_overflow(product, dim, &product)) {
      refuse_overflow();
    }
  }
  const auto elements = empty ? 0 : static_cast<std::uint64_t>(product);
  std::uint64_t bits = 0;
  if (__builtin_mul_overflow(elements, static_cast<std::uint64_t>(bits_of(dtype)), &bits)) {
    refuse_overflow();
  }
  if (bits % 8 != 0) {
    refuse(Kind::kPartialByte, path, in_quotes(name), " must fill whole bytes, got ", bits,
           " bits for ", Shape(shape), " of ", dtype);
  }
  return bits / 8;
}

}  // namespace moegrad
